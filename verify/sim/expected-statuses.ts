import type { JobStatus } from '../../src/jobs/job.ts'

interface ExpectedStatus {
  isFinal: boolean
  /** The service asks the runtime about the run. */
  isActive: boolean
  /** The event of a transition to the status. */
  event: string
  /** The statuses that may follow. */
  next: readonly JobStatus[]
}

/**
 * What the simulation expects of each status. Written by hand: the service's own table may be wrong. A status without a row
 * does not compile.
 */
export const EXPECTED: Record<JobStatus, ExpectedStatus> = {
  processing: {
    isFinal: false,
    isActive: true,
    event: 'job.updated',
    next: ['generating', 'awaiting_input', 'completed', 'failed', 'cancelled'],
  },
  generating: {
    isFinal: false,
    isActive: true,
    event: 'job.updated',
    next: ['awaiting_input', 'completed', 'failed', 'cancelled'],
  },
  awaiting_input: {
    isFinal: false,
    isActive: false,
    event: 'job.awaiting_input',
    next: ['processing', 'generating', 'failed', 'cancelled'],
  },
  completed: { isFinal: true, isActive: false, event: 'job.completed', next: [] },
  failed: { isFinal: true, isActive: false, event: 'job.failed', next: [] },
  cancelled: { isFinal: true, isActive: false, event: 'job.cancelled', next: [] },
}

export const FINAL_STATUSES = (Object.keys(EXPECTED) as JobStatus[]).filter(isFinal)

export function isFinal(status: JobStatus): boolean {
  return EXPECTED[status].isFinal
}
