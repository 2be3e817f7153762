import { hadNoConnection } from '../../core/exchange.ts'
import { scanJson } from '../../core/json/json-scan.ts'
import { JsonText } from '../../core/json/json-text.ts'
import { WHOLE, wantFields } from '../../core/json/wanted.ts'
import { CHECK_ERRORS, RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { NO_VALUES } from '../../runtime/read-answers.ts'
import { ENDED_BY_ITSELF, type RuntimeClient, START_TIMEOUT_MS } from '../../runtime/runtime-client.ts'
import type { RuntimeRefusal, RuntimeRun, StartRequest } from '../../runtime/runtime-types.ts'
import { isStillOpen } from '../answers.ts'
import type { RunObservation, Verdict } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { forgetExtraRun } from '../job-store.ts'
import { type JobType, streamModesOf } from '../job-types.ts'
import type { LeasedJob } from '../leases/lease-store.ts'
import { CONFIRM_AFTER_MS } from '../settlement/settlement.ts'
import { ANSWER_NOT_APPLIED, CHECKPOINT_GONE, deadlineExceeded, THREAD_GONE } from '../settlement/verdict.ts'
import { type EarlierRun, findEarlierRuns, MAX_EARLIER_RUNS } from '../thread-store.ts'
import { callerKeys } from './caller.ts'
import type { CheckOutcome, FailedCheck } from './check-outcome.ts'
import {
  type AbandonedAttempt,
  attemptOf,
  findKnownExtras,
  findOwnRuns,
  stopExtraRuns,
  stopLateRuns,
} from './extra-runs.ts'
import { fetchQuestions } from './fetch-questions.ts'
import { findContinuation } from './inspect-question.ts'
import { abandonAttempt, countAttempt, moveToNewThread, type StartAttempt } from './start-attempt.ts'

/** How long an attempt that was cut off may still arrive. */
const REPEAT_AFTER_MS = 10_000

export interface RunStart {
  /** Leased by this process. */
  job: LeasedJob
  type: JobType
  /** Given when this process has just written the job, so that no earlier attempt to start it can exist. */
  fresh?: StartAttempt
  /** Whether this process still holds the lease: other nodes take it when its heartbeat fails for too long. */
  holdsLease: () => boolean
  /** Called with what an answer of the runtime proves: a later call of this check may fail. */
  onFound: (observed: RunObservation) => void
  /** Called before an attempt to start the run is given up. */
  onAbandoned: (attempt: AbandonedAttempt) => void
  signal: AbortSignal
}

/** The thread exists. That says nothing about its checkpoints and questions. */
const FOUND_THREAD: RunObservation = {
  runId: null,
  verdict: { kind: 'unclear', reason: 'the thread exists' },
  traces: null,
}
/** The run can be started: what it begins with exists. */
const STARTABLE: RunObservation = { runId: null, verdict: { kind: 'pending' }, traces: null }

/**
 * Starts a job's run. The attempt is recorded durably before the runtime is called. It is repeated only if its connection
 * broke or this service crashed, and the thread was then seen twice, 10 s apart, without its run. The run of an attempt
 * that the runtime handles even later never reaches the conversation: see `abandonAttempt`.
 */
export async function startJobRun(context: JobContext, runtime: RuntimeClient, start: RunStart): Promise<CheckOutcome> {
  const { job, fresh, onFound, signal } = start
  const nowMs = context.clock.now()
  // A new job is stored with its first attempt counted. Only the process that stored it knows that this attempt was not
  // made yet.
  const isRepeated = fresh === undefined && job.start_attempts > 0
  if (isRepeated) {
    const found = await findStartedRun(context, runtime, { job, signal })
    if (found) return started(found)
    // A cancelled job waits too: otherwise a run that appears after the job's end would continue unnoticed.
    const wait = waitForRun(job, nowMs)
    if (wait) return wait
    await abandonAttempt(context, job, start.onAbandoned)
  }
  if (job.cancel_requested_at !== null) return { runId: null, verdict: { kind: 'cancelled' }, traces: null }
  if (nowMs >= job.deadline_at) return { runId: null, verdict: deadlineExceeded(), traces: null }
  if (fresh === undefined && job.run_seq > 1) {
    const unanswerable = await findWhyUnanswerable(context, runtime, { job, onFound, signal })
    if (unanswerable) return unanswerable
  }
  const attempt = fresh ?? (await countAttempt(context, job))
  const sending = { isSent: false }
  try {
    const observed = await makeAttempt(context, runtime, { ...start, attempt, sending })
    return { ...observed, isUnsent: !sending.isSent }
  } catch (error) {
    if (error instanceof RuntimeUnavailable) error.isUnsent = !sending.isSent
    throw error
  }
}

/** The run of the last attempt. Further runs, of attempts before it, are stopped. */
async function findStartedRun(
  context: JobContext,
  runtime: RuntimeClient,
  search: Search,
): Promise<RuntimeRun | undefined> {
  const { found, others } = await findRun(context, runtime, search, search.job.start_attempts)
  await stopExtraRuns(context, runtime, { runs: others, signal: search.signal })
  return found
}

type Search = Pick<RunStart, 'job' | 'signal'>

/** The newest run of this attempt, or of one after it, that the job may follow. */
async function findRun(
  context: JobContext,
  runtime: RuntimeClient,
  search: Search,
  fromAttempt: number,
): Promise<{ found: RuntimeRun | undefined; others: RuntimeRun[] }> {
  const runs = await findOwnRuns(runtime, { ...search, threadId: search.job.thread_id })
  const extra = await findKnownExtras(context, runs)
  const found = runs.find((run) => attemptOf(run) >= fromAttempt && !extra.has(run.runId))
  return { found, others: runs.filter((run) => run !== found) }
}

/** Called when the thread was just seen without the run. Null if it was seen so before, and long enough ago. */
function waitForRun(job: LeasedJob, nowMs: number): FailedCheck | null {
  const firstSeenMs = job.unseen_at ?? nowMs
  const nextAtMs = firstSeenMs + REPEAT_AFTER_MS
  if (job.unseen_at !== null && nowMs >= nextAtMs) return null
  return {
    error: job.last_error ?? CHECK_ERRORS.start_pending,
    unseenAtMs: firstSeenMs,
    nextAtMs: Math.max(nextAtMs, nowMs + 1),
  }
}

interface MadeAttempt extends RunStart {
  attempt: StartAttempt
  /** Set once the runtime may have got the start. */
  sending: { isSent: boolean }
}

async function makeAttempt(context: JobContext, runtime: RuntimeClient, made: MadeAttempt): Promise<RunObservation> {
  const { job, attempt, onFound, signal } = made
  if (job.run_seq === 1) {
    const unprepared = await prepareThread(context, runtime, made)
    if (unprepared) return unprepared
  }
  if (!attempt.isPinned) return startOn(context, runtime, { ...made, checkpointId: null })
  const earlier = await findEarlierRuns(context.db, job)
  const checkpointId = await findBase(context, runtime, { job, earlier, signal })
  if (checkpointId !== null) {
    onFound(STARTABLE)
    return startOn(context, runtime, { ...made, checkpointId })
  }
  const areAll = earlier.length < MAX_EARLIER_RUNS
  const isEmpty = job.run_seq === 1 && areAll && earlier.every(({ may_be_empty }) => may_be_empty === 1)
  if (!isEmpty) return { runId: null, verdict: CHECKPOINT_GONE, traces: null }
  // All turns before it were cancelled before their first step: the conversation has no history to continue.
  await moveToNewThread(context, job)
  const unprepared = await prepareThread(context, runtime, made)
  return unprepared ?? startOn(context, runtime, { ...made, checkpointId: null })
}

/**
 * A new conversation gets its thread. The thread of an earlier turn must still exist: on a new one, the graph would
 * answer without the history. It is created only if no turn has had a run yet.
 */
async function prepareThread(
  context: JobContext,
  runtime: RuntimeClient,
  { job, onFound, signal }: Pick<RunStart, 'job' | 'onFound' | 'signal'>,
): Promise<RunObservation | null> {
  if (job.continues !== null) {
    if ((await runtime.fetchNewestState(job.thread_id, NO_VALUES, signal)) !== null) {
      onFound(FOUND_THREAD)
      return null
    }
    const hasHistory = (await findEarlierRuns(context.db, job)).length > 0
    if (hasHistory) return { runId: null, verdict: THREAD_GONE, traces: null }
  }
  const { user_id: owner } = callerKeys(job, context.identify)
  const metadata = { job_id: job.id, ...(owner !== null && { owner }) }
  const refused = await runtime.ensureThread(job.thread_id, metadata, signal)
  return refused ? rejected(context, job, refused) : null
}

/**
 * The checkpoint that the run before this one left. A run that was cancelled before its first step left none. A replica of
 * the runtime may lag, so that is believed only some time after the end of the run.
 */
async function findBase(
  { clock }: JobContext,
  runtime: RuntimeClient,
  { job, earlier, signal }: Pick<RunStart, 'job' | 'signal'> & { earlier: readonly EarlierRun[] },
): Promise<string | null> {
  for (const { run_id, ended_at } of earlier) {
    const checkpoint = await runtime.fetchCheckpoint(job.thread_id, run_id, signal)
    const isSure = checkpoint?.isSettled || clock.now() >= ended_at + CONFIRM_AFTER_MS
    if (!isSure) throw new RuntimeUnavailable('turn_pending')
    if (checkpoint) return checkpoint.id
  }
  return null
}

async function startOn(
  context: JobContext,
  runtime: RuntimeClient,
  made: MadeAttempt & { checkpointId: string | null },
): Promise<RunObservation> {
  const { job, type, attempt, checkpointId, sending, holdsLease, signal } = made
  const number = job.start_attempts
  const keys = callerKeys(job, context.identify)
  const request = {
    threadId: job.thread_id,
    assistantId: type.assistantId,
    payload: payloadOf(job, attempt),
    // A run has the metadata of its thread, too, unless it has the same key.
    metadata: { job_id: job.id, run_seq: job.run_seq, owner: keys.user_id, ...(number > 1 && { attempt: number }) },
    configurable: { ...(await membersOf(attempt.configurable)), ...keys },
    checkpointId,
    streamModes: streamModesOf(type),
  }
  const webhook = context.callbackUrl(job)
  const start = async (url: string | null) => {
    // If this process was suspended, another process may meanwhile have started the run and seen it end.
    if (!holdsLease() || context.clock.now() + START_TIMEOUT_MS > (job.lease_until ?? 0)) {
      throw new RuntimeUnavailable('lease_too_short')
    }
    sending.isSent = true
    try {
      return await runtime.startRun({ ...request, webhook: url }, signal)
    } catch (error) {
      if (error instanceof RuntimeUnavailable && hasCertainlyNotStarted(error)) sending.isSent = false
      throw error
    }
  }
  let outcome = await start(webhook)
  if ('refused' in outcome && outcome.refused.status === 422 && webhook !== null) {
    // The runtime refuses the callback URL but can still run the job: the sweep asks for the result.
    context.log.warn({ jobId: job.id, reason: outcome.refused.message }, 'job.callback_url_refused')
    sending.isSent = false
    outcome = await start(null)
  }
  if ('started' in outcome) return started(outcome.started)
  if ('refused' in outcome) return rejected(context, job, outcome.refused)
  // The runtime refused this attempt, so that there is no doubt about it.
  sending.isSent = false
  const found = await findBlockingRun(context, runtime, { job, signal })
  if (found) return started(found)
  throw new RuntimeUnavailable('thread_busy')
}

/** Without a connection, and with these answers, the runtime has not taken the start. A failure (5xx) leaves that in doubt. */
function hasCertainlyNotStarted(error: RuntimeUnavailable): boolean {
  return error.code === 'circuit_open' || hadNoConnection(error) || [401, 403, 429].includes(error.status ?? 0)
}

/**
 * The thread is busy. The run in the way may be the job's own, of this attempt or, if the runtime refused this one, of the
 * attempt before it. A late run of an earlier turn, or of the job before its question, is stopped.
 */
async function findBlockingRun(
  context: JobContext,
  runtime: RuntimeClient,
  search: Search,
): Promise<RuntimeRun | undefined> {
  const { found } = await findRun(context, runtime, search, search.job.start_attempts - 1)
  if (!found) await stopLateRuns(context, runtime, search)
  return found
}

/**
 * Whether the questions are still open. A fresh resume has just read the state; a repeated start must read it again. If
 * another client answered them meanwhile, the job goes on with that client's run. If a late run of this service did, the
 * job follows that run.
 */
async function findWhyUnanswerable(
  context: JobContext,
  runtime: RuntimeClient,
  { job, onFound, signal }: Pick<RunStart, 'job' | 'onFound' | 'signal'>,
): Promise<RunObservation | null> {
  const { db } = context
  const observe = (verdict: Verdict): RunObservation => ({ runId: null, verdict, traces: null })
  const runs = (await findEarlierRuns(db, job)).map(({ run_id }) => run_id)
  const state = await fetchQuestions(db, runtime, { threadId: job.thread_id, runs }, signal)
  if (state === null) return observe(THREAD_GONE)
  const questions = JSON.parse(job.resume_questions ?? 'null') as string[] | null
  const isOpen = isStillOpen(questions, state)
  onFound(isOpen ? STARTABLE : FOUND_THREAD)
  if (isOpen) return null
  const paused = { ...job, run_id: runs[0] ?? null }
  const { run } = await findContinuation(context, runtime, { job: paused, signal })
  if (run) {
    const answered = questions ?? []
    return observe({ kind: 'continued_elsewhere', runId: run.runId, answered, confirm: 'question_closed' })
  }
  const late = await findLateAnswer(runtime, { job, askedAt: state.checkpointId, signal })
  if (late === undefined) return observe(ANSWER_NOT_APPLIED)
  await forgetExtraRun(db, late.runId)
  return started(late)
}

/**
 * The run of an attempt that was given up and that answered the questions after all. A resumed run that pauses or fails in
 * its first step writes no checkpoint: the runtime replaces the questions on the checkpoint where they were asked. So they
 * can be answered only once.
 */
async function findLateAnswer(
  runtime: RuntimeClient,
  { job, askedAt, signal }: Pick<RunStart, 'job' | 'signal'> & { askedAt: string | null },
): Promise<RuntimeRun | undefined> {
  const runs = await findOwnRuns(runtime, { job, threadId: job.thread_id, signal })
  for (const run of runs.filter(({ status }) => ENDED_BY_ITSELF.includes(status))) {
    // A run that names no checkpoint may have begun at this one, too.
    const hasBegunThere = run.checkpointId === null || run.checkpointId === askedAt
    if (hasBegunThere && (await runtime.fetchCheckpoint(job.thread_id, run.runId, signal)) === null) return run
  }
  return undefined
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

/** The members of a small JSON object, each as its exact text. */
async function membersOf(document: string | null): Promise<Record<string, JsonText>> {
  if (document === null) return {}
  const names = Object.keys(JSON.parse(document) as object)
  const { root } = await scanJson(document, {
    wanted: wantFields(Object.fromEntries(names.map((name) => [name, WHOLE]))),
  })
  return Object.fromEntries(names.map((name) => [name, new JsonText(root.at(name)?.text ?? 'null')]))
}

function payloadOf({ run_seq }: LeasedJob, { input, resume_input }: StartAttempt): StartRequest['payload'] {
  if (run_seq === 1) return { input: new JsonText(input ?? 'null') }
  const command = new JsonText(resume_input ?? 'null')
  return command.text === 'null' ? { input: command } : { command }
}
