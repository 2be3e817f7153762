import type { AuditOrigin } from '../../audit/record-audit.ts'
import { timeOfId } from '../../core/ids.ts'
import type { Transaction } from '../../db/database.ts'
import { appendEvents } from '../../events/event-store.ts'
import type { CallbackPayload } from '../../runtime/callback-payload.ts'
import { isTerminal, isWatched } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { type JobRow, newJob } from '../job-row.ts'
import { findJobRuns, findJobsAwaitingRun, findThreadsOf, insertJob, insertJobRuns, type JobRun } from '../job-store.ts'
import type { JobType } from '../job-types.ts'
import { findDeleted, TOMBSTONE_RETENTION_MS } from '../retention/delete-store.ts'
import { jobEvent } from '../settlement/job-event.ts'
import type { Settlement, SettlingJob } from '../settlement/settlement.ts'
import { lockUsageOf } from '../settlement/usage-of.ts'
import { findNewestTurns } from '../thread-store.ts'
import type { LockedOwners } from './locked-owners.ts'

export interface ReceivedCallback {
  payload: CallbackPayload
  type: JobType
  path: string
  /** The job that the callback's credential is bound to. */
  jobId: string | null
  receivedAtMs: number
  /** The span of the request with the callback. */
  traceContext?: string | null
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

/** Another transaction has locked a job that the callback names, or its owner's usage: nothing of it was processed. */
interface LockedMatch {
  callback: ReceivedCallback
  /** The owner of the locked job, or else its thread: the callbacks that wait for the same lock wait together. */
  lockedBy: string
}

/**
 * What a group of callbacks does about locks of other transactions. `wait`: waits for all of them. `skip_locked_jobs`:
 * skips locked jobs, and owners that were locked a moment ago. `skip_locked_owners`: skips locked jobs, and owners whose
 * usage is locked. Skipped callbacks are committed later, beside the groups.
 */
export type LockMode = 'wait' | 'skip_locked_jobs' | 'skip_locked_owners'

export interface MatchedCallback {
  callback: ReceivedCallback
  job: SettlingJob
  runSeq: number | undefined
  /** The job was created for this callback, because no job knew its run. */
  adopted: boolean
  /** The credential is bound to another job, or the run belongs to another job: the callback must not change this one. */
  wrongJob: boolean
  /** The run may belong to an earlier turn, or to an attempt that was repeated since: the runtime must be asked. */
  isHint: boolean
  /** A further run of the job's current number, which is not followed. */
  isExtra: boolean
}

interface CallbackBatch {
  batch: readonly ReceivedCallback[]
  settlement: Settlement
  locks: LockMode
  lockedOwners: LockedOwners
}

/**
 * Finds the job of each callback, and locks it for the settlement. A credential bound to a job decides; otherwise the
 * run, then the job that the payload names, then the thread. A run that no job knows gets a new job, so that its result
 * is not lost.
 */
export async function matchCallbacks(
  tx: Transaction,
  { ids, types, ...group }: CallbackBatch & Pick<JobContext, 'ids' | 'types'>,
): Promise<(MatchedCallback | DeletedMatch | LockedMatch)[]> {
  const { batch, settlement } = group
  const { atMs } = settlement
  const candidates = await lockCandidates(tx, group)
  const { runs, jobs, awaitingRun, newestTurns, deleted, lockOf } = candidates
  const adoptedByRun = new Map<string, JobRow>()

  const matched = batch.map((callback): MatchedCallback | DeletedMatch | LockedMatch => {
    const { payload, jobId } = callback
    const lockedBy = lockOf(callback)
    if (lockedBy !== undefined) return { callback, lockedBy }
    const run = runs.get(payload.runId)
    const owner = run ? jobs.get(run.job_id) : adoptedByRun.get(payload.runId)
    const awaiting = deleted.has(payload.runId) ? undefined : awaitingRun.get(payload.threadId)
    // No job waits for a run on this thread, and only this service starts runs on it: the run is a late one.
    const isLate = awaiting === undefined && owner === undefined && payload.jobId === null && jobId === null
    const newest = isLate && !deleted.has(payload.runId) ? newestTurns.get(payload.threadId) : undefined
    const onThread = awaiting ?? newest
    const mentioned = payload.jobId === null ? onThread : jobs.get(payload.jobId)
    const named = jobId === null ? (owner ?? mentioned) : jobs.get(jobId)
    const job = named ?? owner ?? jobs.get(payload.jobId ?? '')
    // A stored callback may have been found by its thread only, so a replay is no credential.
    const isBound = jobId !== null && callback.replayOf === undefined
    const isNameless = !isBound && owner === undefined && payload.jobId === null && job?.continues != null
    const isHint = isNameless || (run === undefined && job !== undefined && mayBeLate(payload, job))
    // A credential bound to one job proves nothing about another job, nor about the run of another job.
    const isOfOther = owner === undefined ? payload.jobId !== null && payload.jobId !== jobId : owner.id !== jobId
    const wrongJob = newest !== undefined || (jobId !== null && (job?.id !== jobId || isOfOther))
    const isForgotten = jobId !== null && !jobs.has(jobId) && timeOfId(jobId) < atMs - TOMBSTONE_RETENTION_MS
    const deletedByCredential = isForgotten ? jobId : deleted.get(jobId ?? '')
    if (deletedByCredential !== undefined) return { callback, deletedJobId: deletedByCredential }
    if (job && job.erased_at !== null) return { callback, deletedJobId: job.id }
    if (job) {
      const runSeq = runSeqOf(payload, job) ?? run?.run_seq
      const isExtra = !wrongJob && !isHint && (run ? run.is_extra === 1 : isExtraRun(payload, job))
      return { callback, job, runSeq, adopted: false, wrongJob, isHint, isExtra }
    }
    const deletedJobId = deleted.get(payload.runId) ?? deleted.get(jobId ?? payload.jobId ?? payload.threadId)
    if (deletedJobId !== undefined) return { callback, deletedJobId }
    const adopted = adopt(callback, ids, atMs)
    adoptedByRun.set(payload.runId, adopted)
    jobs.set(adopted.id, adopted)
    settlement.add(adopted)
    return { callback, job: adopted, runSeq: 1, adopted: true, wrongJob: false, isHint: false, isExtra: false }
  })

  const byThread = (a: JobRow, b: JobRow) => (a.thread_id < b.thread_id ? -1 : 1)
  for (const job of [...adoptedByRun.values()].sort(byThread)) {
    await insertJob(tx, job)
    await appendEvents(tx, [jobEvent(job, 'job.created', { cause: `${job.id}:created`, atMs, types })])
  }
  await insertJobRuns(
    tx,
    [...adoptedByRun].map(([run_id, job]) => ({ run_id, job_id: job.id, run_seq: 1, is_extra: 0, created_at: atMs })),
  )
  return matched
}

/**
 * A callback of an earlier run may arrive when the job's current run is not known yet: the metadata shows which run it is.
 */
function runSeqOf({ jobId, runSeq }: CallbackPayload, job: SettlingJob): number | undefined {
  return jobId === job.id && runSeq !== null ? runSeq : undefined
}

/**
 * Whether the callback is about the run of an attempt that was repeated or given up since: the runtime handled that attempt
 * late. The run is not known.
 */
function isExtraRun({ jobId, runSeq, runId, threadId, attempt }: CallbackPayload, job: SettlingJob): boolean {
  if (jobId !== job.id || runSeq === null || runSeq > job.run_seq) return false
  if (runSeq < job.run_seq) return true
  if (job.run_id !== null) return job.run_id !== runId
  if (isTerminal(job.status)) return true
  return threadId !== job.thread_id || attempt < job.start_attempts
}

/** Whether the run may be that of an earlier number, or of an attempt that was repeated since. Its callback does not number it. */
function mayBeLate({ runSeq, attempt }: CallbackPayload, job: SettlingJob): boolean {
  return runSeq === null && job.run_id === null && (job.run_seq > 1 || attempt < job.start_attempts)
}

interface Candidates {
  runs: Map<string, JobRun>
  jobs: Map<string, SettlingJob>
  /** By thread: the jobs whose run is not known yet. */
  awaitingRun: Map<string, SettlingJob>
  /** By thread: the newest jobs on threads that this service created. */
  newestTurns: Map<string, SettlingJob>
  /** By the id of a run, a job or a thread: the deleted job it belonged to. */
  deleted: Map<string, string>
  lockOf: (callback: ReceivedCallback) => string | undefined
}

async function lockCandidates(tx: Transaction, group: CallbackBatch): Promise<Candidates> {
  const { batch, settlement, locks, lockedOwners } = group
  const known = await findJobRuns(
    tx,
    batch.map(({ payload }) => payload.runId),
  )
  const runs = new Map(known.map((run) => [run.run_id, run]))
  const candidates = new Set(known.map((run) => run.job_id))
  for (const { jobId, payload } of batch) for (const id of [jobId, payload.jobId]) if (id !== null) candidates.add(id)
  const onThreads = await findByThread(tx, batch, runs)
  for (const id of [...onThreads.awaiting, ...onThreads.newest.values()]) candidates.add(id)
  const locked = await settlement.lock([...candidates], { skipLocked: locks !== 'wait' })
  const jobs = new Map(locked.map((job) => [job.id, job]))
  if (locks !== 'wait') leaveOut(jobs, (owner) => lockedOwners.has(owner))
  if (locks === 'skip_locked_owners') await skipLockedOwners(tx, jobs, group)
  const awaiting = [...jobs.values()].filter(
    ({ run_id, status, waits_on }) => run_id === null && isWatched(status) && waits_on === null,
  )
  const namedBy = ({ jobId, payload }: ReceivedCallback) =>
    [runs.get(payload.runId)?.job_id, jobId, payload.jobId].filter((id) => typeof id === 'string')
  const unknown = batch.flatMap((callback) => {
    const { jobId, payload } = callback
    const named = namedBy(callback)
    const isKnown = jobId === null ? named.some((id) => jobs.has(id)) : jobs.has(jobId)
    // Only this service starts runs on its threads: a run that names no job is a late one of the deleted jobs.
    const ofThread = [payload.threadId, onThreads.newest.get(payload.threadId) ?? payload.threadId]
    return isKnown ? [] : [payload.runId, ...(named.length === 0 ? ofThread : named)]
  })
  const missing = [...candidates].filter((id) => !jobs.has(id))
  // Both are read after the lock. A job that is missing is locked elsewhere if it is still stored, or was deleted while this
  // transaction waited for it. A job that is deleted between the two reads counts as locked.
  const [left, deleted] = await Promise.all([
    locks === 'wait' || missing.length === 0 ? [] : findThreadsOf(tx, missing),
    findDeleted(tx, unknown),
  ])
  // The thread may stay, because the conversation moved from it to another one, and has later turns there.
  for (const [threadId, newest] of onThreads.newest) {
    const jobId = deleted.get(newest)
    if (jobId !== undefined) deleted.set(threadId, jobId)
  }
  const lockOf = new Map(
    left.flatMap(({ id, thread_id, created_by }) => [id, thread_id].map((key) => [key, created_by ?? thread_id])),
  )
  return {
    runs,
    jobs,
    deleted,
    // A run that no job knows may be that of a locked job on its thread.
    lockOf: (callback) => {
      const { threadId } = callback.payload
      const named = [threadId, ...namedBy(callback), onThreads.newest.get(threadId) ?? '']
      return named.map((key) => lockOf.get(key)).find((by) => by !== undefined)
    },
    awaitingRun: new Map(awaiting.map((job) => [job.thread_id, job])),
    newestTurns: new Map(
      [...onThreads.newest].flatMap(([threadId, id]) => {
        const job = jobs.get(id)
        return job ? [[threadId, job] as const] : []
      }),
    ),
  }
}

/** Skips the jobs whose end would have to wait for the usage of their owner. */
async function skipLockedOwners(
  tx: Transaction,
  jobs: Map<string, SettlingJob>,
  { settlement, lockedOwners }: CallbackBatch,
): Promise<void> {
  const inUse = await lockUsageOf(tx, [...jobs.values()], settlement.atMs)
  for (const owner of inUse) lockedOwners.add(owner)
  leaveOut(jobs, (owner) => inUse.has(owner))
}

function leaveOut(jobs: Map<string, SettlingJob>, isLocked: (owner: string) => boolean): void {
  for (const { id, created_by } of jobs.values()) if (created_by !== null && isLocked(created_by)) jobs.delete(id)
}

/**
 * An unknown run on the thread of a job whose run is not known yet is that job's run: its callback arrived before the
 * answer to the start request.
 */
async function findByThread(
  tx: Transaction,
  batch: readonly ReceivedCallback[],
  runs: ReadonlyMap<string, JobRun>,
): Promise<{ awaiting: string[]; newest: Map<string, string> }> {
  const nameless = batch.filter(
    ({ jobId, payload }) => jobId === null && payload.jobId === null && !runs.has(payload.runId),
  )
  if (nameless.length === 0) return { awaiting: [], newest: new Map() }
  const threadIds = nameless.map(({ payload }) => payload.threadId)
  const [awaiting, newest] = await Promise.all([findJobsAwaitingRun(tx, threadIds), findNewestTurns(tx, threadIds)])
  return { awaiting, newest }
}

/** The id comes from the credential, if it names one. The job has no owner: only admins see it until it is claimed. */
function adopt({ payload, type, jobId }: ReceivedCallback, ids: JobContext['ids'], atMs: number): JobRow {
  const { threadId: thread_id, runId: run_id } = payload
  const id = jobId ?? ids.next('job')
  return newJob(type, { id, input: null, project_id: null, created_by: null, thread_id, run_id }, atMs)
}
