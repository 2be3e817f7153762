import type { Database, Transaction } from '../../db/database.ts'
import { deleteEventsOf } from '../../events/event-store.ts'
import { deleteAnswersAt } from '../../http/idempotency-store.ts'
import { deleteNotificationsOf } from '../../push/trim-notifications.ts'
import { deleteCallbacksOf, deleteJobRows, deleteTimelineOf, lockEndedJobs } from './delete-store.ts'

/** The records of a job, each with the number of rows that one transaction deletes. Of large callbacks it deletes fewer. */
const HELD: readonly { deleteSome: typeof deleteCallbacksOf; limit: number }[] = [
  { deleteSome: deleteCallbacksOf, limit: 50 },
  { deleteSome: deleteTimelineOf, limit: 500 },
  { deleteSome: deleteEventsOf, limit: 500 },
  { deleteSome: deleteNotificationsOf, limit: 50 },
]

interface Deletion {
  /** The jobs of one batch: their documents are deleted in one transaction. */
  ids: readonly string[]
  atMs: number
  /** Only the node that holds this lock continues. */
  lock?: string
  /** Called in the transaction that deletes the jobs themselves. */
  onDeleted?: (tx: Transaction) => Promise<void>
}

/**
 * Deletes the ended ones among these jobs with everything they hold, and returns their ids. A job with very much history
 * takes several bounded transactions; the last one deletes the job itself, so after a crash the deletion can be repeated.
 * Usage stays counted. Null when another node holds the lock.
 */
export async function deleteEndedJobs(
  db: Database,
  { ids, atMs, lock, onDeleted }: Deletion,
): Promise<string[] | null> {
  for (;;) {
    const round = await db.transaction(async (tx) => {
      if (lock !== undefined && !(await tx.tryLock(lock))) return null
      const ended = await lockEndedJobs(tx, ids)
      const more = ended.length > 0 && (await deleteHeld(tx, ended))
      if (ended.length > 0 && !more) {
        await deleteRest(tx, ended, atMs)
        await onDeleted?.(tx)
      }
      return { ended, more }
    })
    if (round === null) return null
    if (!round.more) return round.ended
    // On SQLite a transaction never waits. Yielding lets requests run before the next one.
    await new Promise(setImmediate)
  }
}

/** True if another transaction is needed. */
async function deleteHeld(tx: Transaction, ids: readonly string[]): Promise<boolean> {
  let more = false
  for (const { deleteSome, limit } of HELD) more = (await deleteSome(tx, ids, limit)) || more
  return more
}

async function deleteRest(tx: Transaction, ids: readonly string[], atMs: number): Promise<void> {
  await deleteAnswersAt(
    tx,
    ids.map((id) => `/jobs/${id}`),
  )
  await deleteJobRows(tx, ids, atMs)
}
