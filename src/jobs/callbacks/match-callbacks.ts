import type { AuditOrigin } from '../../audit/record-audit.ts'
import type { Transaction } from '../../db/database.ts'
import { appendEvents } from '../../events/event-store.ts'
import type { CallbackPayload } from '../../runtime/callback-payload.ts'
import { isWatched } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { type JobRow, newJob } from '../job-row.ts'
import { findJobRuns, findJobsAwaitingRun, insertJob, insertJobRuns, type JobRun } from '../job-store.ts'
import type { JobType } from '../job-types.ts'
import { findDeleted } from '../retention/delete-store.ts'
import { jobEvent } from '../settlement/job-event.ts'
import type { Settlement, SettlingJob } from '../settlement/settlement.ts'

export interface ReceivedCallback {
  payload: CallbackPayload
  type: JobType
  path: string
  /** The job that the callback's credential is bound to. */
  jobId: string | null
  receivedAtMs: number
  /** The span of the request with the callback. */
  traceparent?: string | null
  /** The id of the stored callback that is replayed. A replay is not stored a second time. */
  replayOf?: string
  /** Named in the audit trail. */
  replayedBy?: AuditOrigin
}

/** The job was deleted, or erased with its user: the callback changes nothing, and nothing of it is stored. */
interface DeletedMatch {
  callback: ReceivedCallback
  deletedJobId: string
}

export interface MatchedCallback {
  callback: ReceivedCallback
  job: SettlingJob
  runSeq: number | undefined
  /** The job was created for this callback, because no job knew its run. */
  adopted: boolean
  /** The credential is bound to another job, or the run belongs to another job: the callback must not change this one. */
  wrongJob: boolean
  /** The job was found only by its thread, and the run may belong to an earlier turn: the runtime must be asked. */
  isHint: boolean
}

/**
 * Finds the job of each callback, and locks it for the settlement. A credential bound to a job decides; otherwise the
 * run, then the job that the payload names, then the thread. A run that no job knows gets a new job, so that its result
 * is not lost.
 */
export async function matchCallbacks(
  tx: Transaction,
  { batch, settlement, ids }: { batch: readonly ReceivedCallback[]; settlement: Settlement; ids: JobContext['ids'] },
): Promise<(MatchedCallback | DeletedMatch)[]> {
  const { atMs } = settlement
  const { runs, jobs, awaitingRun, deleted } = await lockCandidates(tx, batch, settlement)
  const adoptedByRun = new Map<string, JobRow>()

  const matched = batch.map((callback): MatchedCallback | DeletedMatch => {
    const { payload, jobId } = callback
    const run = runs.get(payload.runId)
    const owner = run ? jobs.get(run.job_id) : adoptedByRun.get(payload.runId)
    const onThread = deleted.has(payload.runId) ? undefined : awaitingRun.get(payload.threadId)
    const mentioned = payload.jobId === null ? onThread : jobs.get(payload.jobId)
    const named = jobId === null ? (owner ?? mentioned) : jobs.get(jobId)
    const job = named ?? owner ?? jobs.get(payload.jobId ?? '')
    const isHint = jobId === null && owner === undefined && payload.jobId === null && job?.continues != null
    // A credential bound to one job proves nothing about another job, nor about the run of another job.
    const isOfOther = owner === undefined ? payload.jobId !== null && payload.jobId !== jobId : owner.id !== jobId
    const wrongJob = jobId !== null && (job?.id !== jobId || isOfOther)
    const deletedByCredential = deleted.get(jobId ?? '')
    if (deletedByCredential !== undefined) return { callback, deletedJobId: deletedByCredential }
    if (job && job.erased_at !== null) return { callback, deletedJobId: job.id }
    if (job) return { callback, job, runSeq: runSeqOf(payload, job) ?? run?.run_seq, adopted: false, wrongJob, isHint }
    const deletedJobId = deleted.get(payload.runId) ?? deleted.get(jobId ?? payload.jobId ?? '')
    if (deletedJobId !== undefined) return { callback, deletedJobId }
    const adopted = adopt(callback, ids, atMs)
    adoptedByRun.set(payload.runId, adopted)
    jobs.set(adopted.id, adopted)
    settlement.add(adopted)
    return { callback, job: adopted, runSeq: 1, adopted: true, wrongJob: false, isHint: false }
  })

  for (const job of adoptedByRun.values()) {
    await insertJob(tx, job)
    await appendEvents(tx, [jobEvent(job, 'job.created', `${job.id}:created`, atMs)])
  }
  await insertJobRuns(
    tx,
    [...adoptedByRun].map(([run_id, job]) => ({ run_id, job_id: job.id, run_seq: 1, created_at: atMs })),
  )
  return matched
}

/**
 * A callback of an earlier run may arrive when the job's current run is not known yet: the metadata shows which run it is.
 */
function runSeqOf({ jobId, runSeq }: CallbackPayload, job: SettlingJob): number | undefined {
  return jobId === job.id && runSeq !== null ? runSeq : undefined
}

interface Candidates {
  runs: Map<string, JobRun>
  jobs: Map<string, SettlingJob>
  /** By thread: the jobs whose run is not known yet. */
  awaitingRun: Map<string, SettlingJob>
  /** By the id of a run or a job: the deleted job it belonged to. */
  deleted: Map<string, string>
}

async function lockCandidates(
  tx: Transaction,
  batch: readonly ReceivedCallback[],
  settlement: Settlement,
): Promise<Candidates> {
  const known = await findJobRuns(
    tx,
    batch.map(({ payload }) => payload.runId),
  )
  const runs = new Map(known.map((run) => [run.run_id, run]))
  const candidates = new Set(known.map((run) => run.job_id))
  for (const { jobId, payload } of batch) for (const id of [jobId, payload.jobId]) if (id !== null) candidates.add(id)
  for (const id of await findByThread(tx, batch, runs)) candidates.add(id)
  const locked = await settlement.lock([...candidates])
  const awaiting = locked.filter(({ run_id, status }) => run_id === null && isWatched(status))
  const jobs = new Map(locked.map((job) => [job.id, job]))
  // Read after the lock: a job may have been deleted while this transaction waited for it.
  const unknown = batch.flatMap(({ jobId, payload }) => {
    const named = [runs.get(payload.runId)?.job_id, jobId, payload.jobId].filter((id) => typeof id === 'string')
    const isKnown = jobId === null ? named.some((id) => jobs.has(id)) : jobs.has(jobId)
    return isKnown ? [] : [payload.runId, ...named]
  })
  return {
    runs,
    jobs,
    deleted: await findDeleted(tx, unknown),
    awaitingRun: new Map(awaiting.map((job) => [job.thread_id, job])),
  }
}

/**
 * An unknown run on the thread of a job whose run is not known yet is that job's run: its callback arrived before the
 * answer to the start request.
 */
async function findByThread(
  tx: Transaction,
  batch: readonly ReceivedCallback[],
  runs: ReadonlyMap<string, JobRun>,
): Promise<string[]> {
  const nameless = batch.filter(
    ({ jobId, payload }) => jobId === null && payload.jobId === null && !runs.has(payload.runId),
  )
  if (nameless.length === 0) return []
  return findJobsAwaitingRun(
    tx,
    nameless.map(({ payload }) => payload.threadId),
  )
}

/** The id comes from the credential, if it names one. The job has no owner: only admins see it until it is claimed. */
function adopt({ payload, type, jobId }: ReceivedCallback, ids: JobContext['ids'], atMs: number): JobRow {
  const { threadId: thread_id, runId: run_id } = payload
  const id = jobId ?? ids.next('job')
  return newJob(type, { id, input: null, project_id: null, created_by: null, thread_id, run_id }, atMs)
}
