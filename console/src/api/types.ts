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

export interface Operation {
  id: string
  action: string
  state: string
  total: number
  done: number
  failed: number
  failures?: { id: string; error: string }[]
}
