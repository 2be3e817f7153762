import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import type { Database } from '../../db/database.ts'
import type { TrimmedPage, TrimRange } from '../../db/trim-page.ts'
import { trimNotifications } from '../../push/trim-notifications.ts'
import { endedBefore, trimCallbacks, trimTimeline } from './history-store.ts'

const DAY_MS = 86_400_000
/** On SQLite nothing else runs during a page. A page of large callbacks is shorter. */
const PAGE = 100

type TrimOnePage = (db: Database, range: TrimRange) => Promise<TrimmedPage | null>

/** The history of a job beside the job itself, its runs and its usage, in the order of deletion. */
const HISTORY: Record<'callbacks' | 'timeline' | 'notifications', TrimOnePage> = {
  callbacks: trimCallbacks,
  timeline: trimTimeline,
  notifications: (db, range) => trimNotifications(db, range, endedBefore),
}
type HistoryKind = keyof typeof HISTORY

export interface TrimContext {
  db: Database
  clock: Clock
  log: Log
  meter: Meter
}

/**
 * Deletes callbacks, timeline entries and notifications if both they and the end of their job are this old. Jobs, their
 * runs and their usage stay, so that a late callback still changes nothing.
 */
export async function trimHistory(
  { db, clock, log, meter }: TrimContext,
  { retentionDays, signal }: { retentionDays: number; signal: AbortSignal },
): Promise<void> {
  const nowMs = clock.now()
  const beforeMs = nowMs - retentionDays * DAY_MS
  const trimmed: Record<HistoryKind, number> = { callbacks: 0, timeline: 0, notifications: 0 }
  for (const kind of Object.keys(HISTORY) as HistoryKind[]) {
    for (let after: string | null = ''; after !== null && !signal.aborted; ) {
      const page: TrimmedPage | null = await HISTORY[kind](db, { after, beforeMs, nowMs, limit: PAGE })
      if (page === null) break
      trimmed[kind] += page.trimmed
      if (page.trimmed > 0) meter.count('history_trimmed_total', { kind }, page.trimmed)
      after = page.last
      // On SQLite a page never waits. Yielding lets requests run before the next page.
      await new Promise(setImmediate)
    }
  }
  if (Object.values(trimmed).some((count) => count > 0)) log.info(trimmed, 'history.trimmed')
}
