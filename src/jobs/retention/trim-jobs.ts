import { deleteEndedJobs } from './delete-jobs.ts'
import { findOldJobs } from './delete-store.ts'
import type { TrimContext } from './trim-history.ts'

const DAY_MS = 86_400_000
/** Inputs and outputs can be large, and on SQLite nothing else runs during a page. */
const PAGE = 20

/** Deletes jobs that ended this long ago, with everything they hold. Unfinished jobs are never deleted. */
export async function trimJobs(
  { db, clock, log, meter }: TrimContext,
  { retentionDays, signal }: { retentionDays: number; signal: AbortSignal },
): Promise<void> {
  const nowMs = clock.now()
  const beforeMs = nowMs - retentionDays * DAY_MS
  let jobs = 0
  for (let after: string | undefined = ''; after !== undefined && !signal.aborted; ) {
    const page: { id: string; ended: number }[] = await findOldJobs(db, { after, beforeMs, limit: PAGE })
    const ids = page.filter(({ ended }) => ended === 1).map(({ id }) => id)
    const deleted = await deleteEndedJobs(db, { ids, atMs: nowMs, lock: 'retention:jobs' })
    if (deleted === null) break
    jobs += deleted.length
    if (deleted.length > 0) meter.count('history_trimmed_total', { kind: 'jobs' }, deleted.length)
    after = page.length < PAGE ? undefined : page.at(-1)?.id
    await new Promise(setImmediate)
  }
  if (jobs > 0) log.info({ jobs }, 'jobs.trimmed')
}
