import { ApiError } from '../../core/errors.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import { type Transaction, UniqueViolation } from '../../db/database.ts'
import { GroupCommit } from '../../db/group-commit.ts'
import { appendEvents } from '../../events/event-store.ts'
import type { CallbackPayload } from '../../runtime/callback-payload.ts'
import { isUnfinished, type JobRow } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { findJobRuns, findJobsAwaitingRun, insertJob, insertJobRuns, lockJobs } from '../job-store.ts'
import type { JobType } from '../job-types.ts'
import { newJob } from '../new-job.ts'
import { countEnds } from '../settlement/count-ends.ts'
import { jobEvent, type Settled, Settlement } from '../settlement/settle.ts'
import { appendTimeline } from '../settlement/timeline-store.ts'
import { judgeCallback } from '../settlement/verdict.ts'
import type { JobWorker } from '../worker/job-worker.ts'
import { type CallbackOutcome, insertCallbacks } from './callback-store.ts'

export interface ReceivedCallback {
  payload: CallbackPayload
  type: JobType
  path: string
  /** The job its credential is bound to, or that it names. */
  jobId: string | null
  receivedAtMs: number
  /** Set when a stored callback is looked at again: it is not stored a second time. */
  replayOf?: string
}

export interface CallbackAnswer {
  outcome: CallbackOutcome
  jobId: string
}

const MB = 1024 * 1024

/**
 * Takes callbacks in: each is durable, with all it brings about, before it is answered. They commit in groups, and one
 * that cannot be written never fails its neighbours. A run no job knows gets a job, so that nothing is lost.
 */
export class CallbackIntake {
  readonly #context: JobContext
  readonly #worker: JobWorker
  readonly #meter: Meter
  readonly #commits: GroupCommit<ReceivedCallback, CallbackAnswer | ApiError>

  constructor(context: JobContext, worker: JobWorker) {
    this.#context = context
    this.#worker = worker
    this.#meter = context.meter ?? silentMeter
    this.#commits = new GroupCommit({
      commit: (batch) => this.#commitOrAgain(batch),
      sizeOf: ({ payload }) => payload.body.length,
      maxBatch: 200,
      maxBatchBytes: 16 * MB,
      maxWaiting: 5_000,
      maxWaitingBytes: 256 * MB,
      lanes: context.db.engine === 'postgres' ? 2 : 1,
      onBatch: (size) => this.#meter.observe('group_commit_batch_size', size, { queue: 'callbacks' }),
    })
  }

  get waiting(): number {
    return this.#commits.waiting
  }

  async receive(callback: ReceivedCallback): Promise<CallbackAnswer> {
    const answer = await this.#commits.submit(callback)
    if (callback.replayOf === undefined) {
      this.#meter.count('callbacks_total', {
        outcome: answer instanceof ApiError ? answer.code : answer.outcome,
      })
    }
    if (answer instanceof ApiError) throw answer
    this.#context.log.info(
      { jobId: answer.jobId, runId: callback.payload.runId, outcome: answer.outcome },
      'callback.received',
    )
    if (answer.outcome === 'deferred' || answer.outcome === 'adopted') this.#worker.checkSoon(answer.jobId, 'callback')
    return answer
  }

  drain(): Promise<void> {
    return this.#commits.drain()
  }

  /** Two nodes that adopt one run at once meet in its key; the second to come then finds the job of the first. */
  async #commitOrAgain(batch: ReceivedCallback[]): Promise<(CallbackAnswer | ApiError)[]> {
    const attempt = async () => {
      const commit = (tx: Transaction) => this.#commit(tx, batch)
      const { answers, settled } = await this.#context.db.transaction(commit, { urgent: true })
      countEnds(this.#context, settled)
      return answers
    }
    try {
      return await attempt()
    } catch (error) {
      if (error instanceof UniqueViolation) return await attempt()
      throw error
    }
  }

  async #commit(
    tx: Transaction,
    batch: ReceivedCallback[],
  ): Promise<{ answers: (CallbackAnswer | ApiError)[]; settled: Settled[] }> {
    const { ids, types, pushOptOut, clock, runtime } = this.#context
    const atMs = clock.now()
    const known = await findJobRuns(
      tx,
      batch.map(({ payload }) => payload.runId),
    )
    const runs = new Map(known.map((run) => [run.run_id, run]))
    const candidates = new Set(known.map((run) => run.job_id))
    for (const { jobId, payload } of batch) for (const id of [jobId, payload.jobId]) if (id !== null) candidates.add(id)
    for (const id of await this.#findByThread(tx, batch, runs)) candidates.add(id)
    const jobs = new Map((await lockJobs(tx, [...candidates])).map((job) => [job.id, job]))
    const awaitingRun = new Map<string, JobRow>()
    for (const job of jobs.values()) if (awaitsRun(job)) awaitingRun.set(job.thread_id, job)
    const adoptedByRun = new Map<string, JobRow>()

    const matched = batch.map((callback) => {
      const { payload, jobId } = callback
      const run = runs.get(payload.runId)
      const owner = run ? jobs.get(run.job_id) : adoptedByRun.get(payload.runId)
      const told = payload.jobId === null ? awaitingRun.get(payload.threadId) : jobs.get(payload.jobId)
      const named = jobId === null ? (owner ?? told) : jobs.get(jobId)
      const job = named ?? owner
      // A credential bound to one job speaks for no other, nor for the run of another.
      const foreign = (jobId !== null && job?.id !== jobId) || (owner !== undefined && owner.id !== job?.id)
      if (job) return { callback, job, runSeq: run?.run_seq, adopted: false, foreign }
      const adopted = this.#adopt(callback, atMs)
      adoptedByRun.set(payload.runId, adopted)
      jobs.set(adopted.id, adopted)
      return { callback, job: adopted, runSeq: 1, adopted: true, foreign: false }
    })
    for (const job of adoptedByRun.values()) {
      await insertJob(tx, job)
      await appendEvents(tx, [jobEvent(job, 'job.created', `${job.id}:created`, atMs)])
    }
    await insertJobRuns(
      tx,
      [...adoptedByRun].map(([run_id, job]) => ({ run_id, job_id: job.id, run_seq: 1, created_at: atMs })),
    )

    const settlement = new Settlement([...jobs.values()], { ids, types, pushOptOut, atMs })
    const entryIds: string[] = []
    const settled: Settled[] = []
    const answers = matched.map(({ callback, job, runSeq, adopted, foreign }): CallbackAnswer | ApiError => {
      const { payload, type } = callback
      // Drawn first, so that the timeline shows the callback before the transition it brings.
      entryIds.push(ids.next('tml'))
      if (job.type !== type.name) return new ApiError('conflict', `The run belongs to a job of type ${job.type}`)
      if (foreign || job.thread_id !== payload.threadId) return { outcome: 'stale', jobId: job.id }
      const cancelRequested = job.cancel_requested_at !== null
      const done = settlement.apply({
        jobId: job.id,
        runId: payload.runId,
        ...(runSeq === undefined ? {} : { runSeq }),
        verdict: judgeCallback(payload, { type, cancelRequested, canAsk: runtime !== null }),
        via: 'callback',
        traces: payload.traces,
        unverified: true,
      })
      settled.push(done)
      return { outcome: adopted ? 'adopted' : done.outcome, jobId: job.id }
    })
    await this.#write(tx, { batch, answers, entryIds, settlement, atMs })
    return { answers, settled }
  }

  /** A run that nobody knows, on a thread of ours whose run is not known yet, is that run: the answer to its start is late. */
  async #findByThread(
    tx: Transaction,
    batch: readonly ReceivedCallback[],
    runs: ReadonlyMap<string, unknown>,
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

  /** Named by its credential, or else by nobody: then it is one for the admins. */
  #adopt({ payload, type, jobId }: ReceivedCallback, atMs: number): JobRow {
    const { threadId: thread_id, runId: run_id } = payload
    const id = jobId ?? this.#context.ids.next('job')
    return newJob(type, { id, input: null, project_id: null, created_by: null, thread_id, run_id }, atMs)
  }

  async #write(
    tx: Transaction,
    written: {
      batch: ReceivedCallback[]
      answers: (CallbackAnswer | ApiError)[]
      entryIds: string[]
      settlement: Settlement
      atMs: number
    },
  ): Promise<void> {
    const { ids } = this.#context
    const accepted = written.batch.flatMap((callback, index) => {
      const answer = written.answers[index]
      const entryId = written.entryIds[index]
      if (answer === undefined || answer instanceof ApiError || entryId === undefined) return []
      return [{ callback, answer, entryId, id: callback.replayOf ?? ids.next('cbk') }]
    })
    await Promise.all([
      appendTimeline(
        tx,
        accepted.map(({ callback, answer, entryId, id }) => ({
          id: entryId,
          job_id: answer.jobId,
          at: written.atMs,
          kind: 'callback',
          via: callback.replayOf === undefined ? null : 'replay',
          detail: JSON.stringify({ callback_id: id, status: callback.payload.status, outcome: answer.outcome }),
        })),
      ),
      insertCallbacks(
        tx,
        accepted
          .filter(({ callback }) => callback.replayOf === undefined)
          .map(({ callback: { payload, type, path, receivedAtMs }, answer, id }) => ({
            id,
            path,
            type: type.name,
            job_id: answer.jobId,
            thread_id: payload.threadId,
            run_id: payload.runId,
            status: payload.status,
            outcome: answer.outcome,
            received_at: receivedAtMs,
            body: payload.body,
          })),
      ),
      written.settlement.write(tx),
    ])
  }
}

function awaitsRun({ run_id, status }: JobRow): boolean {
  return run_id === null && isUnfinished(status)
}
