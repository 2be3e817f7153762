import { type AuditOrigin, recordAudit } from '../../audit/record-audit.ts'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import type { JobContext } from '../job-context.ts'
import { deleteEndedJobs } from '../retention/delete-jobs.ts'
import {
  eraseThreads,
  findJobsOn,
  findReplaced,
  findThread,
  hasOtherOwners,
  lockThread,
  markDeleting,
} from '../thread-store.ts'
import { findUnfinishedOn } from '../uncommon-jobs.ts'

/** On SQLite nothing else runs during a batch. */
const BATCH = 20

const UNFINISHED = 'A job on the thread is unfinished'

interface Deletion {
  threadId: string
  /** The owner of the jobs to delete; null: the jobs of every owner. Several users may follow runs of a thread. */
  owner: string | null
  by: AuditOrigin | undefined
}

/**
 * Deletes the jobs on a thread, and the thread at the runtime if this service created it and no other owner has a job on
 * it. The runtime comes first: if it cannot be asked, nothing is deleted. A deletion that a crash interrupted can be
 * repeated.
 */
export async function deleteConversation(context: JobContext, { threadId, owner, by }: Deletion): Promise<void> {
  const { db, clock, log, countDeleted } = context
  const isOnlyOurs = await db.transaction(async (tx) => {
    const thread = await lockThread(tx, threadId)
    if (!thread) throw new ApiError('not_found', 'No such conversation')
    if ((await findUnfinishedOn(tx, threadId)).length > 0) {
      throw new ApiError('conflict', UNFINISHED)
    }
    await markDeleting(tx, threadId, clock.now())
    // The thread stays at the runtime for the other owners' next turns.
    return thread.is_own === 1 && (owner === null || !(await hasOtherOwners(tx, threadId, owner)))
  })
  if (isOnlyOurs) await deleteAtRuntime(context, threadId)
  for (;;) {
    const ids = await findJobsOn(db, threadId, { owner, limit: BATCH })
    if (ids.length === 0) break
    const deleted = await deleteEndedJobs(db, { ids, atMs: clock.now(), countDeleted })
    if (deleted?.length) continue
    // A callback has made a new job on the thread.
    await markDeleting(db, threadId, null)
    throw new ApiError('conflict', UNFINISHED)
  }
  // For the jobs of other owners, which stay: the first of them owns the conversation now.
  await db.transaction(async (tx) => {
    const thread = await findThread(tx, threadId)
    if (thread && thread.owner === owner) await eraseThreads(tx, [threadId])
    await markDeleting(tx, threadId, null)
  })
  if (by) {
    const object = { kind: 'conversation', id: threadId } as const
    await db.transaction((tx) => recordAudit(tx, context, { by, action: 'conversation.deleted', object }))
  }
  log.info({ threadId }, 'conversation.deleted')
}

async function deleteAtRuntime({ db, runtime, log }: JobContext, threadId: string): Promise<void> {
  try {
    const replaced = (await findReplaced(db, threadId)).filter(({ is_own }) => is_own === 1)
    for (const { id } of [...replaced, { id: threadId }]) await runtime?.deleteThread(id)
  } catch (error) {
    await markDeleting(db, threadId, null)
    if (!(error instanceof RuntimeUnavailable)) throw error
    log.warn({ threadId, err: error }, 'conversation.delete_failed')
    throw new UnavailableError('The agent runtime cannot delete the thread now', { retryAfterSeconds: 5 })
  }
}
