import { ApiError } from '../../core/errors.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import { type Transaction, UniqueViolation } from '../../db/database.ts'
import { GroupCommit } from '../../db/group-commit.ts'
import type { JobContext } from '../job-context.ts'
import { settleJobs } from '../settlement/settle.ts'
import type { Settlement } from '../settlement/settlement.ts'
import { appendTimeline } from '../settlement/timeline-store.ts'
import { judgeCallback } from '../settlement/verdict.ts'
import type { JobWorker } from '../worker/job-worker.ts'
import { CALLBACK_OUTCOMES, type CallbackOutcome, insertCallbacks } from './callback-store.ts'
import { type MatchedCallback, matchCallbacks, type ReceivedCallback } from './match-callbacks.ts'

export interface CallbackAnswer {
  outcome: CallbackOutcome
  jobId: string
}

/** A callback with the answer it gets, and the id of its timeline entry. */
interface AnsweredCallback {
  callback: ReceivedCallback
  /** Null: nothing of the callback is stored. */
  entryId: string | null
  answer: CallbackAnswer | ApiError
}

const MB = 1024 * 1024

/**
 * Receives callbacks. Each is durable, with all its effects, before it is answered. Callbacks commit in groups, and one
 * that cannot be written does not fail the others.
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
      commit: (batch) => this.#commitOrRetry(batch),
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
    const { jobId, outcome } = answer
    this.#context.log.info({ jobId, runId: callback.payload.runId, outcome }, 'callback.received')
    if (CALLBACK_OUTCOMES[outcome].unconfirmed) this.#worker.checkSoon(jobId, 'callback')
    return answer
  }

  drain(): Promise<void> {
    return this.#commits.drain()
  }

  /** Two nodes that adopt the same run violate its unique key. The retry of the second finds the job of the first. */
  async #commitOrRetry(batch: ReceivedCallback[]): Promise<(CallbackAnswer | ApiError)[]> {
    const commit = () =>
      settleJobs(this.#context, (tx, settlement) => this.#commit(tx, settlement, batch), { urgent: true })
    try {
      return await commit()
    } catch (error) {
      if (error instanceof UniqueViolation) return await commit()
      throw error
    }
  }

  async #commit(
    tx: Transaction,
    settlement: Settlement,
    batch: readonly ReceivedCallback[],
  ): Promise<(CallbackAnswer | ApiError)[]> {
    const { ids } = this.#context
    const matched = await matchCallbacks(tx, { batch, settlement, ids })
    // The entry's id is drawn first, so that the timeline shows the callback before the transition it causes.
    const answered = matched.map((match): AnsweredCallback => {
      const { callback } = match
      if ('deletedJobId' in match) {
        return { callback, entryId: null, answer: { outcome: 'stale', jobId: match.deletedJobId } }
      }
      return { callback, entryId: ids.next('tml'), answer: this.#apply(settlement, match) }
    })
    await Promise.all([this.#store(tx, answered, settlement.atMs), settlement.write()])
    return answered.map(({ answer }) => answer)
  }

  #apply(settlement: Settlement, match: MatchedCallback): CallbackAnswer | ApiError {
    const { callback, job, runSeq, adopted, wrongJob } = match
    const { payload, type } = callback
    if (job.type !== type.name) return new ApiError('conflict', `The run belongs to a job of type ${job.type}`)
    if (wrongJob || job.thread_id !== payload.threadId) return { outcome: 'stale', jobId: job.id }
    const cancelRequested = job.cancel_requested_at !== null
    const canAsk = this.#context.runtime !== null
    const { outcome } = settlement.apply({
      jobId: job.id,
      runId: payload.runId,
      ...(runSeq === undefined ? {} : { runSeq }),
      verdict: judgeCallback(payload, { type, cancelRequested, canAsk }),
      via: 'callback',
      traces: payload.traces,
      unverified: true,
    })
    return { outcome: adopted ? 'adopted' : outcome, jobId: job.id }
  }

  /** Stores the accepted callbacks and their timeline entries. Refused ones, and those of deleted jobs, leave no trace. */
  async #store(tx: Transaction, answered: readonly AnsweredCallback[], atMs: number): Promise<void> {
    const { ids } = this.#context
    const accepted = answered.flatMap(({ callback, entryId, answer }) =>
      answer instanceof ApiError || entryId === null
        ? []
        : [{ callback, entryId, answer, id: callback.replayOf ?? ids.next('cbk') }],
    )
    await Promise.all([
      appendTimeline(
        tx,
        accepted.map(({ callback, answer, entryId, id }) => ({
          id: entryId,
          job_id: answer.jobId,
          at: atMs,
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
    ])
  }
}
