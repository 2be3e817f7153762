import type { JsonPart } from '../../core/json/json-part.ts'
import { hasMoreValues } from '../../core/json/json-scan.ts'
import type { JsonText } from '../../core/json/json-text.ts'
import type { CallbackPayload } from '../../runtime/callback-payload.ts'
import type { RuntimeRun, ThreadState } from '../../runtime/runtime-types.ts'
import { fingerprintOf } from '../answers.ts'
import type { FailureCode, OutputMisfit, Verdict } from '../job.ts'
import type { JobType } from '../job-types.ts'
import { extractOutput, extractTokens } from '../output.ts'
import { MAX_CHECKED_VALUES } from '../schemas/document-schema.ts'

const MAX_CHECKED_OUTPUT = 1024 * 1024

interface JudgeOptions {
  type: JobType
  cancelRequested: boolean
  /** Whether there is a runtime to ask. */
  canAsk: boolean
  /** The job continues a conversation: its values contain data of earlier turns. */
  isLaterTurn: boolean
}

/**
 * The verdict from a callback alone. The runtime posts the same status for different ends (done or paused, cancelled or
 * paused). Such a callback proves nothing, so the runtime is asked. If no runtime is configured, the more likely end is
 * assumed.
 */
export function judgeCallback(
  callback: Pick<CallbackPayload, 'status' | 'values' | 'error'>,
  { type, cancelRequested, canAsk, isLaterTurn }: JudgeOptions,
): Verdict {
  switch (callback.status) {
    case 'success':
      return judgeSuccess(callback.values, { type, canAsk, isLaterTurn })
    case 'error':
      // The state may have the text, and the error must be the same for callbacks and checks.
      if (callback.error === null && canAsk) return { kind: 'unclear', reason: 'error without its text' }
      return { kind: 'failed', code: 'run_failed', message: callback.error ?? 'The run failed' }
    case 'timeout':
      if (callback.error === null && canAsk) return { kind: 'unclear', reason: 'timeout without its text' }
      return { kind: 'failed', code: 'run_timeout', message: callback.error ?? 'The run timed out' }
    case 'interrupted':
      if (cancelRequested || !canAsk) return { kind: 'cancelled' }
      return { kind: 'unclear', reason: 'interrupted: cancelled or paused?' }
    case 'rollback':
      return { kind: 'cancelled' }
    case 'running':
      return { kind: 'running' }
    case 'pending':
      return { kind: 'pending' }
    default:
      return { kind: 'unclear', reason: `unknown status ${JSON.stringify(callback.status.slice(0, 50))}` }
  }
}

function judgeSuccess(
  values: JsonPart | null,
  { type, canAsk, isLaterTurn }: Omit<JudgeOptions, 'cancelRequested'>,
): Verdict {
  // A graph that pauses posts `success` too, and may have written its output before the pause.
  if (canAsk && type.mayPause) return { kind: 'unclear', reason: 'success: done or paused?' }
  const completed = judgeOutput(values, { type, isLaterTurn })
  return completed ?? (canAsk ? { kind: 'unclear', reason: 'success without the output' } : outputMissing(type))
}

type Failure = Extract<Verdict, { kind: 'failed' }>
type Completion = Extract<Verdict, { kind: 'completed' }>

function judgeOutput(
  values: JsonPart | null,
  { type, isLaterTurn }: Pick<JudgeOptions, 'type' | 'isLaterTurn'>,
): Completion | null {
  const output = values === null ? undefined : extractOutput(type, values, { isLaterTurn })
  if (values === null || output === undefined) return null
  const misfit = misfitOf(output, type)
  return { kind: 'completed', output, tokens: extractTokens(type, values), ...(misfit && { misfit }) }
}

/** Large outputs are not checked, because that would block the event loop. */
function misfitOf(output: JsonText, { outputSchema }: JobType): OutputMisfit | null {
  if (outputSchema === null) return null
  if (output.text.length > MAX_CHECKED_OUTPUT || hasMoreValues(output.text, MAX_CHECKED_VALUES)) {
    return { reason: 'too_large', fault: 'output is too large to be checked' }
  }
  const fault = outputSchema.faultOf(output, 'output')
  return fault === null ? null : { reason: 'does_not_fit', fault }
}

/** The job's knowledge about the run. */
interface JudgedRun extends Omit<JudgeOptions, 'canAsk'> {
  /** Fingerprints of the questions that the run's input answered. */
  answered: readonly string[]
}

/**
 * The verdict from the runtime's answer. `state` is null for an active run, and for a run that left no state. A lagging
 * replica may show an older state: without the text of an error, without a question, with a question that is already
 * answered, or with an earlier output. A verdict that may come from such a state must be confirmed.
 */
export function judgeRun(run: Pick<RuntimeRun, 'status'>, state: ThreadState | null, judged: JudgedRun): Verdict {
  switch (run.status) {
    case 'pending':
      return { kind: 'pending' }
    case 'running':
      return { kind: 'running' }
    case 'success':
      return judgeState(state, judged)
    case 'error':
      return failure('run_failed', state?.error, 'The run failed')
    case 'timeout':
      return failure('run_timeout', state?.error, 'The run timed out')
    case 'interrupted':
      if (judged.cancelRequested) return { kind: 'cancelled' }
      return state && state.interrupts.length > 0
        ? pause(state, judged)
        : { kind: 'cancelled', confirm: 'question_missing' }
    case 'rollback':
      return { kind: 'cancelled' }
    default:
      return { kind: 'unclear', reason: `unknown status ${JSON.stringify(run.status.slice(0, 50))}` }
  }
}

function failure(code: FailureCode, text: string | null | undefined, otherwise: string): Failure {
  if (text) return { kind: 'failed', code, message: text }
  return { kind: 'failed', code, message: otherwise, confirm: 'error_text_missing' }
}

function pause({ interrupts }: ThreadState, { answered }: JudgedRun): Verdict {
  // A question may be many megabytes: its fingerprint is computed only if there is one to compare.
  const isNew = interrupts.some((question) => answered.length === 0 || !answered.includes(fingerprintOf(question)))
  return isNew
    ? { kind: 'awaiting_input', interrupts }
    : { kind: 'awaiting_input', interrupts, confirm: 'unfinished_step' }
}

function judgeState(state: ThreadState | null, judged: JudgedRun): Verdict {
  const { type } = judged
  const completed = judgeOutput(state?.values ?? null, judged)
  const paused = state !== null && !state.isDone
  // The same rule as for callbacks: without `may_pause`, the output decides.
  if (paused && (type.mayPause || completed === null)) return pause(state, judged)
  if (completed === null)
    return { ...outputMissing(type), confirm: state === null ? 'state_missing' : 'output_missing' }
  // A step without a question: this may be an older state, with a draft or with the output of the turn before.
  const isUnfinished = paused && state.interrupts.length === 0
  return isUnfinished ? { ...completed, confirm: 'unfinished_step' } : completed
}

function outputMissing(type: JobType): Failure {
  const what = type.outputKey === null ? 'an assistant message' : `the output ${JSON.stringify(type.outputKey)}`
  return { kind: 'failed', code: 'output_missing', message: `The run ended without ${what}` }
}

/** The thread was deleted, and with it the question that an answer was meant for. */
export const THREAD_GONE: Failure = {
  kind: 'failed',
  code: 'run_lost',
  message: 'The runtime no longer knows the thread',
  confirm: 'thread_missing',
}

/** The thread is there, but none of the checkpoints of its earlier runs. */
export const CHECKPOINT_GONE: Failure = {
  kind: 'failed',
  code: 'run_lost',
  message: 'The runtime no longer knows the state that this run continues',
  confirm: 'checkpoint_missing',
}

export const ANSWER_NOT_APPLIED: Failure = {
  kind: 'failed',
  code: 'answer_not_applied',
  message: 'The answer could not be applied: the question is not open any more',
  confirm: 'question_closed',
}

export const ANSWER_EXPIRED: Failure = {
  kind: 'failed',
  code: 'answer_expired',
  message: 'The question was not answered in time',
}

export function deadlineExceeded(): Verdict {
  return { kind: 'failed', code: 'deadline_exceeded', message: 'The run did not end in time' }
}

/** The verdict from the status alone, before the state is fetched. */
export function judgeStatus(status: string): Verdict {
  if (status === 'running' || status === 'pending') return { kind: status }
  return { kind: 'unclear', reason: 'the state was not fetched' }
}

/** Whether the state must be fetched to judge a run of this status. */
export function needsState(status: string): boolean {
  return status === 'success' || status === 'error' || status === 'timeout' || status === 'interrupted'
}
