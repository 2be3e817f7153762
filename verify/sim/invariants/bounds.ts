import type { JobRow } from '../../../src/jobs/job-row.ts'
import type { WatchedJob } from '../clients/calm-scenario.ts'
import { isFinal } from '../expected-statuses.ts'
import { isOwn, type SimRun } from '../outside/runtime.ts'
import type { Evidence } from './evidence.ts'

/** A client that watches a job sees its end within this time, also when the callback is lost. */
const WATCHED_MS = 15_000
/** The additional time for an end that must be confirmed. */
const CONFIRMATION_MS = 15_000
/** The longest time between two checks by the sweep. */
const SWEEP_MS = 300_000
/** The same for a paused job, which may have been answered elsewhere, with the confirmation. */
const PAUSED_SWEEP_MS = 3_600_000 + 60_000
/**
 * The sweep checks a young job more often: the pause is at most twice the time since the start and 5 s. The rest is for calls
 * that take long.
 */
const YOUNG_SLACK_MS = 20_000
/** With slowed-down loops, nodes notice due work this much later. */
const SLOW_LOOPS_MS = 3 * 120_000 + 60_000

/** I1, its bound: after the faults, the end of a run shows soon to clients that watch, and in time to all others. */
export function checkBounds(evidence: Evidence): void {
  const { jobs, observed, plan, runtime, faultsStoppedAtMs, calmEndedAtMs, slowUntilMs, violate } = evidence
  // With one or two slots, jobs wait for each other.
  if (plan.slots !== null) return
  const byId = new Map(jobs.map((job) => [job.id, job]))
  for (const watched of observed.watched) checkWatched(watched, byId.get(watched.jobId), evidence)
  for (const job of jobs) {
    const run = runtime.runs.get(job.run_id ?? '')
    // An expired question: `checkQuestionTimes` has its bounds.
    if (!run || run.endedAtMs === null || !isFinal(job.status) || job.error_code === 'answer_expired') continue
    // A job that a late callback created may wait for the loops of its node.
    const heldUpMs = job.created_at > calmEndedAtMs ? slowUntilMs : 0
    const lateMs = (job.finished_at ?? 0) - Math.max(run.endedAtMs, faultsStoppedAtMs, job.created_at, heldUpMs)
    const boundMs = (isOwn(run) || job.run_seq === 1 ? SWEEP_MS : PAUSED_SWEEP_MS) + SLOW_LOOPS_MS
    if (lateMs > boundMs) violate('I1', `${job.id} ended ${lateMs} ms after its run ${run.runId}`)
  }
}

function checkWatched(
  watched: WatchedJob,
  job: JobRow | undefined,
  { runtime, suspendedUntilMs, calmEndedAtMs, violate }: Evidence,
): void {
  const { jobId, way, fromMs, seenAtMs } = watched
  const run = [...runtime.runs.values()].find(({ metadata }) => metadata.job_id === jobId && metadata.run_seq === 1)
  if (!job || !run || run.endedAtMs === null) return
  // A client that is connected to a suspended node sees nothing before that node runs again.
  const sinceMs = Math.max(run.endedAtMs, fromMs, suspendedUntilMs)
  const dueMs = sinceMs + boundOf(way, run) + confirmationsOf(run) * CONFIRMATION_MS
  if (dueMs > calmEndedAtMs) return
  const atMs = isUnwatched(way) ? job.finished_at : seenAtMs
  // The time of a pause is not stored.
  if (isUnwatched(way) && !isFinal(job.status)) return
  if (atMs !== null && atMs <= dueMs) return
  const when = atMs === null ? 'never' : `${atMs - sinceMs} ms later`
  violate(
    'I1',
    `the end of ${run.runId} at ${run.endedAtMs} was seen ${when} by a client that watched ${jobId} by ${way}`,
  )
}

function boundOf(way: WatchedJob['way'], run: SimRun): number {
  if (!isUnwatched(way)) return WATCHED_MS
  return Math.min(SWEEP_MS, 2 * ((run.endedAtMs ?? 0) - run.createdAtMs)) + YOUNG_SLACK_MS
}

/** No client waits for the end of the job. */
function isUnwatched(way: WatchedJob['way']): boolean {
  return way === 'nothing' || way === 'poll and leave'
}

/** A run that is deleted while its end is being confirmed must be confirmed again, as lost. */
function confirmationsOf({ forgotten, status, plan: { ending } }: SimRun): number {
  const isUnclear = ending.kind === 'no_output' || (ending.kind === 'pause' && ending.asks !== 'one')
  return (isUnclear || status === 'timeout' ? 1 : 0) + (forgotten ? 1 : 0)
}
