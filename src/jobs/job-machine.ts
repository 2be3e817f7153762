import type { JobStatus, Verdict } from './job.ts'

/** A verdict about the job's run, or an answer to its question. */
export type JobMove = Verdict['kind'] | 'resumed'

/**
 * Every transition of a job. A move that is not listed changes nothing. Terminal rows are empty, so a late, repeated or
 * reordered update never moves a finished job.
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
  // Its run has ended already: only a resume (with a new run) or a cancel request moves it.
  awaiting_input: { resumed: 'processing', cancelled: 'cancelled' },
  completed: {},
  failed: {},
  cancelled: {},
}

/** The status after the move. Null when the move changes nothing. */
export function nextStatus(from: JobStatus, move: JobMove): JobStatus | null {
  return MOVES[from][move] ?? null
}
