import type { JsonPart } from '../../core/json/json-part.ts'
import type { CallbackPayload } from '../../runtime/callback-payload.ts'
import type { RuntimeRun, ThreadState } from '../../runtime/runtime-types.ts'
import type { Verdict } from '../job.ts'
import type { JobType } from '../job-types.ts'
import { extractOutput, extractTokens } from './output.ts'

/**
 * What a callback alone proves. The runtime posts the same status for different ends (done or paused, cancelled or
 * paused). Such a callback proves nothing, and the runtime is asked. Without a runtime, the likelier end is assumed.
 */
export function judgeCallback(
  callback: Pick<CallbackPayload, 'status' | 'values' | 'error'>,
  { type, cancelRequested, canAsk }: { type: JobType; cancelRequested: boolean; canAsk: boolean },
): Verdict {
  switch (callback.status) {
    case 'success':
      return judgeSuccess(callback.values, { type, canAsk })
    case 'error':
      // The state may have the text, and a failure reads the same on every path.
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

function judgeSuccess(values: JsonPart | null, { type, canAsk }: { type: JobType; canAsk: boolean }): Verdict {
  // A graph that pauses posts `success` too, and may have written its output before the pause.
  if (canAsk && type.mayPause) return { kind: 'unclear', reason: 'success: done or paused?' }
  const completed = judgeOutput(values, type)
  return completed ?? (canAsk ? { kind: 'unclear', reason: 'success without the output' } : outputMissing(type))
}

type Failure = Extract<Verdict, { kind: 'failed' }>

function judgeOutput(values: JsonPart | null, type: JobType): Verdict | null {
  const output = values === null ? undefined : extractOutput(type, values)
  return values === null || output === undefined
    ? null
    : { kind: 'completed', output, tokens: extractTokens(type, values) }
}

/** What the runtime's answer proves. `state` is null for an active run, and for a run that left none. */
export function judgeRun(run: RuntimeRun, state: ThreadState | null, type: JobType): Verdict {
  switch (run.status) {
    case 'pending':
      return { kind: 'pending' }
    case 'running':
      return { kind: 'running' }
    case 'success':
      return judgeState(state, type)
    case 'error':
      return { kind: 'failed', code: 'run_failed', message: state?.error ?? 'The run failed' }
    case 'timeout':
      return { kind: 'failed', code: 'run_timeout', message: state?.error ?? 'The run timed out' }
    case 'interrupted':
      return state && state.interrupts.length > 0
        ? { kind: 'awaiting_input', interrupts: state.interrupts }
        : { kind: 'cancelled' }
    case 'rollback':
      return { kind: 'cancelled' }
    default:
      return { kind: 'unclear', reason: `unknown status ${JSON.stringify(run.status.slice(0, 50))}` }
  }
}

function judgeState(state: ThreadState | null, type: JobType): Verdict {
  const completed = judgeOutput(state?.values ?? null, type)
  const paused = state !== null && (state.next.length > 0 || state.interrupts.length > 0)
  // The same answer as to the callback: without `may_pause`, the output decides.
  if (paused && (type.mayPause || completed === null)) return { kind: 'awaiting_input', interrupts: state.interrupts }
  return completed ?? { ...outputMissing(type), twice: true }
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
}

export const ANSWER_NOT_APPLIED: Failure = {
  kind: 'failed',
  code: 'answer_not_applied',
  message: 'The answer could not be applied: the question is not open any more',
}

export function deadlineExceeded(): Verdict {
  return { kind: 'failed', code: 'deadline_exceeded', message: 'The run did not end in time' }
}

/** Whether the state must be fetched to judge a run of this status. */
export function needsState(status: string): boolean {
  return status === 'success' || status === 'error' || status === 'timeout' || status === 'interrupted'
}
