import { sql } from '../../../src/db/sql.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import { EXPECTED } from '../expected-statuses.ts'
import { MAX_LAG_MS } from '../outside/network.ts'
import { DRAFT } from '../outside/run-plans.ts'
import { isZombie, type SimRun } from '../outside/runtime.ts'
import { readLateChanges } from './change-triggers.ts'
import type { Evidence } from './evidence.ts'

const MAX_SKEW_MS = 1_000
/** The longest time between two checks of a paused job that no client reads. */
const PAUSED_CHECK_MS = 2 * 3_600_000
/** The longest suspension of a process or stall of its database. */
const LONGEST_HOLD_UP_MS = 70_000

type End = { status: string; code?: string; outputText?: string; message?: string }

const CANCELLED: End = { status: 'cancelled' }
const LOST: End = { status: 'failed', code: 'run_lost' }
/** `checkQuestionTimes` decides whether it is right. */
const EXPIRED: End = { status: 'failed', code: 'answer_expired' }
const OVERDUE: End = { status: 'failed', code: 'deadline_exceeded' }

/** I1, I3, I4: every job ends as its run did, with the run's own output, and stays as it ended. */
export async function checkJobs(evidence: Evidence): Promise<void> {
  const pinned = await evidence.store.query<{ id: string }>(sql`select id from threads where is_pinned = 1`)
  for (const job of evidence.jobs) {
    checkQuestions(job, evidence, { isPinned: pinned.some(({ id }) => id === job.thread_id) })
    const allowed = allowedEnds(job, evidence)
    if (allowed.some((end) => isEnd(job, end))) continue
    const wrongOutput = allowed.some(({ status, code }) => isEnd(job, { status, ...(code ? { code } : {}) }))
    evidence.violate(wrongOutput ? 'I4' : 'I1', describe(job, allowed, evidence))
  }
  for (const { job_id, what } of await readLateChanges(evidence.store)) evidence.violate('I3', `${job_id}: ${what}`)
  checkTransitions(evidence)
}

/** A job that awaits input shows the questions that its graph asks now. */
function checkQuestions(job: JobRow, { runtime, nowMs, violate }: Evidence, { isPinned }: { isPinned: boolean }): void {
  if (job.status !== 'awaiting_input') return
  const asked = runtime.questionsLeftBy(runtime.runs.get(job.run_id ?? ''), isPinned)
  // A question that was answered elsewhere is noticed by the next check of the paused job, within the hour.
  if (nowMs - job.updated_at < PAUSED_CHECK_MS && runtime.wasChangedElsewhere(job.thread_id)) return
  // A job whose question was closed by hand asks nothing.
  if (!asked.includes(job.interrupts ?? '[]')) {
    violate('I4', `${job.id} asks ${job.interrupts}, its graph asks ${asked}`)
  }
}

/** The ends that are correct for the job's run; nearly always one. */
function allowedEnds(job: JobRow, evidence: Evidence): End[] {
  const { runtime } = evidence
  const run = job.run_id === null ? undefined : runtime.runs.get(job.run_id)
  const cancelRequested = job.cancel_requested_at !== null
  const ends: End[] = run ? [...endsOf(run, cancelRequested), ...laterErrors(run, runtime.runs.values())] : []
  if (run?.forgotten && !wasReported(job, run, evidence)) ends.push(LOST)
  if (!run && isContested(job, evidence)) ends.push(LOST)
  if (!run && wasAnsweredElsewhere(job, evidence)) ends.push({ status: 'failed', code: 'answer_not_applied' })
  if (!run && waitsForAnswer(job, evidence)) ends.push({ status: 'processing' })
  if (!run && cancelRequested) ends.push({ status: 'cancelled' })
  if (!run && job.type === 'ghost') ends.push({ status: 'failed', code: 'start_rejected' })
  if (mayBeOverdue(job, run, runtime.runs.values())) ends.push(OVERDUE)
  // The runtime could not be asked until the service gave up the job: then a callback decides, or without a callback the
  // deadline.
  if (evidence.wasRefused(job.finished_at ?? 0))
    return run && wasReported(job, run, evidence) ? [...ends, reportedEnd(run)] : [...ends, OVERDUE]
  return ends
}

/** The end that a callback proves without the runtime: a `success` is complete only with the output. */
function reportedEnd({ status, error, plan: { ending } }: SimRun): End {
  if (status === 'error') return { status: 'failed', code: 'run_failed', message: error ?? '' }
  if (status === 'timeout') return { status: 'failed', code: 'run_timeout' }
  if (status !== 'success') return CANCELLED
  if (ending.kind === 'success') return { status: 'completed', outputText: ending.outputText }
  if (ending.kind === 'pause' && ending.early) return { status: 'completed', outputText: DRAFT }
  return { status: 'failed', code: 'output_missing' }
}

function endsOf(run: SimRun, cancelRequested: boolean): End[] {
  // Deleted before or after the cancellation: the service cannot know which.
  if (run.forgotten)
    return [
      ...(cancelRequested ? [CANCELLED] : []),
      ...endsOf({ ...run, forgotten: false, removed: false }, cancelRequested),
    ]
  if (run.removed) return cancelRequested || run.plan.ending.kind === 'rolled_back' ? [CANCELLED, LOST] : [LOST]
  if (run.paused) return [{ status: 'awaiting_input' }, EXPIRED, ...(cancelRequested ? [CANCELLED] : [])]
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

/**
 * A resumed run that fails in its first step leaves its error on the checkpoint that it resumed from. Another run that fails
 * there later replaces the error, and the runtime has no other copy.
 */
function laterErrors(run: SimRun, runs: Iterable<SimRun>): End[] {
  if (run.status !== 'error' || run.head === undefined) return []
  return Array.from(runs)
    .filter(({ status, head, endedAtMs }) => {
      return status === 'error' && head === run.head && (endedAtMs ?? 0) > (run.endedAtMs ?? 0)
    })
    .map(({ error }) => ({ status: 'failed', code: 'run_failed', message: error ?? '' }))
}

/** Whether a callback reported the end of the run, well before the job failed as lost. */
function wasReported(job: JobRow, run: SimRun, { callbacks, suspensions, databaseFaults }: Evidence): boolean {
  const heldUpMs = suspensions + databaseFaults > 0 ? LONGEST_HOLD_UP_MS : 0
  const byMs = (job.finished_at ?? 0) - MAX_SKEW_MS - heldUpMs
  return callbacks.reportedEnds.some(({ runId, jobId, atMs }) => runId === run.runId && jobId === job.id && atMs < byMs)
}

/** Whether another client of the runtime may have answered the question before the job's own answer arrived. */
function wasAnsweredElsewhere(job: JobRow, { runtime }: Evidence): boolean {
  return job.run_seq > 1 && runtime.wasChangedElsewhere(job.thread_id)
}

/** Whether a client followed its run, as if started elsewhere, before its start was answered. */
function isContested(job: JobRow, { jobs }: Evidence): boolean {
  return jobs.some(
    (one) => one.id !== job.id && one.thread_id === job.thread_id && one.input === null && one.created_by !== null,
  )
}

/** A paused turn holds the turns that wait behind it. So does a paused job that follows a run on the thread, however new. */
function waitsForAnswer(job: JobRow, { jobs }: Evidence): boolean {
  if (job.waits_on === null) return false
  const isBefore = (one: JobRow) => one.thread_id === job.thread_id && (one.id < job.id || one.input === null)
  return jobs.some((one) => isBefore(one) && one.status === 'awaiting_input')
}

/**
 * True only if its run had not ended by the deadline, or ended so shortly before that a lagging replica did not show it.
 */
function mayBeOverdue(job: JobRow, run: SimRun | undefined, runs: Iterable<SimRun>): boolean {
  if ((job.finished_at ?? 0) < job.deadline_at - MAX_SKEW_MS) return false
  if (run) return run.endedAtMs === null || run.endedAtMs >= job.deadline_at - MAX_LAG_MS - MAX_SKEW_MS
  return ![...runs].some(
    (one) => one.metadata.job_id === job.id && one.metadata.run_seq === job.run_seq && !one.removed && !one.isLate,
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

function checkTransitions({ transitionsByJob, violate }: Evidence): void {
  for (const [jobId, transitions] of transitionsByJob) {
    for (const { old, new: to } of transitions) {
      const allowed = old === null ? ['processing'] : EXPECTED[old].next
      if (!allowed.includes(to)) violate('I3', `${jobId} moved from ${old} to ${to}`)
    }
    for (const [index, { old, new: to, run_seq }] of transitions.entries()) {
      const isResume = old === 'awaiting_input' && ['processing', 'generating'].includes(to)
      if (isResume && run_seq !== (transitions[index - 1]?.run_seq ?? 0) + 1)
        violate('I3', `${jobId} resumed under an old number`)
    }
  }
}
