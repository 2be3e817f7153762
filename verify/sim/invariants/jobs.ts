import { isJsonObject, type Json } from '../../../src/core/json.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import { STALE_MS } from '../outside/network.ts'
import { isZombie, type SimRun } from '../outside/runtime.ts'
import { readLateChanges } from './change-triggers.ts'
import { type Evidence, isFinal } from './evidence.ts'

const MAX_SKEW_MS = 1_000
/** The longest time between two checks of a job, plus some slack. */
const MAX_CHECK_INTERVAL_MS = 330_000
/** The longest suspension of a process or stall of its database. */
const LONGEST_HOLD_UP_MS = 70_000

type End = { status: string; code?: string; outputText?: string; message?: string }

const CANCELLED: End = { status: 'cancelled' }
const LOST: End = { status: 'failed', code: 'run_lost' }

/** I1, I3, I4: every job ends as its run did, with the run's own output, and stays as it ended. */
export async function checkJobs(evidence: Evidence): Promise<void> {
  for (const job of evidence.jobs) {
    const allowed = allowedEnds(job, evidence)
    if (allowed.some((end) => isEnd(job, end))) continue
    const wrongOutput = allowed.some(({ status, code }) => isEnd(job, { status, ...(code ? { code } : {}) }))
    evidence.violate(wrongOutput ? 'I4' : 'I1', describe(job, allowed, evidence))
  }
  for (const { job_id, what } of await readLateChanges(evidence.store)) evidence.violate('I3', `${job_id}: ${what}`)
  checkTransitions(evidence)
  checkRuns(evidence)
  checkOwners(evidence)
  checkResponses(evidence)
}

/** The ends that are correct for the job's run; nearly always one. */
function allowedEnds(job: JobRow, evidence: Evidence): End[] {
  const { runtime } = evidence
  const run = job.run_id === null ? undefined : runtime.runs.get(job.run_id)
  const cancelRequested = job.cancel_requested_at !== null
  const ends: End[] = run ? endsOf(run, cancelRequested) : []
  if (run?.forgotten && !wasReported(job, run, evidence)) ends.push(LOST)
  if (!run && isContested(job, evidence)) ends.push(LOST)
  if (!run && cancelRequested) ends.push({ status: 'cancelled' })
  if (!run && job.type === 'ghost') ends.push({ status: 'failed', code: 'start_rejected' })
  if (mayBeOverdue(job, run, runtime.runs.values())) ends.push({ status: 'failed', code: 'deadline_exceeded' })
  return ends
}

function endsOf(run: SimRun, cancelRequested: boolean): End[] {
  // Deleted before or after the cancellation: the service cannot tell which.
  if (run.forgotten)
    return [
      ...(cancelRequested ? [CANCELLED] : []),
      ...endsOf({ ...run, forgotten: false, removed: false }, cancelRequested),
    ]
  if (run.removed) return cancelRequested || run.plan.ending.kind === 'rolled_back' ? [CANCELLED, LOST] : [LOST]
  if (run.paused) return [{ status: 'awaiting_input' }, ...(cancelRequested ? [CANCELLED] : [])]
  switch (run.status) {
    case 'success':
      return run.plan.ending.kind === 'success'
        ? [{ status: 'completed', outputText: run.plan.ending.outputText }]
        : [{ status: 'failed', code: 'output_missing' }]
    case 'error':
      return [{ status: 'failed', code: 'run_failed', message: run.error ?? '' }]
    case 'timeout':
      return [{ status: 'failed', code: 'run_timeout' }]
    case 'interrupted':
      return [CANCELLED]
    default:
      return []
  }
}

/** Whether a callback reported the end of the run, well before the job failed as lost. */
function wasReported(job: JobRow, run: SimRun, { callbacks, suspensions, databaseFaults }: Evidence): boolean {
  const heldUpMs = suspensions + databaseFaults > 0 ? LONGEST_HOLD_UP_MS : 0
  const byMs = (job.finished_at ?? 0) - MAX_SKEW_MS - heldUpMs
  return callbacks.reportedEnds.some(({ runId, jobId, atMs }) => runId === run.runId && jobId === job.id && atMs < byMs)
}

/** Whether a client followed its run, as if started elsewhere, before its start was answered. */
function isContested(job: JobRow, { jobs }: Evidence): boolean {
  return jobs.some(
    (one) => one.id !== job.id && one.thread_id === job.thread_id && one.input === null && one.created_by !== null,
  )
}

/** Only when its run had not ended by the deadline, or so shortly before that a lagging replica did not show it. */
function mayBeOverdue(job: JobRow, run: SimRun | undefined, runs: Iterable<SimRun>): boolean {
  if ((job.finished_at ?? 0) < job.deadline_at - MAX_SKEW_MS) return false
  if (run) return run.endedAtMs === null || run.endedAtMs >= job.deadline_at - STALE_MS - MAX_SKEW_MS
  return ![...runs].some(
    (one) => one.metadata.job_id === job.id && one.metadata.run_seq === job.run_seq && !one.removed,
  )
}

function isEnd(job: JobRow, { status, code, outputText, message }: End): boolean {
  return (
    job.status === status &&
    (code === undefined || job.error_code === code) &&
    (outputText === undefined || job.output === outputText) &&
    (message === undefined || job.error_message === message)
  )
}

function describe(job: JobRow, allowed: readonly End[], { runtime, nowMs }: Evidence): string {
  const run = job.run_id === null ? undefined : runtime.runs.get(job.run_id)
  const truth = run
    ? { status: run.status, ending: run.plan.ending, zombie: isZombie(run), endedAt: run.endedAtMs }
    : null
  return `${job.id} is ${JSON.stringify({ ...job, nowMs })}, its run ${JSON.stringify(truth)}, allowed ${JSON.stringify(allowed)}`
}

const TRANSITIONS = new Map<string | null, readonly string[]>([
  [null, ['processing']],
  ['processing', ['generating', 'awaiting_input', 'completed', 'failed', 'cancelled']],
  ['generating', ['awaiting_input', 'completed', 'failed', 'cancelled']],
  ['awaiting_input', ['processing', 'cancelled']],
])

function checkTransitions({ transitionsByJob, violate }: Evidence): void {
  for (const [jobId, transitions] of transitionsByJob) {
    for (const { old, new: to } of transitions) {
      if (!TRANSITIONS.get(old)?.includes(to)) violate('I3', `${jobId} moved from ${old} to ${to}`)
    }
    const resumes = transitions.filter(({ old, new: to }) => old === 'awaiting_input' && to === 'processing')
    if (resumes.some((transition, index) => transition.run_seq !== index + 2))
      violate('I3', `${jobId} resumed under an old number`)
  }
}

/** Each start and each resume of a job is one run, with the client's input. */
function checkRuns({ runtime, jobs, violate }: Evidence): void {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  const own = [...runtime.runs.values()].filter((run) => typeof run.metadata.job_id === 'string')
  const byStart = Map.groupBy(own, ({ metadata }) => `${metadata.job_id}:${metadata.run_seq}`)
  for (const [start, runs] of byStart) {
    // A run that vanished before the service knew of it is started again.
    if (runs.filter((run) => !run.removed).length > 1)
      violate('one run', `${runs.length} runs were started for ${start}`)
  }
  for (const run of own) {
    const job = byId.get(String(run.metadata.job_id))
    if (!job) violate('one run', `run ${run.runId} was started for a job that does not exist`)
    else if ('input' in run.work && JSON.stringify(run.work.input) !== job.input) {
      violate('one run', `run ${run.runId} was given ${JSON.stringify(run.work.input)} for ${job.input}`)
    }
  }
}

/** A job cancelled before its start gets no run, and no second job is made for a run of ours unless a client followed it. */
function checkOwners({ runtime, jobs, violate }: Evidence): void {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  const known = [...runtime.runs.values()].filter((run) => !run.removed)
  for (const { runId, metadata } of known) {
    const job = byId.get(String(metadata.job_id))
    if (job?.status !== 'cancelled' || job.run_id !== null || job.run_seq !== metadata.run_seq) continue
    violate('one run', `run ${runId} was started for ${job.id}, which was cancelled before it had one`)
  }
  for (const job of jobs) {
    const owner = runtime.runs.get(job.run_id ?? '')?.metadata.job_id
    if (job.created_by !== null || owner === undefined || owner === job.id) continue
    violate('one run', `${job.id} was made for run ${job.run_id} of ${owner}`)
  }
}

function checkResponses({ observed, jobs, runtime, violate, faultsStoppedAtMs }: Evidence): void {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  for (const [marker, answered] of observed.created) {
    const made = jobs.filter((job) => job.input === JSON.stringify({ marker }))
    if (made.length > 1) violate('idempotency', `${made.length} jobs were made for ${marker}`)
    for (const id of answered) if (!byId.has(id)) violate('promises', `job ${id} was in a response and is not stored`)
    if (answered.size > 1) violate('idempotency', `${marker} was answered with ${[...answered].join(' and ')}`)
  }
  for (const [runId, jobId] of observed.followed) {
    if (byId.get(jobId)?.thread_id !== runtime.runs.get(runId)?.threadId)
      violate('promises', `job ${jobId} does not follow run ${runId}`)
  }
  for (const [jobId, view] of observed.finals) {
    if (byId.get(jobId)?.status !== view.status) violate('I3', `${jobId} was shown as ${view.status}`)
  }
  for (const [jobId, atMs] of observed.cancelled) {
    const job = byId.get(jobId)
    const dueByMs = Math.max(atMs, faultsStoppedAtMs) + MAX_CHECK_INTERVAL_MS
    const run = runtime.runs.get(job?.run_id ?? '')
    const heard = run && (isZombie(run) || (run.cancelHeardAtMs ?? Number.POSITIVE_INFINITY) <= dueByMs)
    const wasOverdue = job && run && job.error_code === 'deadline_exceeded' && job.deadline_at > dueByMs
    if (wasOverdue && !heard) violate('promises', `the cancellation of ${jobId} was never passed on`)
  }
  for (const [jobId, answers] of observed.resumed) {
    const job = byId.get(jobId)
    const given = runtime.runsOn(job?.thread_id ?? '').flatMap(({ work }): Json[] => {
      const resume = 'command' in work ? work.command.resume : undefined
      return isJsonObject(resume) ? Object.values(resume) : []
    })
    const over = job && isFinal(job.status) && job.run_id === null
    const lost = answers.filter((answer) => !given.includes(answer))
    if (lost.length > 0 && !over) violate('promises', `${jobId} was resumed with ${lost}, which no run got`)
  }
}
