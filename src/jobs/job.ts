import type { Json } from '../core/json.ts'
import type { Traces } from '../runtime/runtime-types.ts'

/** A job's states. `processing` and `generating` may be stuck and are looked after; the last three are final. */
export const JOB_STATUSES = ['processing', 'generating', 'awaiting_input', 'completed', 'failed', 'cancelled'] as const
export type JobStatus = (typeof JOB_STATUSES)[number]

export type TerminalStatus = 'completed' | 'failed' | 'cancelled'

/** Who noticed first. */
export type Via = 'callback' | 'read' | 'sweep'

/** What is known of the run a job waits for. The first four end the wait; the last two do not. */
export type Verdict =
  | { kind: 'completed'; output: Json; tokens: Tokens }
  | { kind: 'failed'; code: FailureCode; message: string }
  | { kind: 'cancelled' }
  | { kind: 'awaiting_input'; interrupts: readonly Json[] }
  | { kind: 'running' }
  | { kind: 'pending' }
  /** Not enough to go by: somebody has to ask the runtime. */
  | { kind: 'unclear'; reason: string }

/** What one look at a run, or one callback, says about it. */
export interface RunObservation {
  /** Null when there is no run (the job was cancelled before its start, for example). */
  runId: string | null
  verdict: Verdict
  traces: Traces | null
}

export type FailureCode =
  | 'run_failed'
  | 'run_timeout'
  | 'run_lost'
  | 'output_missing'
  | 'output_invalid'
  | 'start_rejected'
  | 'deadline_exceeded'

export interface Tokens {
  input: number
  output: number
  total: number
}

export const NO_TOKENS: Tokens = { input: 0, output: 0, total: 0 }

/** A job as it is stored. */
export type JobRow = {
  id: string
  type: string
  status: JobStatus
  input: string | null
  output: string | null
  error_code: string | null
  error_message: string | null
  project_id: string | null
  created_by: string | null
  thread_id: string
  run_id: string | null
  trace_id: string | null
  tracer_trace_id: string | null
  settled_by: Via | null
  run_seq: number
  start_attempts: number
  resume_input: string | null
  interrupts: string | null
  cancel_requested_at: number | null
  checked_at: number | null
  next_check_at: number | null
  check_attempts: number
  last_error: string | null
  lease_token: string | null
  lease_until: number | null
  deadline_at: number
  created_at: number
  started_at: number | null
  finished_at: number | null
  updated_at: number
}

export function isTerminal(status: JobStatus): status is TerminalStatus {
  return status === 'completed' || status === 'failed' || status === 'cancelled'
}

/** The two states in which a job may be stuck. */
export function isUnfinished(status: JobStatus): boolean {
  return status === 'processing' || status === 'generating'
}
