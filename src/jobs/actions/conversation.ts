import { ApiError } from '../../core/errors.ts'
import type { Transaction } from '../../db/database.ts'
import { findTurn } from '../job-store.ts'
import type { JobType } from '../job-types.ts'
import { hasUnfinishedJob } from '../uncommon-jobs.ts'

/**
 * The thread for the next turn of a conversation. At most one job on it is unfinished: two concurrent requests cannot both
 * succeed, because the lock on the thread is held until the new job is committed.
 */
export async function findThreadToContinue(
  tx: Transaction,
  { continues, type, owner }: { continues: string; type: JobType; owner: string },
): Promise<string> {
  const turn = await findTurn(tx, continues)
  if (!turn || turn.created_by !== owner) throw new ApiError('not_found', 'No such job to continue')
  // Another graph would misread the state of the thread.
  if (turn.type !== type.name) throw new ApiError('conflict', `The job to continue is of the type ${turn.type}`)
  const isFree = await tx.tryLock(JSON.stringify(['thread', turn.thread_id]))
  if (!isFree || (await hasUnfinishedJob(tx, turn.thread_id))) {
    throw new ApiError('conflict', 'A job on the thread is unfinished')
  }
  return turn.thread_id
}
