import type { JsonText } from '../core/json/json-text.ts'
import type { EventType } from '../events/event-store.ts'
import type { Traces } from '../runtime/runtime-types.ts'

interface StatusTraits {
  /** The job has ended. No update changes it any more. Every other status is "unfinished". */
  terminal: boolean
  /** A run is expected to be active. The runtime is asked about it on every read, by the sweep and for open streams. */
  watched: boolean
  /** The event that clients get when a job reaches the status. */
  event: EventType
  /** A job type may define a push notification for the status. */
  notifies: boolean
}

/** Every status of a job. Types, SQL lists, events, notification texts and the API description derive from this table. */
export const STATUSES = {
  processing: { terminal: false, watched: true, event: 'job.updated', notifies: false },
  generating: { terminal: false, watched: true, event: 'job.updated', notifies: false },
  awaiting_input: { terminal: false, watched: false, event: 'job.awaiting_input', notifies: true },
  completed: { terminal: true, watched: false, event: 'job.completed', notifies: true },
  failed: { terminal: true, watched: false, event: 'job.failed', notifies: true },
  cancelled: { terminal: true, watched: false, event: 'job.cancelled', notifies: true },
} as const satisfies Record<string, StatusTraits>

export type JobStatus = keyof typeof STATUSES
type StatusWith<Trait extends 'terminal' | 'watched' | 'notifies'> = {
  [Status in JobStatus]: (typeof STATUSES)[Status][Trait] extends true ? Status : never
}[JobStatus]
type TerminalStatus = StatusWith<'terminal'>
type WatchedStatus = StatusWith<'watched'>
export type NotifiedStatus = StatusWith<'notifies'>

export const JOB_STATUSES = Object.keys(STATUSES) as JobStatus[]
export const TERMINAL_STATUSES = JOB_STATUSES.filter(isTerminal)
export const UNFINISHED_STATUSES = JOB_STATUSES.filter((status) => !isTerminal(status))
export const WATCHED_STATUSES = JOB_STATUSES.filter(isWatched)
export const NOTIFIED_STATUSES = JOB_STATUSES.filter(isNotified)

export function isTerminal(status: JobStatus): status is TerminalStatus {
  return STATUSES[status].terminal
}

export function isWatched(status: JobStatus): status is WatchedStatus {
  return STATUSES[status].watched
}

export function isNotified(status: JobStatus): status is NotifiedStatus {
  return STATUSES[status].notifies
}

/** The hints that can first show that a run has ended. */
export const VIAS = ['callback', 'read', 'sweep'] as const
export type Via = (typeof VIAS)[number]

/** Why a job failed, as clients read it in `error.code`. */
export const FAILURE_CODES = [
  'run_failed',
  'run_timeout',
  'run_lost',
  'answer_not_applied',
  'answer_expired',
  'output_missing',
  'output_invalid',
  'start_rejected',
  'deadline_exceeded',
] as const
export type FailureCode = (typeof FAILURE_CODES)[number]

/**
 * What is known about a job's run. A kind that is also a status moves the job to that status; the others do not end the
 * job.
 */
export type Verdict =
  /**
   * `misfit`: how the output differs from the type's schema, or why it was not checked. `confirm`: the verdict counts only
   * if the same evidence is seen again, at least 10 s later, with no answer between that contradicts it.
   */
  | { kind: 'completed'; output: JsonText; tokens: Tokens; misfit?: OutputMisfit; confirm?: Evidence }
  | { kind: 'failed'; code: FailureCode; message: string; confirm?: Evidence }
  | { kind: 'cancelled'; confirm?: Evidence }
  | { kind: 'awaiting_input'; interrupts: readonly JsonText[]; confirm?: Evidence }
  /** Another client of the runtime answered the questions with this run. `answered`: fingerprints of the questions. */
  | { kind: 'continued_elsewhere'; runId: string; answered: readonly string[]; confirm?: Evidence }
  /** The questions were closed without a run: another client changed the state. `interrupts`: the open ones, if any. */
  | { kind: 'answered_elsewhere'; interrupts: readonly JsonText[]; confirm: Evidence }
  | { kind: 'running' }
  | { kind: 'pending' }
  /** The callback or answer does not prove anything: the runtime must be asked. */
  | { kind: 'unclear'; reason: string }

/**
 * What an answer of the runtime showed, and a lagging replica may show wrongly. Evidence of one kind never confirms
 * evidence of another kind, even if both lead to the same end of the job.
 */
export type Evidence =
  | 'run_missing'
  | 'thread_missing'
  | 'checkpoint_missing'
  | 'output_missing'
  /** The run ended, and none of the checkpoints is its own. */
  | 'state_missing'
  | 'error_text_missing'
  /** The run was interrupted, and its state has no question. */
  | 'question_missing'
  /** The questions that the job asks are not open any more. */
  | 'question_closed'
  /** The state has no new question, but an unfinished step. */
  | 'unfinished_step'

/** An output that does not match its schema is kept. */
export interface OutputMisfit {
  reason: 'does_not_fit' | 'too_large'
  fault: string
}

/** Whether a job with this verdict has ended. */
export function isEnd(kind: Verdict['kind']): kind is TerminalStatus {
  return TERMINAL_STATUSES.some((status) => status === kind)
}

/** The information about a run from one answer of the runtime or one callback. */
export interface RunObservation {
  /** Null when there is no run, for example because the job was cancelled before its start. */
  runId: string | null
  verdict: Verdict
  traces: Traces | null
  /** The end that a callback reported, which the runtime never confirmed. The timeline says so. */
  unconfirmed?: true
}

export interface Tokens {
  input: number
  output: number
  total: number
}

export const NO_TOKENS: Tokens = { input: 0, output: 0, total: 0 }
