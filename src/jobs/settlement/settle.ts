import { silentMeter } from '../../core/metrics/meter.ts'
import type { Transaction, TransactionOptions } from '../../db/database.ts'
import type { JobContext } from '../job-context.ts'
import { Settlement } from './settlement.ts'

type SettlingContext = Pick<
  JobContext,
  'clock' | 'random' | 'ids' | 'types' | 'pushOptOut' | 'usageLimitRuns' | 'meter' | 'tracer'
>

/**
 * The only way to settle jobs: runs `work` in one transaction and, after the commit, counts the jobs that ended. The
 * database may run `work` again, with a new settlement: only the committed one counts.
 */
export async function settleJobs<Result>(
  context: SettlingContext & Pick<JobContext, 'db'>,
  work: (tx: Transaction, settlement: Settlement) => Promise<Result>,
  options?: TransactionOptions,
): Promise<Result> {
  const { result, onCommitted } = await context.db.transaction(async (tx) => {
    const { settlement, onCommitted } = settleWithin(context, tx)
    return { result: await work(tx, settlement), onCommitted }
  }, options)
  onCommitted()
  return result
}

/** A settlement in a transaction of the caller, who calls `onCommitted` after the commit. */
export function settleWithin(
  context: SettlingContext,
  tx: Transaction,
): { settlement: Settlement; onCommitted: () => void } {
  const settlement = new Settlement(tx, { ...context, atMs: context.clock.now() })
  const onCommitted = () => {
    settlement.endSpans()
    countEnds(context, settlement)
  }
  return { settlement, onCommitted }
}

function countEnds(
  { meter = silentMeter, clock }: Pick<JobContext, 'meter' | 'clock'>,
  { ended, misfits, extraRuns }: Settlement,
): void {
  if (extraRuns.length > 0) meter.count('extra_runs_total', undefined, extraRuns.length)
  for (const misfit of misfits) meter.count('job_output_misfits_total', misfit)
  for (const { type, status, settled_by, run_at, created_at, finished_at } of ended) {
    // `run_at` is a time of the calendar; the others are the service's.
    const sinceMs = Math.max(created_at, (run_at ?? 0) + clock.now() - clock.calendar())
    meter.count('jobs_ended_total', { type, status, settled_by: settled_by ?? 'none' })
    meter.observe('job_duration_seconds', Math.max(0, (finished_at ?? sinceMs) - sinceMs) / 1_000, { type, status })
  }
}
