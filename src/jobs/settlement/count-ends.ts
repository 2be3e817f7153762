import { silentMeter } from '../../core/metrics/meter.ts'
import type { JobContext } from '../job-context.ts'
import type { Settled } from './settle.ts'

/** Counts the jobs a settlement ended; for after its commit, because a transaction may be done again, or not at all. */
export function countEnds({ meter = silentMeter }: Pick<JobContext, 'meter'>, settled: readonly Settled[]): void {
  for (const { job, ended } of settled) {
    if (!ended) continue
    const { type, status, settled_by, created_at, finished_at } = job
    meter.count('jobs_ended_total', { type, status, settled_by: settled_by ?? 'none' })
    meter.observe('job_duration_seconds', ((finished_at ?? created_at) - created_at) / 1_000, { type, status })
  }
}
