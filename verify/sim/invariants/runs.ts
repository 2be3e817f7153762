import { isJsonObject } from '../../../src/core/json.ts'
import { sql } from '../../../src/db/sql.ts'
import type { SentAnswers } from '../clients/sent-documents.ts'
import { isFinal } from '../expected-statuses.ts'
import { START_MS } from '../outside/identity.ts'
import { STORED_WITHIN_MS } from '../outside/network.ts'
import { isOwn, isZombie, type SimRun, type SimRuntime } from '../outside/runtime.ts'
import type { ProcessInstance } from '../system/process-instance.ts'
import type { Evidence } from './evidence.ts'

const OVERDUE = 'deadline_exceeded'

/** The longest time between two checks of a job, plus some slack. */
const MAX_CHECK_INTERVAL_MS = 330_000

/** Each job has the runs that its clients asked for, and clients got correct answers. */
export async function checkRuns(evidence: Evidence): Promise<void> {
  checkStarts(evidence)
  await checkFurtherRuns(evidence)
  checkOwners(evidence)
  checkResponses(evidence)
  await checkAnswers(evidence)
}

/**
 * Each start and each resume of a job is one run, with the client's input. Further runs are those of starts that the
 * runtime handled late, and the job follows the run of its last attempt.
 */
function checkStarts({ runtime, jobs, observed, gone, violate }: Evidence): void {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  const own = [...runtime.runs.values()].filter(isOwn)
  const byStart = Map.groupBy(own, ({ metadata }) => `${metadata.job_id}:${metadata.run_seq}`)
  for (const [start, runs] of byStart) {
    // A run that vanished before the service knew of it is started again.
    const known = runs.filter((run) => !run.removed)
    if (known.filter((run) => !run.isLate).length > 1)
      violate('one run', `${runs.length} runs were started for ${start}`)
    const job = byId.get(String(runs[0]?.metadata.job_id))
    const followed = known.find(({ runId }) => runId === job?.run_id)
    const last = Math.max(...known.map(attemptOf))
    // A resumed run without a checkpoint has replaced the question, which cannot be answered again.
    const hasReplaced = followed?.metadata.run_seq !== 1 && followed?.head?.run !== followed
    if (followed && attemptOf(followed) < last && !hasReplaced)
      violate('one run', `${job?.id} has the run of attempt ${attemptOf(followed)}, and attempt ${last} has one, too`)
    // A conversation whose runs left nothing moves to a new thread, with the jobs of these runs.
    const leftNothing = job?.status === 'cancelled' || job?.error_code === 'run_lost' || job?.error_code === OVERDUE
    if (followed && followed.threadId !== job?.thread_id && !(leftNothing && followed.head?.run !== followed))
      violate('one run', `the run ${followed.runId} of ${job?.id} is on the thread ${followed.threadId}`)
  }
  for (const run of own) {
    const jobId = String(run.metadata.job_id)
    const job = byId.get(jobId)
    if (gone.has(jobId)) continue
    if (!job) violate('one run', `run ${run.runId} was started for a job that does not exist`)
    else if (run.metadata.run_seq === 1 && 'input' in run.work) {
      const given = JSON.stringify(run.work.input)
      const marker = (run.work.input as { marker?: string } | null)?.marker ?? ''
      const sent = [observed.inputs.get(marker), observed.perhapsInputs.get(marker)]
      if (!sent.includes(given) || job.input !== given)
        violate('one run', `run ${run.runId} was given ${given} instead of ${sent[0]}`)
    }
  }
}

/**
 * Each attempt to start a run has at most one. A further run that a check of its job has seen active is asked to stop, and
 * is noted as a further one.
 */
async function checkFurtherRuns({
  plan,
  store,
  runtime,
  network,
  callbacks,
  jobs,
  gone,
  transitionsByJob,
  violate,
}: Evidence): Promise<void> {
  const own = [...runtime.runs.values()].filter(isOwn)
  const byAttempt = Map.groupBy(
    own,
    (run) => `${run.metadata.job_id}:${run.metadata.run_seq}, attempt ${attemptOf(run)}`,
  )
  for (const [attempt, runs] of byAttempt) {
    if (runs.length > 1) violate('one run', `${runs.map(({ runId }) => runId)} belong to ${attempt}`)
  }
  const rows = await store.query<{ run_id: string; is_extra: number }>(sql`select run_id, is_extra from job_runs`)
  const stored = new Map(rows.map(({ run_id, is_extra }) => [run_id, is_extra]))
  const reports = [...callbacks.accepted.values()].filter(({ numbersRun }) => numbersRun)
  const reported = new Set(reports.map(({ runId }) => runId))
  const byId = new Map(jobs.map((job) => [job.id, job]))
  const wasDatabaseDown = (cancelledAtMs: number) =>
    plan.incidents.some(({ atMs, incident }) => {
      const fromMs = START_MS + atMs - STORED_WITHIN_MS
      return (
        incident.kind === 'database_down' && cancelledAtMs >= fromMs && cancelledAtMs <= START_MS + atMs + incident.ms
      )
    })
  for (const { runId, metadata } of own) {
    const job = byId.get(String(metadata.job_id))
    if (job && reported.has(runId) && !stored.has(runId))
      violate('one run', `the run ${runId} of ${job.id} was reported by a callback and is not noted`)
  }
  for (const job of jobs) {
    // On these threads other checks list the runs, too.
    const isAlone = !jobs.some((one) => one.id !== job.id && one.thread_id === job.thread_id)
    // The checks of a question list the runs of other clients. A late run of the job is cancelled by a later look.
    const hasPaused = (transitionsByJob.get(job.id) ?? []).some(({ new: to }) => to === 'awaiting_input')
    if (!isAlone || hasPaused || gone.has(job.id)) continue
    for (const run of own.filter(({ metadata }) => metadata.job_id === job.id)) {
      if (run.runId === job.run_id) continue
      // A process found the run and crashed before it stored that; then the runtime deleted the run. It was no further one.
      const sinceMs = run.removed ? Math.min(...own.filter((one) => isRepeated(run, one)).map(createdAt)) : 0
      // Or the job ended after the crash without a run, because the runtime could not be reached any more.
      const canAct = ({ instance }: { instance: ProcessInstance }) =>
        job.run_id !== null || instance.endedAtMs > (job.finished_at ?? 0)
      const seen = (network.listed.get(run.runId) ?? []).filter((look) => look.atMs >= sinceMs && canAct(look))
      if (seen.length > 0 && !network.cancels.has(run.runId))
        violate(
          'one run',
          `the further run ${run.runId} of ${job.id} was listed ${seen.length} times and not cancelled`,
        )
      // A run that could not be cancelled, or could not be stored then, is noted later, unless the job has ended by then.
      const isNoted = stored.get(run.runId) === 1 || network.failedCancels.has(run.runId)
      if (seen.length > 0 && !isNoted && !wasDatabaseDown(network.cancels.get(run.runId) ?? 0))
        violate('one run', `the further run ${run.runId} of ${job.id} was listed ${seen.length} times and is not noted`)
    }
  }
}

function attemptOf({ metadata }: SimRun): number {
  return typeof metadata.attempt === 'number' ? metadata.attempt : 1
}

/** Whether `by` is the run of a later attempt of the same start. */
function isRepeated(run: SimRun, by: SimRun): boolean {
  const { job_id, run_seq } = run.metadata
  return by.metadata.job_id === job_id && by.metadata.run_seq === run_seq && attemptOf(by) > attemptOf(run)
}

function createdAt({ createdAtMs }: SimRun): number {
  return createdAtMs
}

/**
 * A job cancelled before its start gets no run, and a run that the service started gets no second job unless a client
 * followed it.
 */
function checkOwners({ runtime, jobs, violate }: Evidence): void {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  const known = [...runtime.runs.values()].filter((run) => !run.removed && !run.isLate)
  for (const { runId, metadata } of known) {
    const job = byId.get(String(metadata.job_id))
    if (job?.status !== 'cancelled' || job.run_id !== null || job.run_seq !== metadata.run_seq) continue
    violate('one run', `run ${runId} was started for ${job.id}, which was cancelled before it had one`)
  }
  for (const job of jobs) {
    const run = runtime.runs.get(job.run_id ?? '')
    const owner = run?.metadata.job_id
    // A run that vanished before the service knew of it was started again: its late callback finds no job.
    if (job.created_by !== null || owner === undefined || owner === job.id || run?.removed) continue
    // On a thread of another client, a late run whose callback names no job may be that client's.
    if (run?.isLate && byId.get(String(owner))?.input === null) continue
    violate('one run', `${job.id} was made for run ${job.run_id} of ${owner}`)
  }
}

function checkResponses({ observed, jobs, runtime, gone, violate, faultsStoppedAtMs }: Evidence): void {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  for (const [marker, answered] of observed.created) {
    const sent = [observed.inputs.get(marker), observed.perhapsInputs.get(marker)]
    const made = jobs.filter(({ input, retry_of }) => input !== null && sent.includes(input) && retry_of === null)
    if (made.length > 1) violate('idempotency', `${made.length} jobs were made for ${marker}`)
    for (const id of answered) {
      if (!byId.has(id) && !gone.has(id)) violate('promises', `job ${id} was in a response and is not stored`)
    }
    if (answered.size > 1) violate('idempotency', `${marker} was answered with ${[...answered].join(' and ')}`)
  }
  for (const [runId, jobId] of observed.followed) {
    const job = byId.get(jobId)
    // A conversation whose runs left nothing moves to a new thread.
    if (job?.run_id !== runId && job?.thread_id !== runtime.runs.get(runId)?.threadId)
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
}

/**
 * Every answer that was accepted reached a run, to the letter and by the id of its question. The timeline notes those that
 * came too late, because another client of the runtime was faster.
 */
async function checkAnswers({ store, observed, jobs, runtime, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ job_id: string; answers: number }>(sql`
    select job_id, count(*) as answers from job_timeline
    where kind = 'continued_elsewhere' and detail ->> '$.answer' = 'not_applied' group by job_id`)
  const late = new Map(rows.map(({ job_id, answers }) => [job_id, answers]))
  const byId = new Map(jobs.map((job) => [job.id, job]))
  for (const [jobId, answers] of observed.resumed) {
    const job = byId.get(jobId)
    const runs = runtime.runsOn(job?.thread_id ?? '')
    const over = job && isFinal(job.status) && job.run_id === null
    const lost = answers.filter((sent) => !runs.some((run) => isGiven(sent, run, runtime)))
    if (lost.length > (late.get(jobId) ?? 0) && !over)
      violate('promises', `${jobId} was resumed with ${JSON.stringify(lost)}, which no run got`)
  }
}

/** Whether the run got the answers that a client sent. */
export function isGiven(sent: SentAnswers, run: SimRun, runtime: SimRuntime): boolean {
  const { work, metadata } = run
  if (!isOwn(run)) return false
  const continues = 'input' in work && work.input === null && metadata.run_seq !== 1
  if (sent === null) return continues
  // Once the question was answered by hand, `{"input": null}` means: continue.
  const isNull = Object.values(sent).join() === 'null'
  if (continues && isNull && runtime.wasChangedElsewhere(run.threadId)) return true
  const resume = 'command' in work ? work.command.resume : undefined
  return isJsonObject(resume) && Object.entries(sent).every(([id, text]) => JSON.stringify(resume[id]) === text)
}
