import type { Job, JobStatus } from '@project-api/client'

export type { Job, JobStatus }
/** A job as a list shows it. */
export type JobRow = Omit<Job, 'input' | 'output'> & { id: string }

/** Whether a job in this status has ended, in the order of the screen. A status without a row does not compile. */
const HAS_ENDED: Record<JobStatus, boolean> = {
  processing: false,
  generating: false,
  awaiting_input: false,
  completed: true,
  failed: true,
  cancelled: true,
}

export const STATUSES = Object.keys(HAS_ENDED) as JobStatus[]

export function hasEnded(status: JobStatus): boolean {
  return HAS_ENDED[status]
}

/** Why a job failed. A code without a row does not compile. */
const FAILURES: Record<NonNullable<Job['error']>['code'], true> = {
  run_failed: true,
  run_timeout: true,
  run_lost: true,
  answer_not_applied: true,
  answer_expired: true,
  output_missing: true,
  output_invalid: true,
  start_rejected: true,
  deadline_exceeded: true,
}

export const FAILURE_CODES = Object.keys(FAILURES)

export interface JobCounts {
  counts: Record<JobStatus, number>
  at_least: string[]
}

export interface TimelineEntry {
  id: string
  at: string
  kind: string
  via: string | null
  detail: Record<string, unknown>
  times: number
  last_at: string
}

export interface OperationFailure {
  id: string
  error: string
}

export interface Operation {
  id: string
  action: string
  state: string
  total: number
  done: number
  failed: number
  failures?: OperationFailure[]
  skipped?: number
  skips?: { id: string; reason: string }[]
  /** Of a dry run: jobs that were retried already, and are not in `total`. */
  retried?: number
}
