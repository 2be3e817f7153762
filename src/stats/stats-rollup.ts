import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import { timeOfId } from '../core/ids.ts'
import type { Log } from '../core/log.ts'
import type { Database, Queryable, Transaction } from '../db/database.ts'
import { type DeletedEvent, findHead, readEvents } from '../events/event-store.ts'
import { countCallbacks, findNextCallbackMs } from '../jobs/callbacks/callback-list-store.ts'
import { isTerminal, type JobStatus } from '../jobs/job.ts'
import type { DeletedRecords } from '../jobs/job-context.ts'
import { findTimesToTruth } from '../jobs/settlement/time-to-truth.ts'
import { countMarks, findNextMarkMs } from '../push/outbox/delivery-list-store.ts'
import { CALLBACK, classOf, END, PUSH, statsName, TRUTH } from './stats-names.ts'
import { addCounts, findCursor, lockCursor, type StatsCount, type StatsSource, upsertCounts } from './stats-store.ts'

const EVERY_MS = 2_000
const EVENTS_PER_STEP = 1_000
/** All rows older than this are committed. */
const SETTLING_MS = 2_500
const STEP_MS = 60_000
/** While nothing happens, the cursor is moved only this often. */
const IDLE_MS = 30_000

interface StatsRollupOptions {
  db: Database
  clock: Clock
  log: Log
}

/**
 * Counts the rows committed since the last round: ends of jobs in the event log, callbacks and deliveries by their time. It
 * reads rows that settlements write anyway, so it adds no cost to them.
 */
export function startStatsRollup({ db, clock, log }: StatsRollupOptions): Loop {
  return startLoop({
    clock,
    everyMs: EVERY_MS,
    run: async (signal) => {
      while (!signal.aborted && (await countEvents(db))) await new Promise(setImmediate)
      while (!signal.aborted && (await countByTime(db, clock.now()))) await new Promise(setImmediate)
    },
    onError: (error) => log.warn({ err: error }, 'stats.not_counted'),
  })
}

/** Counts one batch of events. True if more events remain. */
export async function countEvents(db: Database): Promise<boolean> {
  const { seq: upTo } = await findHead(db)
  if (upTo <= (await findCursor(db, 'events'))) return false
  const counted = await addCounts(db, 'events', async (tx, after) => {
    if (upTo <= after) return null
    const events = await readEvents(tx, { after, upTo, filter: {}, limit: EVENTS_PER_STEP })
    const isAll = events.length < EVENTS_PER_STEP
    return { to: isAll ? upTo : (events.at(-1)?.seq ?? upTo), counts: await countsOfEnds(tx, events) }
  })
  return counted !== null && counted < upTo
}

async function countsOfEnds(db: Queryable, events: readonly DeletedEvent[]): Promise<StatsCount[]> {
  const ends = events.flatMap(({ job_id, data, created_at: atMs }) => {
    if (job_id === null) return []
    const { status, settled_by } = JSON.parse(data) as { status: JobStatus; settled_by: string | null }
    return isTerminal(status) ? [{ jobId: job_id, atMs, status, settledBy: settled_by }] : []
  })
  if (ends.length === 0) return []
  const times = await findTimesToTruth(
    db,
    ends.filter(({ settledBy }) => settledBy !== null).map(({ jobId }) => jobId),
  )
  return ends.flatMap(({ jobId, atMs, status, settledBy }) => {
    const ms = times.get(jobId)
    return [
      { atMs, name: statsName(END, status, settledBy), count: 1 },
      ...(ms === undefined ? [] : [{ atMs, name: statsName(TRUTH, classOf(ms)), count: 1 }]),
    ]
  })
}

/** Counts callbacks and pushes of one time step. True if more time steps remain. */
export async function countByTime(db: Database, nowMs: number): Promise<boolean> {
  const untilMs = nowMs - SETTLING_MS
  const counted = await addCounts(db, 'time', async (tx, from) => {
    const to = Math.min((await skipQuietTime(tx, { fromMs: from, untilMs })) + STEP_MS, untilMs)
    if (to <= from) return null
    const range = { fromMs: from, toMs: to }
    const callbacks = await countCallbacks(tx, range)
    const marks = await countMarks(tx, range)
    const counts = [
      ...callbacks.map(({ minute, outcome, count }) => ({ minute, count, name: statsName(CALLBACK, outcome) })),
      ...marks.map(({ minute, state, count }) => ({ minute, count, name: statsName(PUSH, state) })),
    ].map(({ minute, name, count }) => ({ atMs: minute * 60_000, name, count }))
    return counts.length === 0 && to === untilMs && to - from < IDLE_MS ? null : { to, counts }
  })
  return counted !== null && counted < untilMs
}

/**
 * Counts records that this transaction deletes and that were not counted yet. Call it before the other records of their
 * jobs are deleted: the time to the result of a job is measured by its callbacks and its timeline.
 */
export async function countDeleted(
  tx: Transaction,
  { events = [], callbacks = [], marks = [] }: DeletedRecords,
): Promise<void> {
  const ended = await notCounted(tx, 'events', events, ({ seq }) => seq - 1)
  const received = await notCounted(tx, 'time', callbacks, ({ id }) => timeOfId(id))
  const marked = await notCounted(tx, 'time', marks, ({ updated_at }) => updated_at)
  await upsertCounts(tx, [
    ...(await countsOfEnds(tx, ended)),
    ...received.map(({ received_at: atMs, outcome }) => ({ atMs, name: statsName(CALLBACK, outcome), count: 1 })),
    ...marked.map(({ updated_at: atMs, state }) => ({ atMs, name: statsName(PUSH, state), count: 1 })),
  ])
}

/** The rows at or after the cursor, which only moves forward. Most deleted rows are old, and need no lock. */
async function notCounted<Counted>(
  tx: Transaction,
  source: StatsSource,
  rows: readonly Counted[],
  positionOf: (row: Counted) => number,
): Promise<Counted[]> {
  if (rows.length === 0) return []
  const from = (position: number) => rows.filter((row) => positionOf(row) >= position)
  return from(await findCursor(tx, source)).length === 0 ? [] : from(await lockCursor(tx, source))
}

/** At the first start and after a long stop of all nodes, the time in which nothing happened is skipped at once. */
async function skipQuietTime(db: Queryable, { fromMs, untilMs }: { fromMs: number; untilMs: number }): Promise<number> {
  if (fromMs + STEP_MS >= untilMs) return fromMs
  return Math.min(await findNextCallbackMs(db, fromMs), await findNextMarkMs(db, fromMs), untilMs)
}
