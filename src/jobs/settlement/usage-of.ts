import { type JobUsage, periodOf } from '../../usage/usage-store.ts'
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
