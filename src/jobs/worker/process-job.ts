import { type Backoff, backoffMs } from '../../core/async/backoff.ts'
import { UniqueViolation } from '../../db/database.ts'
import { parseCallback } from '../../runtime/callback-payload.ts'
import { UnacceptableAnswer } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import { RuntimeUnavailable } from '../../runtime/runtime-types.ts'
import { findUnconfirmed } from '../callbacks/callback-store.ts'
import type { JobRow, RunObservation, Via } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobType } from '../job-types.ts'
import { countEnds } from '../settlement/count-ends.ts'
import { settle } from '../settlement/settle.ts'
import { appendOrCount } from '../settlement/timeline-store.ts'
import { deadlineExceeded, judgeCallback } from '../settlement/verdict.ts'
import { inspectRun } from './inspect.ts'
import { releaseLease } from './lease-store.ts'
import { AbortedStart, startJobRun } from './start.ts'

const CHECK_BACKOFF: Backoff = { baseMs: 5_000, maxMs: 5 * 60_000 }
/** Past its deadline a job still waits for a runtime that cannot be asked, but not for ever. */
const GIVE_UP_AFTER_DEADLINE_MS = 24 * 3_600_000

const RUN_TAKEN: RunObservation = {
  runId: null,
  verdict: { kind: 'failed', code: 'run_lost', message: 'Another job follows its run' },
  traces: null,
}

export interface LeasedJob {
  /** Under this process's lease. */
  job: JobRow
  /** Null for the start that belongs to the job's creation. */
  via: Via | null
  /** Whether this process has just written the job, so that no earlier attempt to start it can exist. */
  fresh?: boolean
  signal: AbortSignal
}

/**
 * Looks after one leased job: starts its run, or asks the runtime how it is doing, and writes down what came of it.
 * The runtime's trouble is never the job's: it only moves the next look.
 */
export async function processJob(context: JobContext, { job, via, fresh = false, signal }: LeasedJob): Promise<void> {
  const { runtime } = context
  if (runtime === null) return recordCheck(context, { job, via, outcome: await checkWithoutRuntime(context, job) })
  const outcome = await checkWithRuntime(context, runtime, { job, fresh, signal })
  await recordCheck(context, { job, via, outcome }).catch((error: unknown) => {
    // Whoever followed that run was faster, and a run has one job.
    if (!(error instanceof UniqueViolation) || job.run_id !== null) throw error
    return recordCheck(context, { job, via, outcome: RUN_TAKEN })
  })
  await stopOverdueRun(runtime, { job, outcome, signal })
}

/** `holdMs`: for how long nobody else may look. */
type CheckOutcome = RunObservation | { trouble: string; holdMs?: number }

async function checkWithRuntime(
  context: JobContext,
  runtime: RuntimeClient,
  { job, fresh, signal }: { job: JobRow; fresh: boolean; signal: AbortSignal },
): Promise<CheckOutcome> {
  try {
    const type = context.types.get(job.type)
    if (!type) {
      const stuck: RunObservation = {
        runId: job.run_id,
        verdict: { kind: 'unclear', reason: 'no such type' },
        traces: null,
      }
      const observed = overdue(job, stuck, context.clock.now())
      return observed === stuck ? { trouble: `the job type ${job.type} is not configured any more` } : observed
    }
    // A run found only now, past the deadline, may have ended long before it: it is looked at first.
    if (job.run_id === null) return await startJobRun(context, runtime, { job, type, fresh, signal })
    const observed = await inspectRun(runtime, { job, runId: job.run_id, type, signal })
    if (isLost(observed)) return (await findReportedEnd(context, job, type)) ?? observed
    return overdue(job, observed, context.clock.now())
  } catch (error) {
    if (error instanceof UnacceptableAnswer) {
      return {
        runId: job.run_id,
        verdict: { kind: 'failed', code: 'output_invalid', message: error.message },
        traces: null,
      }
    }
    if (!(error instanceof RuntimeUnavailable)) throw error
    const hopeless = context.clock.now() > job.deadline_at + GIVE_UP_AFTER_DEADLINE_MS
    if (hopeless) return giveUp(context, job)
    const holdMs = error instanceof AbortedStart ? runtime.timeoutMs : 0
    return { trouble: error.message, holdMs }
  }
}

/** With no runtime there is nobody to be told of a cancellation, nor to ask what became of a run by its deadline. */
async function checkWithoutRuntime(context: JobContext, job: JobRow): Promise<CheckOutcome> {
  if (job.cancel_requested_at !== null) return { runId: job.run_id, verdict: { kind: 'cancelled' }, traces: null }
  if (context.clock.now() >= job.deadline_at) return giveUp(context, job)
  return { trouble: 'no runtime is configured' }
}

async function giveUp(context: JobContext, job: JobRow): Promise<RunObservation> {
  const type = context.types.get(job.type)
  const recalled = type && (await findReportedEnd(context, job, type))
  return recalled ?? { runId: job.run_id, verdict: deadlineExceeded(), traces: null }
}

function isLost({ verdict }: RunObservation): boolean {
  return verdict.kind === 'failed' && verdict.code === 'run_lost'
}

/** Nobody is left to ask: what a callback said, and the runtime should have confirmed, then holds as it was said. */
async function findReportedEnd(context: JobContext, job: JobRow, type: JobType): Promise<RunObservation | undefined> {
  if (job.run_id === null) return undefined
  const cancelRequested = job.cancel_requested_at !== null
  for (const body of await findUnconfirmed(context.db, { jobId: job.id, runId: job.run_id })) {
    const payload = parseCallback(Buffer.from(body))
    const verdict = judgeCallback(payload, { type, cancelRequested, canAsk: false })
    const isEnd = verdict.kind === 'completed' || verdict.kind === 'failed' || verdict.kind === 'cancelled'
    if (isEnd) return { runId: job.run_id, verdict, traces: payload.traces }
  }
  return undefined
}

/** A run that is still alive after its deadline may be a zombie: for the job it is over. */
function overdue(job: JobRow, observed: RunObservation, nowMs: number): RunObservation {
  const alive = ['pending', 'running', 'unclear'].includes(observed.verdict.kind)
  return alive && nowMs >= job.deadline_at ? { ...observed, verdict: deadlineExceeded() } : observed
}

async function recordCheck(
  context: JobContext,
  { job, via, outcome }: { job: JobRow; via: Via | null; outcome: CheckOutcome },
): Promise<void> {
  const { db, clock, random, ids, types, pushOptOut } = context
  const atMs = clock.now()
  const trouble = 'trouble' in outcome ? outcome.trouble : null
  const detail = trouble === null && 'verdict' in outcome ? { found: outcome.verdict.kind } : { error: trouble }
  // A run that has only now begun is looked at as soon as any, however long its start took.
  const begunNow = job.run_id === null && 'verdict' in outcome && outcome.runId !== null
  const backedOffMs = atMs + backoffMs(CHECK_BACKOFF, begunNow ? 0 : job.check_attempts, random)
  const nextMs = atMs < job.deadline_at ? Math.min(backedOffMs, job.deadline_at) : backedOffMs
  const settled = await db.transaction(async (tx) => {
    const entry = {
      id: ids.next('tml'),
      job_id: job.id,
      at: atMs,
      kind: job.run_id === null ? 'start' : 'check',
      via,
      detail: JSON.stringify(detail),
    } as const
    await appendOrCount(tx, entry)
    const updates = 'verdict' in outcome ? [{ jobId: job.id, runSeq: job.run_seq, via, ...outcome }] : []
    const done = updates.length > 0 ? await settle(tx, updates, { ids, types, pushOptOut, atMs }) : []
    await releaseLease(tx, {
      id: job.id,
      token: job.lease_token ?? '',
      atMs,
      nextMs,
      error: trouble,
      leased: job,
      heldUntilMs: 'holdMs' in outcome && outcome.holdMs ? atMs + outcome.holdMs : null,
    })
    return done
  })
  countEnds(context, settled)
}

/** Nobody waits for it any more; that it may not be heard is fine. */
async function stopOverdueRun(
  runtime: RuntimeClient,
  { job, outcome, signal }: { job: JobRow; outcome: CheckOutcome; signal: AbortSignal },
): Promise<void> {
  if (!('verdict' in outcome) || outcome.runId === null) return
  const { runId, verdict } = outcome
  if (verdict.kind !== 'failed' || verdict.code !== 'deadline_exceeded') return
  await runtime.cancelRun(job.thread_id, runId, signal).catch(() => {})
}
