import { silentMeter } from '../../core/metrics/meter.ts'
import type { Transaction, TransactionOptions } from '../../db/database.ts'
import type { JobContext } from '../job-context.ts'
import { Settlement } from './settlement.ts'

/**
 * The only way to settle jobs: runs `work` in one transaction and, after the commit, counts the jobs that ended. The
 * database may run `work` again, with a new settlement: only the committed one counts.
 */
export async function settleJobs<Result>(
  context: Pick<JobContext, 'db' | 'clock' | 'ids' | 'types' | 'pushOptOut' | 'meter' | 'tracer'>,
  work: (tx: Transaction, settlement: Settlement) => Promise<Result>,
  options?: TransactionOptions,
): Promise<Result> {
  const { result, settlement } = await context.db.transaction(async (tx) => {
    const settlement = new Settlement(tx, { ...context, atMs: context.clock.now() })
    return { result: await work(tx, settlement), settlement }
  }, options)
  settlement.endSpans()
  countEnds(context, settlement)
  return result
}

function countEnds({ meter = silentMeter }: Pick<JobContext, 'meter'>, { ended, misfits }: Settlement): void {
  for (const misfit of misfits) meter.count('job_output_misfits_total', misfit)
  for (const { type, status, settled_by, created_at, finished_at } of ended) {
    meter.count('jobs_ended_total', { type, status, settled_by: settled_by ?? 'none' })
    meter.observe('job_duration_seconds', ((finished_at ?? created_at) - created_at) / 1_000, { type, status })
  }
}
