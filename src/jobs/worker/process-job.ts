import { UniqueViolation } from '../../db/database.ts'
import { parseCallback } from '../../runtime/callback-payload.ts'
import { UnacceptableAnswer } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import { RuntimeUnavailable } from '../../runtime/runtime-types.ts'
import { findUnconfirmed } from '../callbacks/callback-store.ts'
import { isEnd, type RunObservation, type Verdict, type Via } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import type { JobType } from '../job-types.ts'
import { SECOND_SIGHT_MS } from '../settlement/settlement.ts'
import { deadlineExceeded, judgeCallback } from '../settlement/verdict.ts'
import { inspectRun } from './inspect.ts'
import { type CheckOutcome, recordCheck } from './record-check.ts'
import { AbortedStart, startJobRun } from './start.ts'

/** While the runtime cannot be asked, a job may outlive its deadline by this much. */
const GIVE_UP_AFTER_DEADLINE_MS = 24 * 3_600_000

const RUN_TAKEN: RunObservation = {
  runId: null,
  verdict: { kind: 'failed', code: 'run_lost', message: 'Another job follows its run' },
  traces: null,
}

export interface LeasedJob {
  /** Leased by this process. */
  job: JobRow
  /** Null when the job was just created or resumed. */
  via: Via | null
  /** This process has just written the job, so that no earlier attempt to start it can exist. */
  fresh?: boolean
  signal: AbortSignal
}

/**
 * Processes one leased job: starts its run, or asks the runtime about it, and records the result. A failing runtime never
 * fails the job: it only delays the next check.
 */
export async function processJob(context: JobContext, { job, via, fresh = false, signal }: LeasedJob): Promise<void> {
  const { runtime } = context
  if (runtime === null) return recordCheck(context, { job, via, outcome: await checkWithoutRuntime(context, job) })
  const outcome = await checkWithRuntime(context, runtime, { job, fresh, signal })
  await recordCheck(context, { job, via, outcome }).catch((error: unknown) => {
    // A client made another job that follows the same run, and a run has one job.
    if (!(error instanceof UniqueViolation) || job.run_id !== null) throw error
    return recordCheck(context, { job, via, outcome: RUN_TAKEN })
  })
  await stopOverdueRun(runtime, { job, outcome, signal })
}

async function checkWithRuntime(
  context: JobContext,
  runtime: RuntimeClient,
  { job, fresh, signal }: { job: JobRow; fresh: boolean; signal: AbortSignal },
): Promise<CheckOutcome> {
  try {
    const type = context.types.get(job.type)
    if (!type) {
      if (isOverdue(context, job)) return observe(job, deadlineExceeded())
      return { trouble: `the job type ${job.type} is not configured any more` }
    }
    // A run found after the deadline may have ended before it: the next check finds out.
    if (job.run_id === null) return await startJobRun(context, runtime, { job, type, fresh, signal })
    const observed = await inspectRun(runtime, { job, runId: job.run_id, type, signal })
    if (isLost(observed))
      return (wasLostBefore(context, job) && (await findReportedEnd(context, job, type))) || observed
    return failIfOverdue(context, job, observed)
  } catch (error) {
    if (error instanceof UnacceptableAnswer) {
      return observe(job, { kind: 'failed', code: 'output_invalid', message: error.message })
    }
    if (!(error instanceof RuntimeUnavailable)) throw error
    if (context.clock.now() > job.deadline_at + GIVE_UP_AFTER_DEADLINE_MS) return giveUp(context, job)
    const holdMs = error instanceof AbortedStart ? runtime.timeoutMs : 0
    return { trouble: error.message, holdMs }
  }
}

/** Without a runtime no run can be stopped or asked about: a cancel request or the deadline ends the job. */
async function checkWithoutRuntime(context: JobContext, job: JobRow): Promise<CheckOutcome> {
  if (job.cancel_requested_at !== null) return observe(job, { kind: 'cancelled' })
  if (isOverdue(context, job)) return giveUp(context, job)
  return { trouble: 'no runtime is configured' }
}

async function giveUp(context: JobContext, job: JobRow): Promise<RunObservation> {
  const type = context.types.get(job.type)
  const reported = type && (await findReportedEnd(context, job, type))
  return reported ?? observe(job, deadlineExceeded())
}

function observe(job: JobRow, verdict: Verdict): RunObservation {
  return { runId: job.run_id, verdict, traces: null }
}

function isLost({ verdict }: RunObservation): boolean {
  return verdict.kind === 'failed' && verdict.code === 'run_lost'
}

/** The first sighting stands for long enough: this is the second one, which counts. */
function wasLostBefore({ clock }: JobContext, { doubt_code, doubt_at }: JobRow): boolean {
  return doubt_code === 'run_lost' && doubt_at !== null && clock.now() - doubt_at >= SECOND_SIGHT_MS
}

/** The runtime cannot confirm the end of this run any more, so an unconfirmed callback is taken as the truth. */
async function findReportedEnd(context: JobContext, job: JobRow, type: JobType): Promise<RunObservation | undefined> {
  if (job.run_id === null) return undefined
  const cancelRequested = job.cancel_requested_at !== null
  for (const body of await findUnconfirmed(context.db, { jobId: job.id, runId: job.run_id })) {
    const payload = await parseCallback(body, type.wantedValues)
    const verdict = judgeCallback(payload, { type, cancelRequested, canAsk: false })
    if (isEnd(verdict.kind)) return { runId: job.run_id, verdict, traces: payload.traces }
  }
  return undefined
}

/** Ends the wait for a run that is still active after the deadline: it may never end. */
function failIfOverdue(context: JobContext, job: JobRow, observed: RunObservation): RunObservation {
  const { kind } = observed.verdict
  const isActive = kind === 'pending' || kind === 'running' || kind === 'unclear'
  return isActive && isOverdue(context, job) ? { ...observed, verdict: deadlineExceeded() } : observed
}

function isOverdue({ clock }: JobContext, job: JobRow): boolean {
  return clock.now() >= job.deadline_at
}

/** Best effort: the job has ended whether or not the runtime stops its run. */
async function stopOverdueRun(
  runtime: RuntimeClient,
  { job, outcome, signal }: { job: JobRow; outcome: CheckOutcome; signal: AbortSignal },
): Promise<void> {
  if (!('verdict' in outcome) || outcome.runId === null) return
  const { runId, verdict } = outcome
  if (verdict.kind !== 'failed' || verdict.code !== 'deadline_exceeded') return
  await runtime.cancelRun(job.thread_id, runId, signal).catch(() => {})
}
