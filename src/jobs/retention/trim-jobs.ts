import { deleteEndedJobs } from './delete-jobs.ts'
import { findOldJobs, type OldJobs } from './delete-store.ts'
import type { TrimContext } from './trim-history.ts'

const DAY_MS = 86_400_000
/** On SQLite nothing else runs during a batch. */
const BATCH = 20

/** Deletes jobs that ended this long ago, with everything they hold. Unfinished jobs are never deleted. */
export async function trimJobs(
  { db, clock, log, meter }: TrimContext,
  { retentionDays, signal }: { retentionDays: number; signal: AbortSignal },
): Promise<void> {
  const nowMs = clock.now()
  const beforeMs = nowMs - retentionDays * DAY_MS
  let jobs = 0
  for (let after: string | undefined = ''; after !== undefined && !signal.aborted; ) {
    const old: OldJobs = await findOldJobs(db, { after, beforeMs, limit: BATCH })
    const deleted = await deleteEndedJobs(db, { ids: old.ended, atMs: nowMs, lock: 'retention:jobs' })
    if (deleted === null) break
    jobs += deleted.length
    if (deleted.length > 0) meter.count('history_trimmed_total', { kind: 'jobs' }, deleted.length)
    after = old.last
    await new Promise(setImmediate)
  }
  if (jobs > 0) log.info({ jobs }, 'jobs.trimmed')
}
