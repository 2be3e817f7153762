import { JsonText } from '../../core/json/json-text.ts'
import { NO_VALUES } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import {
  type RuntimeRefusal,
  type RuntimeRun,
  RuntimeUnavailable,
  type StartRequest,
} from '../../runtime/runtime-types.ts'
import { isStillOpen } from '../answers.ts'
import type { RunObservation } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import type { JobType } from '../job-types.ts'
import { ANSWER_NOT_APPLIED, deadlineExceeded, THREAD_GONE } from '../settlement/verdict.ts'
import { countStartAttempt } from './lease-store.ts'

/** Cut off mid-request, by the timeout or by a shutdown: the run may still be created, so wait before concluding that it was not. */
export class AbortedStart extends RuntimeUnavailable {}

interface RunStart {
  job: JobRow
  type: JobType
  fresh: boolean
  signal: AbortSignal
}

/**
 * Starts a job's run exactly once. An attempt is durable before the runtime is called, and every later attempt first
 * looks for the run of an earlier one. Each job has its own thread, on which the runtime refuses a second active run.
 */
export async function startJobRun(
  context: JobContext,
  runtime: RuntimeClient,
  start: RunStart,
): Promise<RunObservation> {
  const { job, signal } = start
  // A new job is stored with its first attempt counted. Only the process that stored it knows that it was not made yet.
  if (!start.fresh) {
    const found = await findOwnRun(runtime, job, signal)
    if (found) return started(found)
  }
  if (job.cancel_requested_at !== null) return { runId: null, verdict: { kind: 'cancelled' }, traces: null }
  if (context.clock.now() >= job.deadline_at) return { runId: null, verdict: deadlineExceeded(), traces: null }
  if (!start.fresh && job.run_seq > 1) {
    const unanswerable = await findWhyUnanswerable(runtime, job, signal)
    if (unanswerable) return unanswerable
  }
  if (!start.fresh && !(await countStartAttempt(context.db, { id: job.id, token: job.lease_token ?? '' }))) {
    throw new RuntimeUnavailable('another worker holds this job, or it was cancelled')
  }
  if (job.run_seq === 1) {
    const refused = await runtime.ensureThread(job.thread_id, { job_id: job.id }, signal)
    if (refused) return rejected(refused)
  }
  return startOn(context, runtime, start)
}

async function startOn(
  context: JobContext,
  runtime: RuntimeClient,
  { job, type, signal }: RunStart,
): Promise<RunObservation> {
  const request = {
    threadId: job.thread_id,
    assistantId: type.assistantId,
    payload: payloadOf(job),
    metadata: { job_id: job.id, run_seq: job.run_seq },
  }
  const webhook = context.callbackUrl(job)
  const start = async (url: string | null) => {
    // If this process was suspended meanwhile, another one may have taken over, started the run and seen it end.
    if (context.clock.now() + runtime.timeoutMs > (job.lease_until ?? 0)) {
      throw new RuntimeUnavailable('the lease would not outlast the start')
    }
    const sinceMs = context.clock.now()
    try {
      return await runtime.startRun({ ...request, webhook: url }, signal)
    } catch (error) {
      const isCutOff = signal.aborted || context.clock.now() - sinceMs >= runtime.timeoutMs
      throw isCutOff ? new AbortedStart('the start was cut off mid-request', { cause: error }) : error
    }
  }
  let outcome = await start(webhook)
  if ('refused' in outcome && outcome.refused.status === 422 && webhook !== null) {
    // The runtime refuses the callback URL but can still run the job: the sweep asks for the result.
    context.log.warn({ jobId: job.id, reason: outcome.refused.message }, 'job.callback_url_refused')
    outcome = await start(null)
  }
  if ('started' in outcome) return started(outcome.started)
  if ('refused' in outcome) return rejected(outcome.refused)
  const found = await findOwnRun(runtime, job, signal)
  if (found) return started(found)
  throw new RuntimeUnavailable('the thread is busy with another run')
}

/** Whether the questions are still open. A fresh resume has just read the state; a repeated one must read it again. */
async function findWhyUnanswerable(
  runtime: RuntimeClient,
  job: JobRow,
  signal: AbortSignal,
): Promise<RunObservation | null> {
  const state = await runtime.fetchNewestState(job.thread_id, NO_VALUES, signal)
  if (state === null) return { runId: null, verdict: { ...THREAD_GONE, twice: true }, traces: null }
  const questions = JSON.parse(job.resume_questions ?? '[]') as string[]
  if (isStillOpen(questions, state)) return null
  return { runId: null, verdict: { ...ANSWER_NOT_APPLIED, twice: true }, traces: null }
}

async function findOwnRun(runtime: RuntimeClient, job: JobRow, signal: AbortSignal): Promise<RuntimeRun | undefined> {
  const runs = await runtime.listRuns(job.thread_id, signal)
  return runs.find((run) => run.metadata.job_id === job.id && run.metadata.run_seq === job.run_seq)
}

function started(run: RuntimeRun): RunObservation {
  return { runId: run.runId, verdict: { kind: 'pending' }, traces: run.traces }
}

function rejected({ status, message }: RuntimeRefusal): RunObservation {
  const text = `The runtime refused to start the run (${status}): ${message}`
  return { runId: null, verdict: { kind: 'failed', code: 'start_rejected', message: text }, traces: null }
}

function payloadOf(job: JobRow): StartRequest['payload'] {
  if (job.run_seq === 1) return { input: new JsonText(job.input ?? 'null') }
  const command = new JsonText(job.resume_input ?? 'null')
  return command.text === 'null' ? { input: command } : { command }
}
