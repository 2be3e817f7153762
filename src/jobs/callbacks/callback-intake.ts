import { recordAudit } from '../../audit/record-audit.ts'
import { ApiError } from '../../core/errors.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import { LockTimeout, type Transaction, UniqueViolation } from '../../db/database.ts'
import { Locked, WriteBatcher } from '../../db/write-batcher.ts'
import { CALLBACK_OUTCOMES, type CallbackOutcome, type CallbackRow, insertCallbacks } from '../callback-store.ts'
import type { Verdict } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { isLaterTurn } from '../job-row.ts'
import type { ReportedRun } from '../runs/inspect.ts'
import { settleJobs } from '../settlement/settle.ts'
import type { Settlement } from '../settlement/settlement.ts'
import { appendTimeline, type NewTimelineRow } from '../settlement/timeline-store.ts'
import { judgeCallback } from '../settlement/verdict.ts'
import type { JobWorker } from '../worker/job-worker.ts'
import { LockedOwners } from './locked-owners.ts'
import { type LockMode, type MatchedCallback, matchCallbacks, type ReceivedCallback } from './match-callbacks.ts'

export interface CallbackAnswer {
  outcome: CallbackOutcome
  jobId: string
  /** The detail of the transition that the callback caused. A replay has none: its transition is an entry of its own. */
  transition?: string
}

/** A callback with the answer it gets, and the id it is stored under. */
interface AnsweredCallback {
  callback: ReceivedCallback
  /** Null: nothing of the callback is stored. */
  id: string | null
  answer: CommittedCallback
}

type CommittedCallback = CallbackAnswer | ApiError | Locked

const UNKNOWN_TURN: Verdict = { kind: 'unclear', reason: 'a run of this turn or of an earlier one?' }

const MB = 1024 * 1024
/** A body with more characters than this is large. */
const LARGE_BODY = MB

/**
 * Receives callbacks. Each callback and its effects are durable before it is answered. Callbacks commit in groups; if one
 * cannot be written, the others still are. Those of a locked job or owner leave their group, which does not wait for them.
 */
export class CallbackIntake {
  readonly #context: JobContext
  readonly #worker: JobWorker
  readonly #meter: Meter
  readonly #lockedOwners: LockedOwners
  readonly #commits: WriteBatcher<ReceivedCallback, CallbackAnswer | ApiError>

  constructor(context: JobContext, worker: JobWorker) {
    this.#context = context
    this.#worker = worker
    this.#meter = context.meter ?? silentMeter
    this.#lockedOwners = new LockedOwners(context.clock)
    this.#commits = new WriteBatcher({
      commit: (batch, { waits }) => (waits ? this.#commitOrRetry(batch, 'wait') : this.#commitGroup(batch)),
      sizeOf: ({ payload }) => payload.body.length,
      maxBatch: 200,
      maxBatchBytes: 16 * MB,
      maxWaiting: 5_000,
      maxWaitingBytes: 256 * MB,
      commitsAtOnce: context.db.engine === 'postgres' ? 2 : 1,
      onBatch: (size) => this.#meter.observe('group_commit_batch_size', size, { queue: 'callbacks' }),
    })
  }

  get waiting(): number {
    return this.#commits.waiting
  }

  async receive(received: ReceivedCallback): Promise<CallbackAnswer> {
    const callback = { ...received, traceContext: this.#context.tracer?.current ?? null }
    const answer = await this.#commits.submit(callback)
    if (callback.replayOf === undefined) {
      this.#meter.count('callbacks_total', {
        outcome: answer instanceof ApiError ? answer.code : answer.outcome,
      })
    }
    if (answer instanceof ApiError) throw answer
    const { jobId, outcome } = answer
    const { runId, status, traces } = callback.payload
    this.#context.log.info({ jobId, runId, outcome }, 'callback.received')
    // Of an adopted run only this callback is known, so the check fetches the whole run.
    this.confirm(answer, outcome === 'deferred' ? { runId, status, traces } : undefined)
    return answer
  }

  /** Processes stored callbacks in a settlement of the caller, which calls `confirm` after the commit. */
  async replay(
    tx: Transaction,
    settlement: Settlement,
    callbacks: readonly ReceivedCallback[],
  ): Promise<(CallbackAnswer | ApiError)[]> {
    const answers = await this.#commit(tx, { batch: callbacks, settlement, locks: 'wait' })
    return answers.flatMap((answer) => (answer instanceof Locked ? [] : [answer]))
  }

  /**
   * Asks the runtime if the callback alone does not prove the end of the run. If the run that it reported is given, one
   * call is usually enough: for the state of the run.
   */
  confirm({ jobId, outcome }: CallbackAnswer, reported?: ReportedRun): void {
    if (CALLBACK_OUTCOMES[outcome].unconfirmed) this.#worker.checkSoon(jobId, 'callback', reported)
  }

  drain(): Promise<void> {
    return this.#commits.drain()
  }

  /** A group that had to wait too long is tried again without the owners whose usage is locked. */
  async #commitGroup(batch: ReceivedCallback[]): Promise<CommittedCallback[]> {
    try {
      return await this.#commitOrRetry(batch, 'skip_locked_jobs')
    } catch (error) {
      if (error instanceof LockTimeout) return await this.#commitOrRetry(batch, 'skip_locked_owners')
      throw error
    }
  }

  /** Two nodes that adopt the same run violate its unique key. The retry of the second finds the job of the first. */
  async #commitOrRetry(batch: ReceivedCallback[], locks: LockMode): Promise<CommittedCallback[]> {
    const commit = () =>
      settleJobs(this.#context, (tx, settlement) => this.#commit(tx, { batch, settlement, locks }), {
        urgent: locks !== 'wait',
      })
    try {
      return await commit()
    } catch (error) {
      if (error instanceof UniqueViolation) return await commit()
      throw error
    }
  }

  async #commit(
    tx: Transaction,
    { batch, settlement, locks }: { batch: readonly ReceivedCallback[]; settlement: Settlement; locks: LockMode },
  ): Promise<CommittedCallback[]> {
    const { ids, types } = this.#context
    const lockedOwners = this.#lockedOwners
    const matched = await matchCallbacks(tx, { batch, settlement, locks, lockedOwners, ids, types })
    // Create its id first, so that the timeline shows the callback before the transition that it causes.
    const answered = matched.map((match): AnsweredCallback => {
      const { callback } = match
      if ('lockedBy' in match) return { callback, id: null, answer: new Locked(match.lockedBy) }
      if ('deletedJobId' in match) {
        return { callback, id: null, answer: { outcome: 'stale', jobId: match.deletedJobId } }
      }
      const id = ids.next(callback.replayOf === undefined ? 'cbk' : 'tml')
      return { callback, id, answer: this.#apply(settlement, match) }
    })
    const stored = this.#store(tx, answered, settlement.atMs)
    // A large body and the output inside it are encoded in two turns of the event loop, not in one.
    if (batch.some(({ payload }) => payload.body.length > LARGE_BODY)) await stored
    await Promise.all([stored, this.#audit(tx, answered), settlement.write()])
    // Their usage was written, so the lock is gone.
    for (const { created_by } of settlement.ended) if (created_by !== null) lockedOwners.delete(created_by)
    return answered.map(({ answer }) => answer)
  }

  #apply(settlement: Settlement, match: MatchedCallback): CallbackAnswer | ApiError {
    const { callback, job, runSeq, adopted, wrongJob, isHint, isExtra } = match
    const { payload, type } = callback
    if (job.type !== type.name) return new ApiError('conflict', `The run belongs to a job of type ${job.type}`)
    if (isExtra) settlement.noteExtraRun(job, { runId: payload.runId, runSeq: runSeq ?? job.run_seq })
    if (isExtra || wrongJob || job.thread_id !== payload.threadId) return { outcome: 'stale', jobId: job.id }
    const cancelRequested = job.cancel_requested_at !== null
    const canAsk = this.#context.runtime !== null
    const { outcome, transition } = settlement.apply({
      jobId: job.id,
      runId: isHint ? null : payload.runId,
      ...(runSeq === undefined ? {} : { runSeq }),
      verdict: isHint
        ? UNKNOWN_TURN
        : judgeCallback(payload, { type, cancelRequested, canAsk, isLaterTurn: isLaterTurn(job) }),
      via: 'callback',
      traces: isHint ? null : payload.traces,
      unverified: true,
      traceContext: callback.traceContext ?? null,
      keepsTransition: callback.replayOf === undefined,
    })
    return { outcome: adopted ? 'adopted' : outcome, jobId: job.id, ...(transition && { transition }) }
  }

  async #audit(tx: Transaction, answered: readonly AnsweredCallback[]): Promise<void> {
    for (const { callback, answer } of answered) {
      const { replayOf, replayedBy } = callback
      if (replayOf === undefined || replayedBy === undefined) continue
      if (answer instanceof ApiError || answer instanceof Locked) continue
      const object = { kind: 'callback', id: replayOf } as const
      const after = { outcome: answer.outcome, job_id: answer.jobId }
      await recordAudit(tx, this.#context, { by: replayedBy, action: 'callback.replayed', object, after })
    }
  }

  /**
   * Stores the accepted callbacks, and an entry for each replay. Refused callbacks and those of deleted jobs are not
   * stored.
   */
  async #store(tx: Transaction, answered: readonly AnsweredCallback[], atMs: number): Promise<void> {
    const callbacks: CallbackRow[] = []
    const replays: NewTimelineRow[] = []
    for (const { callback, id, answer } of answered) {
      if (answer instanceof ApiError || answer instanceof Locked || id === null) continue
      const { payload, type, path, receivedAtMs, replayOf } = callback
      const { outcome, jobId: job_id, transition = null } = answer
      const { status } = payload
      if (replayOf !== undefined) {
        const detail = JSON.stringify({ callback_id: replayOf, status, outcome })
        replays.push({ id, job_id, at: atMs, kind: 'callback', via: 'replay', detail })
        continue
      }
      callbacks.push({
        id,
        path,
        type: type.name,
        job_id,
        thread_id: payload.threadId,
        run_id: payload.runId,
        status,
        outcome,
        received_at: receivedAtMs,
        transition,
        body: payload.body,
      })
    }
    await Promise.all([insertCallbacks(tx, callbacks), appendTimeline(tx, replays)])
  }
}
