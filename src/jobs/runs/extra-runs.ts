import { silentMeter } from '../../core/metrics/meter.ts'
import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import type { RuntimeRun } from '../../runtime/runtime-types.ts'
import type { JobContext } from '../job-context.ts'
import { countExtraRuns, findJobRuns, findTurn, lockSlimJobs } from '../job-store.ts'
import type { LeasedJob } from '../leases/lease-store.ts'
import { recordExtraRuns } from '../settlement/record-extra-runs.ts'
import { findReplaced } from '../thread-store.ts'
import { findUnfinishedOn } from '../uncommon-jobs.ts'

interface Search {
  job: LeasedJob
  signal: AbortSignal
}

/** Which attempt to start the run it belongs to. The first one is not numbered. */
export function attemptOf({ metadata: { attempt } }: RuntimeRun): number {
  return typeof attempt === 'number' ? attempt : 1
}

function isActiveRun({ status }: RuntimeRun): boolean {
  return status === 'pending' || status === 'running'
}

/** Whether this service started the run. Runs of other clients may inherit the job id from the thread, but never the number. */
export function isStartedHere({ metadata: { job_id, run_seq } }: Pick<RuntimeRun, 'metadata'>): boolean {
  return typeof job_id === 'string' && typeof run_seq === 'number'
}

/** The runs of the job's current number, of every attempt to start it, newest first. */
export async function findOwnRuns(
  runtime: RuntimeClient,
  { job, threadId, signal }: { job: Pick<LeasedJob, 'id' | 'run_seq'>; threadId: string; signal: AbortSignal },
): Promise<RuntimeRun[]> {
  const runs = await runtime.listRuns(threadId, signal)
  return runs.filter(({ metadata }) => metadata.job_id === job.id && metadata.run_seq === job.run_seq)
}

/** The ids of those of the runs that were found to be extra. */
export function findKnownExtras(context: JobContext, runs: readonly RuntimeRun[]): Promise<Set<string>> {
  return findKnown(context, runs, { isExtra: 1 })
}

/** The ids of those of the runs that a job follows. */
function findFollowed(context: JobContext, runs: readonly RuntimeRun[]): Promise<Set<string>> {
  return findKnown(context, runs, { isExtra: 0 })
}

async function findKnown(
  { db }: JobContext,
  runs: readonly RuntimeRun[],
  { isExtra }: { isExtra: number },
): Promise<Set<string>> {
  if (runs.length === 0) return new Set()
  const known = await findJobRuns(
    db,
    runs.map(({ runId }) => runId),
  )
  return new Set(known.flatMap(({ run_id, is_extra }) => (is_extra === isExtra ? [run_id] : [])))
}

/** For a job whose start was repeated: stops its further runs, also on the threads that its conversation left. */
export async function stopFurtherRuns(context: JobContext, runtime: RuntimeClient, search: Search): Promise<void> {
  const { job } = search
  // Each attempt has at most one run.
  if ((await countExtraRuns(context.db, job)) >= job.start_attempts - 1) return
  const replaced = await findReplaced(context.db, job.thread_id)
  // Each check looks at one of the threads that the conversation left.
  const left = replaced[job.check_attempts % replaced.length]
  for (const threadId of left ? [job.thread_id, left.id] : [job.thread_id]) {
    const runs = await findOwnRuns(runtime, { ...search, threadId })
    const extra = runs.filter(({ runId }) => runId !== job.run_id)
    await stopExtraRuns(context, runtime, { ...search, runs: extra })
  }
}

/** An attempt to start a run that was given up, and that the runtime may still handle. */
export interface AbandonedAttempt {
  job: Pick<LeasedJob, 'id' | 'run_seq'>
  threadId: string
  attempt: number
}

/**
 * Stops the runs of this attempt and of those before it, unless a job follows them. Once the job has ended, it stops those of
 * all attempts. False while a turn of the thread runs, the job's own one, too: the late run may be behind it.
 */
export async function stopAbandonedRuns(
  context: JobContext,
  runtime: RuntimeClient,
  { attempt, signal, ...abandoned }: AbandonedAttempt & { signal: AbortSignal },
): Promise<boolean> {
  const { job, threadId } = abandoned
  const turn = await findTurn(context.db, job.id)
  if (!turn) return true
  const unfinished = await findUnfinishedOn(context.db, turn.thread_id)
  // No turn runs on a thread that the conversation left.
  if (threadId === turn.thread_id && unfinished.some(({ runs }) => runs === 1)) return false
  const runs = await findOwnRuns(runtime, { ...abandoned, signal })
  const followed = await findFollowed(context, runs)
  // While the job is unfinished, the run of a later attempt may be one that it is about to follow.
  const isUnfinished = unfinished.some(({ id }) => id === job.id)
  const late = runs.filter((run) => !followed.has(run.runId) && (!isUnfinished || attemptOf(run) <= attempt))
  await stopExtraRuns(context, runtime, { runs: late, signal })
  return true
}

/** For a thread that is busy: stops earlier runs that no job has, because the runtime handled their starts late. */
export async function stopLateRuns(context: JobContext, runtime: RuntimeClient, search: Search): Promise<void> {
  const { job, signal } = search
  const active = (await runtime.listRuns(job.thread_id, signal)).filter(isActiveRun)
  const followed = await findFollowed(context, active)
  const isEarlier = ({ metadata }: RuntimeRun) => metadata.job_id !== job.id || metadata.run_seq !== job.run_seq
  const isLate = (run: RuntimeRun) => !followed.has(run.runId) && isStartedHere(run) && isEarlier(run)
  await stopExtraRuns(context, runtime, { ...search, runs: active.filter(isLate) })
}

/**
 * Runs of ours that are not followed: they are noted in the timeline of their job, counted, and cancelled while they are
 * active.
 */
export async function stopExtraRuns(
  context: JobContext,
  runtime: RuntimeClient,
  { runs, signal }: Pick<Search, 'signal'> & { runs: readonly RuntimeRun[] },
): Promise<void> {
  const stopped: RuntimeRun[] = []
  for (const run of runs) if (!isActiveRun(run) || (await isCancelled(runtime, run, signal))) stopped.push(run)
  // A run that could not be cancelled is noted later.
  if (stopped.length > 0) await noteExtraRuns(context, stopped)
}

/** False if the runtime fails: the start of the job must not depend on that. */
async function isCancelled(runtime: RuntimeClient, run: RuntimeRun, signal: AbortSignal): Promise<boolean> {
  try {
    await runtime.cancelRun(run.threadId, run.runId, signal)
    return true
  } catch (error) {
    if (error instanceof RuntimeUnavailable) return false
    throw error
  }
}

async function noteExtraRuns({ db, clock, ids, log, meter = silentMeter }: JobContext, runs: readonly RuntimeRun[]) {
  const jobOf = ({ metadata }: RuntimeRun) => String(metadata.job_id)
  const noted = await db.transaction(async (tx) => {
    const jobs = await lockSlimJobs(tx, [...new Set(runs.map(jobOf))])
    const atMs = clock.now()
    const rows = runs
      .filter((run) => jobs.some(({ id }) => id === jobOf(run)))
      .map((run) => ({
        run_id: run.runId,
        job_id: jobOf(run),
        run_seq: Number(run.metadata.run_seq),
        is_extra: 1,
        created_at: atMs,
      }))
    return recordExtraRuns(tx, rows, { ids, atMs })
  })
  for (const { job_id: jobId, run_id: runId } of noted) {
    meter.count('extra_runs_total')
    log.warn({ jobId, runId }, 'job.extra_run')
  }
}
