import { JsonText } from '../../core/json/json-text.ts'
import { CHECK_ERRORS, RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { NO_VALUES } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import type { RuntimeRefusal, RuntimeRun, StartRequest } from '../../runtime/runtime-types.ts'
import { isStillOpen } from '../answers.ts'
import type { RunObservation } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { hasEarlierRun } from '../job-store.ts'
import { type JobType, streamModesOf } from '../job-types.ts'
import { ANSWER_NOT_APPLIED, deadlineExceeded, THREAD_GONE } from '../settlement/verdict.ts'
import { countStartAttempt, findStartDocuments, type LeasedJob, type StartDocuments } from './lease-store.ts'
import type { CheckOutcome, FailedCheck } from './record-check.ts'

/** How long after an attempt the start may be repeated: a request that was cut off may still arrive. */
const REPEAT_AFTER_MS = 10_000

export interface RunStart {
  /** Leased by this process. */
  job: LeasedJob
  type: JobType
  /** Given when this process has just written the job, so that no earlier attempt to start it can exist. */
  fresh?: StartDocuments
  /** Whether this process holds its leases: other nodes take them when its heartbeat fails for too long. */
  holdsLeases: () => boolean
  signal: AbortSignal
}

/**
 * Starts a job's run exactly once. The attempt is recorded durably before the runtime is called. It is repeated only if the
 * thread was seen twice without its run, and at least 10 s later. Runs are identified by job and number: other runs on the
 * thread are earlier turns. On one thread the runtime refuses a second active run.
 */
export async function startJobRun(context: JobContext, runtime: RuntimeClient, start: RunStart): Promise<CheckOutcome> {
  const { job, fresh, signal } = start
  const nowMs = context.clock.now()
  // A new job is stored with its first attempt counted. Only the process that stored it knows that this attempt was not
  // made yet.
  const isRepeated = fresh === undefined && job.start_attempts > 0
  if (isRepeated) {
    const found = await findOwnRun(runtime, job, signal)
    if (found) return started(found)
  }
  // A cancelled job waits too: otherwise a run that appears after the job's end would continue unnoticed.
  const wait = isRepeated ? waitForRun(job, { nowMs, timeoutMs: runtime.timeoutMs }) : null
  if (wait) return wait
  if (job.cancel_requested_at !== null) return { runId: null, verdict: { kind: 'cancelled' }, traces: null }
  if (nowMs >= job.deadline_at) return { runId: null, verdict: deadlineExceeded(), traces: null }
  if (fresh === undefined && job.run_seq > 1) {
    const unanswerable = await findWhyUnanswerable(runtime, job, signal)
    if (unanswerable) return unanswerable
  }
  const documents = fresh ?? (await prepareAttempt(context, job))
  if (job.run_seq === 1) {
    const unprepared = await prepareThread(context, runtime, { job, signal })
    if (unprepared) return unprepared
  }
  return startOn(context, runtime, { ...start, documents })
}

/** Called when the thread was just seen without the run. Null if no run of the last attempt can appear any more. */
function waitForRun(job: LeasedJob, { nowMs, timeoutMs }: { nowMs: number; timeoutMs: number }): FailedCheck | null {
  const firstSeenMs = job.unseen_at ?? nowMs
  // A request that a stopping node sent with its last lease arrives within the timeout.
  const nextAtMs = Math.max((job.last_start_at ?? nowMs) + REPEAT_AFTER_MS, firstSeenMs + timeoutMs)
  if (job.unseen_at !== null && nowMs >= nextAtMs) return null
  return {
    error: job.last_error ?? CHECK_ERRORS.start_pending,
    unseenAtMs: firstSeenMs,
    nextAtMs: Math.max(nextAtMs, nowMs + 1),
  }
}

/** Counts the attempt, then loads the documents to send. */
async function prepareAttempt(context: JobContext, { id, lease_token }: LeasedJob): Promise<StartDocuments> {
  const attempt = { id, token: lease_token ?? '', nowMs: context.clock.now() }
  const isCounted = await countStartAttempt(context.db, attempt)
  const documents = isCounted ? await findStartDocuments(context.db, id) : undefined
  if (documents === undefined) throw new RuntimeUnavailable('job_held')
  return documents
}

/**
 * A new conversation gets its thread. The thread of an earlier turn must still exist: on a new one, the graph would
 * answer without the history. It is created only if no turn has had a run yet.
 */
async function prepareThread(
  context: JobContext,
  runtime: RuntimeClient,
  { job, signal }: Pick<RunStart, 'job' | 'signal'>,
): Promise<RunObservation | null> {
  if (job.continues !== null) {
    if ((await runtime.fetchNewestState(job.thread_id, NO_VALUES, signal)) !== null) return null
    if (await hasEarlierRun(context.db, job)) return { runId: null, verdict: THREAD_GONE, traces: null }
  }
  const refused = await runtime.ensureThread(job.thread_id, { job_id: job.id }, signal)
  return refused ? rejected(context, job, refused) : null
}

async function startOn(
  context: JobContext,
  runtime: RuntimeClient,
  { job, type, documents, holdsLeases, signal }: RunStart & { documents: StartDocuments },
): Promise<RunObservation> {
  const request = {
    threadId: job.thread_id,
    assistantId: type.assistantId,
    payload: payloadOf(job, documents),
    metadata: { job_id: job.id, run_seq: job.run_seq },
    streamModes: streamModesOf(type),
  }
  const webhook = context.callbackUrl(job)
  const start = (url: string | null) => {
    // If this process was suspended, another process may meanwhile have started the run and seen it end.
    if (!holdsLeases() || context.clock.now() + runtime.timeoutMs > (job.lease_until ?? 0)) {
      throw new RuntimeUnavailable('lease_too_short')
    }
    return runtime.startRun({ ...request, webhook: url }, signal)
  }
  let outcome = await start(webhook)
  if ('refused' in outcome && outcome.refused.status === 422 && webhook !== null) {
    // The runtime refuses the callback URL but can still run the job: the sweep asks for the result.
    context.log.warn({ jobId: job.id, reason: outcome.refused.message }, 'job.callback_url_refused')
    outcome = await start(null)
  }
  if ('started' in outcome) return started(outcome.started)
  if ('refused' in outcome) return rejected(context, job, outcome.refused)
  const found = await findOwnRun(runtime, job, signal)
  if (found) return started(found)
  throw new RuntimeUnavailable('thread_busy')
}

/** Whether the questions are still open. A fresh resume has just read the state; a repeated start must read it again. */
async function findWhyUnanswerable(
  runtime: RuntimeClient,
  job: LeasedJob,
  signal: AbortSignal,
): Promise<RunObservation | null> {
  const state = await runtime.fetchNewestState(job.thread_id, NO_VALUES, signal)
  if (state === null) return { runId: null, verdict: THREAD_GONE, traces: null }
  const questions = JSON.parse(job.resume_questions ?? '[]') as string[]
  if (isStillOpen(questions, state)) return null
  return { runId: null, verdict: ANSWER_NOT_APPLIED, traces: null }
}

async function findOwnRun(
  runtime: RuntimeClient,
  job: LeasedJob,
  signal: AbortSignal,
): Promise<RuntimeRun | undefined> {
  const runs = await runtime.listRuns(job.thread_id, signal)
  return runs.find((run) => run.metadata.job_id === job.id && run.metadata.run_seq === job.run_seq)
}

function started(run: RuntimeRun): RunObservation {
  return { runId: run.runId, verdict: { kind: 'pending' }, traces: run.traces }
}

/** The runtime's own message is only logged: it may contain addresses or settings. */
function rejected({ log }: JobContext, job: LeasedJob, { status, message: reason }: RuntimeRefusal): RunObservation {
  log.warn({ jobId: job.id, status, reason }, 'job.start_rejected')
  const text = `The runtime refused to start the run (${status})`
  return { runId: null, verdict: { kind: 'failed', code: 'start_rejected', message: text }, traces: null }
}

function payloadOf({ run_seq }: LeasedJob, { input, resume_input }: StartDocuments): StartRequest['payload'] {
  if (run_seq === 1) return { input: new JsonText(input ?? 'null') }
  const command = new JsonText(resume_input ?? 'null')
  return command.text === 'null' ? { input: command } : { command }
}
