import type { Transaction } from '../../db/database.ts'
import { deleteEventsOf } from '../../events/event-store.ts'
import { deleteAnswersAt } from '../../http/idempotency-store.ts'
import { deleteNotificationsOf } from '../../push/trim-notifications.ts'
import type { CountDeleted } from '../job-context.ts'
import { findThreadsOfOthers } from '../thread-store.ts'
import { deleteHeld, deleteTimelineOf, type HeldRecords, lockEndedJobs } from './delete-store.ts'
import { eraseBodiesOf, eraseJobRows, findEndedJobsOf } from './erase-store.ts'

/** On SQLite nothing else runs during a transaction. */
const MAX_JOBS = 20

/** Events first: the statistics of a job's end also need its timeline. The callbacks stay, without their bodies. */
const HELD: readonly HeldRecords[] = [
  { deleteSome: deleteEventsOf, limit: 500 },
  { deleteSome: eraseBodiesOf, limit: 50 },
  { deleteSome: deleteTimelineOf, limit: 500 },
  { deleteSome: deleteNotificationsOf, limit: 50 },
]

/**
 * Erases some ended jobs of a user: documents, callback bodies, timeline, events, notifications, kept answers, and the
 * owner. The job itself stays, so that a late callback finds it. Jobs with very much history or with large callbacks take
 * several calls; they lose their owner with the last one. `found` is 0 when no ended job is left. `ofOthers`: threads of the
 * erased jobs that are conversations of other owners.
 */
export async function eraseSomeJobs(
  tx: Transaction,
  { owner, atMs, countDeleted }: { owner: string; atMs: number; countDeleted?: CountDeleted | undefined },
): Promise<{ found: number; erased: number; ofOthers: string[] }> {
  const found = await findEndedJobsOf(tx, { owner, limit: MAX_JOBS })
  const ids = found.length === 0 ? [] : await lockEndedJobs(tx, found)
  if (ids.length === 0 || (await deleteHeld(tx, { held: HELD, ids, countDeleted })))
    return { found: found.length, erased: 0, ofOthers: [] }
  await deleteAnswersAt(
    tx,
    ids.map((id) => `/jobs/${id}`),
  )
  const ofOthers = await findThreadsOfOthers(tx, { jobIds: ids, owner })
  await eraseJobRows(tx, ids, atMs)
  return { found: found.length, erased: ids.length, ofOthers }
}
