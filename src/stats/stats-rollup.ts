import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { Database } from '../db/database.ts'
import { type EventRow, findHead, readEvents } from '../events/event-store.ts'
import { countCallbacks, findNextCallbackMs } from '../jobs/callbacks/callback-list-store.ts'
import { isTerminal, type JobStatus } from '../jobs/job.ts'
import { findTimesToTruth } from '../jobs/settlement/time-to-truth.ts'
import { countMarks, findNextMarkMs } from '../push/outbox/delivery-list-store.ts'
import { CALLBACK, classOf, END, PUSH, statsName, TRUTH } from './stats-names.ts'
import { addCounts, findCursor, type StatsCount } from './stats-store.ts'

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
  const from = await findCursor(db, 'events')
  const head = await findHead(db)
  if (head.seq <= from) return false
  const events = await readEvents(db, { after: from, upTo: head.seq, filter: {}, limit: EVENTS_PER_STEP })
  const isAll = events.length < EVENTS_PER_STEP
  const to = isAll ? head.seq : (events.at(-1)?.seq ?? head.seq)
  return (await addCounts(db, { source: 'events', from, to }, await countsOfEnds(db, events))) && !isAll
}

async function countsOfEnds(db: Database, events: readonly EventRow[]): Promise<StatsCount[]> {
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
  const from = await findCursor(db, 'time')
  const untilMs = nowMs - SETTLING_MS
  const to = Math.min((await skipQuietTime(db, { fromMs: from, untilMs })) + STEP_MS, untilMs)
  if (to <= from) return false
  const range = { fromMs: from, toMs: to }
  const callbacks = await countCallbacks(db, range)
  const marks = await countMarks(db, range)
  const counts = [
    ...callbacks.map(({ minute, outcome, count }) => ({ minute, count, name: statsName(CALLBACK, outcome) })),
    ...marks.map(({ minute, state, count }) => ({ minute, count, name: statsName(PUSH, state) })),
  ].map(({ minute, name, count }) => ({ atMs: minute * 60_000, name, count }))
  const isBehind = to < untilMs
  if (counts.length === 0 && !isBehind && to - from < IDLE_MS) return false
  return (await addCounts(db, { source: 'time', from, to }, counts)) && isBehind
}

/** At the first start and after a long stop of all nodes, the time in which nothing happened is skipped at once. */
async function skipQuietTime(db: Database, { fromMs, untilMs }: { fromMs: number; untilMs: number }): Promise<number> {
  if (fromMs + STEP_MS >= untilMs) return fromMs
  return Math.min(await findNextCallbackMs(db, fromMs), await findNextMarkMs(db, fromMs), untilMs)
}
