import type { Transaction } from '../../db/database.ts'
import { appendEvents } from '../../events/event-store.ts'
import { reachThresholds } from '../../usage/thresholds.ts'
import { countUsage, type JobUsage, lockFreeUsage, periodOf } from '../../usage/usage-store.ts'
import type { JobContext } from '../job-context.ts'
import type { SlimJob } from '../job-row.ts'

/** What an ended job adds to the usage of its owner, in the month in which it ended. */
export function usageOf(job: SlimJob, subject: string): JobUsage {
  return {
    subject,
    period: periodOf(job.finished_at ?? job.updated_at),
    type: job.type,
    input_tokens: job.input_tokens ?? 0,
    output_tokens: job.output_tokens ?? 0,
    total_tokens: job.total_tokens ?? 0,
  }
}

/** Locks the usage of the owners of these jobs without waiting, and returns the owners of whom it is locked elsewhere. */
export function lockUsageOf(tx: Transaction, jobs: readonly SlimJob[], atMs: number): Promise<Set<string>> {
  const keys = jobs.flatMap(({ created_by: subject, type }) => (subject === null ? [] : [{ subject, type }]))
  return lockFreeUsage(tx, { keys, period: periodOf(atMs) })
}

/** Counts ended jobs, and writes an event for each threshold that their owners reach with them, in the same transaction. */
export async function recordUsage(
  tx: Transaction,
  ended: readonly JobUsage[],
  { usageLimitRuns: defaultRuns, atMs }: Pick<JobContext, 'usageLimitRuns'> & { atMs: number },
): Promise<void> {
  await countUsage(tx, ended)
  for (const [period, group] of Map.groupBy(ended, (usage) => usage.period)) {
    const subjects = [...new Set(group.map(({ subject }) => subject))]
    await appendEvents(tx, await reachThresholds(tx, { subjects, period, defaultRuns, atMs }))
  }
}
