import { UniqueViolation } from '../../db/database.ts'
import { parseCallback } from '../../runtime/callback-payload.ts'
import { CHECK_ERRORS, RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { UnacceptableAnswer } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import { findUnconfirmed } from '../callback-store.ts'
import { isEnd, type RunObservation, type Verdict, type Via } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { isLaterTurn } from '../job-row.ts'
import type { JobType } from '../job-types.ts'
import type { LeasedJob } from '../leases/lease-store.ts'
import { cancelIfRefused } from '../leases/turns.ts'
import type { CheckOutcome } from '../runs/check-outcome.ts'
import { stopFurtherRuns } from '../runs/extra-runs.ts'
import { inspectRun, type ReportedRun } from '../runs/inspect.ts'
import { findContinuation, inspectQuestion } from '../runs/inspect-question.ts'
import { type RunStart, startJobRun } from '../runs/start.ts'
import { abandonAttempt } from '../runs/start-attempt.ts'
import { deadlineExceeded, judgeCallback } from '../settlement/verdict.ts'
import { findEarlierRuns, findThread } from '../thread-store.ts'
import type { CheckRecorder } from './record-check.ts'

/** While the runtime cannot be asked, a job may outlive its deadline by this much. */
const GIVE_UP_AFTER_DEADLINE_MS = 24 * 3_600_000
/** For this long the runtime is asked to confirm an end that a callback reported, also after the deadline. */
const CONFIRM_REPORT_WITHIN_MS = 7 * 24 * 3_600_000

/** For this long after a repeated start, each check of the job looks for further runs. */
const LATE_WITHIN_MS = 3 * 60_000

const RUN_TAKEN: RunObservation = {
  runId: null,
  verdict: { kind: 'failed', code: 'run_lost', message: 'Another job already follows this run' },
  traces: null,
}

export interface JobWork extends Omit<RunStart, 'type' | 'onFound'> {
  /** Null when the job was just created or resumed. */
  via: Via | null
  /** Given when a callback asks for this check. */
  reported?: ReportedRun | undefined
  recorder: CheckRecorder
}

/**
 * Processes one leased job: starts its run, or asks the runtime about it, and records the result. A failing runtime never
 * fails the job: it only delays the next check.
 */
export async function processJob(context: JobContext, work: JobWork): Promise<void> {
  const { runtime } = context
  const { job, via, recorder, signal } = work
  const askedAtMs = context.clock.now()
  if (job.run_id === null && job.start_attempts === 0 && (await cancelIfRefused(context, job))) return
  if (runtime === null) {
    await recorder.record({ job, via, askedAtMs, outcome: await checkWithoutRuntime(context, job) })
    return
  }
  const outcome = await checkWithRuntime(context, runtime, work)
  const recorded = await recorder.record({ job, via, askedAtMs, outcome }).catch((error: unknown) => {
    // A client created another job that follows the same run, and a run can have only one job.
    if (!(error instanceof UniqueViolation) || job.run_id !== null) throw error
    return recorder.record({ job, via, askedAtMs, outcome: RUN_TAKEN })
  })
  if ('verdict' in outcome && outcome.runId !== null && (recorded === 'repeated' || hasMissedDeadline(outcome))) {
    // Best effort: the job does not follow the run any more, whether or not the runtime stops it.
    await runtime.cancelRun(job.thread_id, outcome.runId, signal).catch(() => {})
  }
}

async function checkWithRuntime(context: JobContext, runtime: RuntimeClient, work: JobWork): Promise<CheckOutcome> {
  const { job, reported, signal } = work
  let seen: RunObservation | undefined
  const onFound = (observed: RunObservation) => {
    seen = observed
  }
  try {
    const type = context.types.get(job.type)
    if (type && job.status === 'awaiting_input')
      return await inspectQuestion(context, runtime, { job, onFound, signal })
    if (!type) return isOverdue(context, job) ? await endOverdue(context, job) : { error: CHECK_ERRORS.type_gone }
    // A run found after the deadline may have ended before the deadline: the next check shows it.
    if (job.run_id === null) return await startJobRun(context, runtime, { ...work, type, onFound })
    if (mayHaveFurtherRuns(context, job)) await stopFurtherRuns(context, runtime, { job, signal })
    const runsBefore = await findBranch(context, job)
    const observed = await inspectRun(runtime, { job, runId: job.run_id, type, reported, onFound, runsBefore, signal })
    if (hasNoState(observed) && runsBefore === undefined) {
      // The run paused again at the checkpoint of the run before it. A newer run of another client has answered.
      const { run } = await findContinuation(context, runtime, { job, signal })
      const isCancelled = job.cancel_requested_at !== null
      if (run)
        return observe(job, isCancelled ? { kind: 'cancelled', confirm: 'state_missing' } : continuedBy(run.runId))
    }
    if (isLost(observed)) return await replaceByReport(context, job, { type, observed })
    return isActive(observed) && isOverdue(context, job) ? await endOverdue(context, job, observed) : observed
  } catch (error) {
    if (error instanceof UnacceptableAnswer) {
      if (job.status === 'awaiting_input') return { error: CHECK_ERRORS.unreadable }
      return observe(job, { kind: 'failed', code: 'output_invalid', message: error.message })
    }
    if (!(error instanceof RuntimeUnavailable)) throw error
    const isPaused = job.status === 'awaiting_input'
    if (!isPaused && context.clock.now() > job.deadline_at + GIVE_UP_AFTER_DEADLINE_MS)
      return giveUp(context, work, seen)
    // Users see only the sentence; the cause is only in the log.
    if (error.cause !== undefined) context.log.warn({ jobId: job.id, err: error }, 'job.runtime_failed')
    return { error: error.message, seen, isUnsent: error.isUnsent }
  }
}

/** The start was repeated a moment ago, so that the runtime may still handle an attempt before the last one. */
function mayHaveFurtherRuns({ clock }: JobContext, { start_attempts, last_start_at }: LeasedJob): boolean {
  return start_attempts > 1 && clock.now() < (last_start_at ?? 0) + LATE_WITHIN_MS
}

/** The runs before this one, newest first. Only a resumed run on a pinned thread needs them. */
async function findBranch({ db }: JobContext, job: LeasedJob): Promise<string[] | undefined> {
  if (job.run_seq === 1 || (await findThread(db, job.thread_id))?.is_pinned !== 1) return undefined
  return (await findEarlierRuns(db, job)).map(({ run_id }) => run_id)
}

/** Without a runtime, runs can neither be checked nor stopped: a cancel request or the deadline ends the job. */
async function checkWithoutRuntime(context: JobContext, job: LeasedJob): Promise<CheckOutcome> {
  if (job.cancel_requested_at !== null) return observe(job, { kind: 'cancelled' })
  if (!isOverdue(context, job)) return { error: CHECK_ERRORS.not_configured }
  const type = context.types.get(job.type)
  return (type && (await findReportedEnd(context, job, type))?.end) ?? observe(job, deadlineExceeded())
}

/** The runtime could not be asked for long. It may have a run of an attempt to start the job, or handle the attempt later. */
async function giveUp(
  context: JobContext,
  { job, onAbandoned }: JobWork,
  seen?: RunObservation,
): Promise<CheckOutcome> {
  if (job.run_id === null && job.start_attempts > 0) await abandonAttempt(context, job, onAbandoned)
  return endOverdue(context, job, seen)
}

/**
 * Fails an overdue job: its run may never end. If a callback reported an end, the job waits for the runtime to confirm it:
 * the callback may be about a pause, or its output a draft. After a week the job ends as reported.
 */
async function endOverdue(context: JobContext, job: LeasedJob, seen?: RunObservation): Promise<CheckOutcome> {
  const type = context.types.get(job.type)
  const isRecent = (atMs: number) => context.clock.now() < atMs + CONFIRM_REPORT_WITHIN_MS
  const overdue = { ...observe(job, deadlineExceeded()), traces: seen?.traces ?? null }
  if (!type) {
    // What a callback reported cannot be read without the type, which may come back.
    const [report] = await findReports(context, job)
    return report && isRecent(report.first_received_at) ? { error: CHECK_ERRORS.type_gone, seen } : overdue
  }
  const reported = await findReportedEnd(context, job, type)
  if (!reported) return overdue
  return isRecent(reported.atMs) ? { error: CHECK_ERRORS.end_unconfirmed, seen } : reported.end
}

function observe(job: LeasedJob, verdict: Verdict): RunObservation {
  return { runId: job.run_id, verdict, traces: null }
}

function hasNoState({ verdict }: RunObservation): boolean {
  return 'confirm' in verdict && verdict.confirm === 'state_missing'
}

function continuedBy(runId: string): Verdict {
  return { kind: 'continued_elsewhere', runId, answered: [], confirm: 'question_closed' }
}

function isLost({ verdict }: RunObservation): boolean {
  return verdict.kind === 'failed' && verdict.code === 'run_lost'
}

/** A run that is lost ends its job as its callback reported, if there is one, once the loss is confirmed. */
async function replaceByReport(
  context: JobContext,
  job: LeasedJob,
  { type, observed }: { type: JobType; observed: RunObservation },
): Promise<RunObservation> {
  const reported = await findReportedEnd(context, job, type)
  if (!reported) return observed
  return { ...reported.end, verdict: { ...reported.end.verdict, confirm: 'run_missing' } as Verdict }
}

/** The callbacks of the job's run that the runtime has not confirmed. */
async function findReports({ db }: JobContext, { id: jobId, run_id: runId }: LeasedJob) {
  return runId === null ? [] : findUnconfirmed(db, { jobId, runId })
}

/** The end that an unconfirmed callback reported. It is accepted where the runtime can no longer confirm it. */
async function findReportedEnd(
  context: JobContext,
  job: LeasedJob,
  type: JobType,
): Promise<{ end: RunObservation; atMs: number } | undefined> {
  const cancelRequested = job.cancel_requested_at !== null
  for (const { body, first_received_at } of await findReports(context, job)) {
    const payload = await parseCallback(body, type.wantedValues)
    const verdict = judgeCallback(payload, {
      type,
      cancelRequested,
      canAsk: false,
      isLaterTurn: isLaterTurn(job),
    })
    if (isEnd(verdict.kind)) {
      const end: RunObservation = { runId: job.run_id, verdict, traces: payload.traces, unconfirmed: true }
      return { end, atMs: first_received_at }
    }
  }
  return undefined
}

function isActive({ verdict: { kind } }: RunObservation): boolean {
  return kind === 'pending' || kind === 'running' || kind === 'unclear'
}

/** The deadline of a run does not apply to the time in which its question is open. */
function isOverdue({ clock }: JobContext, job: LeasedJob): boolean {
  return job.status !== 'awaiting_input' && clock.now() >= job.deadline_at
}

function hasMissedDeadline({ verdict }: RunObservation): boolean {
  return verdict.kind === 'failed' && verdict.code === 'deadline_exceeded'
}
