import type { JobStatus, Verdict } from './job.ts'

/**
 * A verdict about the job's run, an answer to its question, or `given_up`: this service found that the job cannot continue.
 */
export type JobMove = Verdict['kind'] | 'resumed' | 'given_up'

/**
 * Every transition of a job. A move that is not listed changes nothing. Terminal rows are empty, so a late, repeated or
 * reordered update never moves a finished job.
 */
const MOVES: Record<JobStatus, Partial<Record<JobMove, JobStatus>>> = {
  processing: {
    running: 'generating',
    awaiting_input: 'awaiting_input',
    // The run paused, and another client answered its question before the service saw it.
    continued_elsewhere: 'generating',
    completed: 'completed',
    failed: 'failed',
    given_up: 'failed',
    cancelled: 'cancelled',
  },
  generating: {
    awaiting_input: 'awaiting_input',
    continued_elsewhere: 'generating',
    completed: 'completed',
    failed: 'failed',
    given_up: 'failed',
    cancelled: 'cancelled',
  },
  // The run has ended. Only an answer (here or elsewhere), a cancel request or the loss of the thread moves the job.
  awaiting_input: {
    resumed: 'processing',
    continued_elsewhere: 'generating',
    answered_elsewhere: 'awaiting_input',
    given_up: 'failed',
    cancelled: 'cancelled',
  },
  completed: {},
  failed: {},
  cancelled: {},
}

/** The status after the move. Null when the move changes nothing. */
export function nextStatus(from: JobStatus, move: JobMove): JobStatus | null {
  return MOVES[from][move] ?? null
}
