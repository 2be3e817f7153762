import { SingleFlight } from '../../core/async/single-flight.ts'
import { CHECK_ERRORS } from '../../runtime/check-errors.ts'
import { isTerminal } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow, SizedJob, SlimJob } from '../job-row.ts'
import { findSizedJobs, findSlimJobs } from '../job-store.ts'
import type { JobWorker } from './job-worker.ts'

const BUDGET_MS = 3_000
const POLL_MS = 50
/** The jobs of a page share this time. */
const PAGE_BUDGET_MS = 1_000
/** A page does not check a job again that was checked this recently. */
const PAGE_MAX_AGE_MS = 2_000
const PAGE_CONCURRENCY = 20
/** A read does not check a paused job again that was checked this recently. */
const PAUSED_MAX_AGE_MS = 10_000
/** The error that a reader sees if its check takes longer than the reader waits. */
const STILL_ASKING = CHECK_ERRORS.not_answered_yet

/**
 * Reconciliation on read: brings unfinished jobs up to date with the runtime, within the time that a reader waits. If the
 * runtime takes longer, the stored job is returned and the check continues. Concurrent reads share one check, on one node
 * and across nodes.
 */
export class Reconciler {
  readonly #context: JobContext
  readonly #worker: JobWorker
  readonly #checks = new SingleFlight<string, boolean>()
  readonly #waits = new SingleFlight<string, boolean>()

  constructor(context: JobContext, worker: JobWorker) {
    this.#context = context
    this.#worker = worker
  }

  /** For a read. The question of a paused job is asked about every ten seconds at most. */
  async refresh(job: SizedJob): Promise<SizedJob> {
    const isDue = (job.checked_at ?? 0) <= this.#checkedBefore(job)
    return isDue ? this.#refresh(job, this.#checkedBefore(job)) : job
  }

  /** For a client that asks for a check, and for an answer that does not fit the state of the thread. */
  checkNow<Job extends SlimJob>(job: Job): Promise<Job | SizedJob> {
    return this.#refresh(job, Number.POSITIVE_INFINITY)
  }

  /** The checked job comes without its documents if they are large: many readers may share one check. */
  async #refresh<Job extends SlimJob>(job: Job, checkedBeforeMs: number): Promise<Job | SizedJob> {
    if (isTerminal(job.status) || this.#context.runtime === null) return job
    const isDone = await this.#waits.run(job.id, () => this.#within(BUDGET_MS, this.#check(job.id, checkedBeforeMs)))
    const [fresh = job] = await findSizedJobs(this.#context.db, [job.id])
    return isDone || isTerminal(fresh.status) ? fresh : { ...fresh, last_error: fresh.last_error ?? STILL_ASKING }
  }

  #checkedBefore({ status }: Pick<JobRow, 'status'>): number {
    return status === 'awaiting_input' ? this.#context.clock.now() - PAUSED_MAX_AGE_MS : Number.POSITIVE_INFINITY
  }

  /**
   * For a page of a list: checks its unfinished jobs, except those checked a moment ago. False when there were none to check.
   * Started checks continue after the time is over.
   */
  async refreshAll(jobs: readonly Pick<JobRow, 'id' | 'status' | 'checked_at'>[]): Promise<boolean> {
    const { clock, runtime } = this.#context
    const oldMs = clock.now() - PAGE_MAX_AGE_MS
    const beforeMs = (job: Pick<JobRow, 'status'>) => Math.min(oldMs, this.#checkedBefore(job))
    const waiting = jobs.filter((job) => !isTerminal(job.status) && (job.checked_at ?? 0) <= beforeMs(job))
    if (waiting.length === 0 || runtime === null) return false
    let isOver = false
    const checkInTurn = async () => {
      for (let job = waiting.shift(); job !== undefined && !isOver; job = waiting.shift()) {
        await this.#ask(job.id, this.#checkedBefore(job))
      }
    }
    const checks = Array.from({ length: PAGE_CONCURRENCY }, () => checkInTurn().catch(() => {}))
    await this.#within(PAGE_BUDGET_MS, Promise.all(checks))
    isOver = true
    return true
  }

  /** False if the time is over before the work is done. The work continues. */
  async #within(ms: number, work: Promise<unknown>): Promise<boolean> {
    const over = new AbortController()
    const timer = this.#context.clock.sleep(ms, over.signal).then(() => false)
    try {
      return await Promise.race([work.then(() => true), timer])
    } finally {
      over.abort()
    }
  }

  async #check(id: string, checkedBeforeMs: number): Promise<void> {
    const { db, clock } = this.#context
    const sinceMs = clock.now()
    if (await this.#ask(id, checkedBeforeMs)) return
    let [job] = await findSlimJobs(db, [id])
    // Another node or the sweep holds the lease: wait for its result, within the budget.
    while (job && isBeingChecked(job, sinceMs, clock.now()) && clock.now() - sinceMs < BUDGET_MS) {
      await clock.sleep(POLL_MS)
      ;[job] = await findSlimJobs(db, [id])
    }
  }

  /** Readers of one job share one check. False if it did nothing, because another worker holds the job. */
  #ask(id: string, checkedBeforeMs: number): Promise<boolean> {
    return this.#checks.run(id, () => this.#worker.check(id, checkedBeforeMs))
  }
}

function isBeingChecked(job: SlimJob, sinceMs: number, nowMs: number): boolean {
  const seenSince = job.checked_at !== null && job.checked_at >= sinceMs
  return !isTerminal(job.status) && !seenSince && job.lease_until !== null && job.lease_until > nowMs
}
