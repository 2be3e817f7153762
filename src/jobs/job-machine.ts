import type { JobStatus, Verdict } from './job.ts'

/** What is learned of its run, or what a person asks for. */
export type JobMove = Verdict['kind'] | 'resumed'

/**
 * Every way a job moves, as a table: what is not listed does not happen. Terminal rows are empty, so nothing late,
 * doubled or out of order ever moves a finished job.
 */
const MOVES: Record<JobStatus, Partial<Record<JobMove, JobStatus>>> = {
  processing: {
    running: 'generating',
    awaiting_input: 'awaiting_input',
    completed: 'completed',
    failed: 'failed',
    cancelled: 'cancelled',
  },
  generating: {
    awaiting_input: 'awaiting_input',
    completed: 'completed',
    failed: 'failed',
    cancelled: 'cancelled',
  },
  // Left by resume (a new run) or cancel; the end of its own run is known already.
  awaiting_input: { resumed: 'processing', cancelled: 'cancelled' },
  completed: {},
  failed: {},
  cancelled: {},
}

/** Where the move takes the job, or null when it changes nothing. */
export function nextStatus(from: JobStatus, move: JobMove): JobStatus | null {
  return MOVES[from][move] ?? null
}
