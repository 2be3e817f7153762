import type { Database, Transaction } from '../../db/database.ts'
import { deleteEventsOf } from '../../events/event-store.ts'
import { deleteAnswersAt } from '../../http/idempotency-store.ts'
import { deleteNotificationsOf } from '../../push/trim-notifications.ts'
import type { CountDeleted } from '../job-context.ts'
import {
  deleteCallbacksOf,
  deleteHeld,
  deleteJobRows,
  deleteTimelineOf,
  findOldJobs,
  type HeldRecords,
  lockEndedJobs,
  type OldJobs,
} from './delete-store.ts'
import type { TrimContext } from './trim-history.ts'

/** Events first: the statistics of a job's end also need its callbacks and its timeline. */
const HELD: readonly HeldRecords[] = [
  { deleteSome: deleteEventsOf, limit: 500 },
  { deleteSome: deleteCallbacksOf, limit: 50 },
  { deleteSome: deleteTimelineOf, limit: 500 },
  { deleteSome: deleteNotificationsOf, limit: 50 },
]

interface Deletion {
  /** The jobs of one batch: their documents are deleted in one transaction. */
  ids: readonly string[]
  atMs: number
  /** Only the node that holds this lock continues. */
  lock?: string
  /** Called for everything that is deleted, in the same transaction. */
  countDeleted?: CountDeleted | undefined
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
  { ids, atMs, lock, countDeleted, onDeleted }: Deletion,
): Promise<string[] | null> {
  for (;;) {
    const round = await db.transaction(async (tx) => {
      if (lock !== undefined && !(await tx.tryLock(lock))) return null
      const ended = await lockEndedJobs(tx, ids)
      const more = ended.length > 0 && (await deleteHeld(tx, { held: HELD, ids: ended, countDeleted }))
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

async function deleteRest(tx: Transaction, ids: readonly string[], atMs: number): Promise<void> {
  await deleteAnswersAt(
    tx,
    ids.map((id) => `/jobs/${id}`),
  )
  await deleteJobRows(tx, ids, atMs)
}

const DAY_MS = 86_400_000
/** On SQLite nothing else runs during a batch. */
const BATCH = 20

/** Deletes jobs that ended this long ago, with everything they hold. Unfinished jobs are never deleted. */
export async function trimJobs(
  { db, clock, log, meter, countDeleted }: TrimContext & { countDeleted?: CountDeleted },
  { retentionDays, signal }: { retentionDays: number; signal: AbortSignal },
): Promise<void> {
  const nowMs = clock.now()
  const beforeMs = nowMs - retentionDays * DAY_MS
  let jobs = 0
  for (let after: string | undefined = ''; after !== undefined && !signal.aborted; ) {
    const old: OldJobs = await findOldJobs(db, { after, beforeMs, limit: BATCH })
    const deleted = await deleteEndedJobs(db, { ids: old.ended, atMs: nowMs, lock: 'retention:jobs', countDeleted })
    if (deleted === null) break
    jobs += deleted.length
    if (deleted.length > 0) meter.count('history_trimmed_total', { kind: 'jobs' }, deleted.length)
    after = old.last
    await new Promise(setImmediate)
  }
  if (jobs > 0) log.info({ jobs }, 'jobs.trimmed')
}
