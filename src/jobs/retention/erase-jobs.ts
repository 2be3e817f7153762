import type { Transaction } from '../../db/database.ts'
import { deleteEventsOf } from '../../events/event-store.ts'
import { deleteAnswersAt } from '../../http/idempotency-store.ts'
import { deleteNotificationsOf } from '../../push/trim-notifications.ts'
import { deleteTimelineOf, lockEndedJobs } from './delete-store.ts'
import { eraseBodiesOf, eraseJobRows, findEndedJobsOf } from './erase-store.ts'

/** On SQLite nothing else runs during a transaction. */
const MAX_JOBS = 20

/** The records of a job, each with the number of rows that one transaction erases. Of large bodies it erases fewer. */
const HELD: readonly { eraseSome: typeof eraseBodiesOf; limit: number }[] = [
  { eraseSome: eraseBodiesOf, limit: 50 },
  { eraseSome: deleteTimelineOf, limit: 500 },
  { eraseSome: deleteEventsOf, limit: 500 },
  { eraseSome: deleteNotificationsOf, limit: 50 },
]

/**
 * Erases some ended jobs of a user: documents, callback bodies, timeline, events, notifications, kept answers, and the
 * owner. The job itself stays, so that a late callback finds it. Jobs with very much history or with large callbacks take
 * several calls; they lose their owner with the last one. `found` is 0 when no ended job is left.
 */
export async function eraseSomeJobs(
  tx: Transaction,
  { owner, atMs }: { owner: string; atMs: number },
): Promise<{ found: number; erased: number }> {
  const found = await findEndedJobsOf(tx, { owner, limit: MAX_JOBS })
  const ids = found.length === 0 ? [] : await lockEndedJobs(tx, found)
  if (ids.length === 0 || (await eraseHeld(tx, ids))) return { found: found.length, erased: 0 }
  await deleteAnswersAt(
    tx,
    ids.map((id) => `/jobs/${id}`),
  )
  await eraseJobRows(tx, ids, atMs)
  return { found: found.length, erased: ids.length }
}

/** True if another transaction is needed. */
async function eraseHeld(tx: Transaction, ids: readonly string[]): Promise<boolean> {
  let more = false
  for (const { eraseSome, limit } of HELD) more = (await eraseSome(tx, ids, limit)) || more
  return more
}
