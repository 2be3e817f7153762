import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import type { Database } from '../../db/database.ts'
import { HISTORY_KINDS, type HistoryKind, trimHistoryPage } from './history-store.ts'

const DAY_MS = 86_400_000
/** Callbacks can be large, and on SQLite nothing else happens meanwhile. */
const PAGE = 100

export interface TrimContext {
  db: Database
  clock: Clock
  log: Log
  meter: Meter
}

/**
 * Forgets callbacks, timeline entries and notifications once they are this old and their job ended as long ago. Jobs,
 * their runs and their usage stay, so that whatever is heard of a job afterwards still changes nothing.
 */
export async function trimHistory(
  { db, clock, log, meter }: TrimContext,
  { retentionDays, signal }: { retentionDays: number; signal: AbortSignal },
): Promise<void> {
  const nowMs = clock.now()
  const beforeMs = nowMs - retentionDays * DAY_MS
  const trimmed: Record<HistoryKind, number> = { callbacks: 0, timeline: 0, notifications: 0 }
  for (const kind of HISTORY_KINDS) {
    for (let after: string | null = ''; after !== null && !signal.aborted; ) {
      const page = await trimHistoryPage(db, { kind, after, beforeMs, nowMs, limit: PAGE })
      if (page === null) break
      trimmed[kind] += page.trimmed
      if (page.trimmed > 0) meter.count('history_trimmed_total', { kind }, page.trimmed)
      after = page.last
      // On SQLite nothing here waits for anything, and requests want their turn.
      await new Promise(setImmediate)
    }
  }
  if (Object.values(trimmed).some((count) => count > 0)) log.info(trimmed, 'history.trimmed')
}
