import { SingleFlight } from '../../core/async/single-flight.ts'
import { CHECK_ERRORS } from '../../runtime/check-errors.ts'
import { isWatched } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow, SlimJob } from '../job-row.ts'
import { findJob, findSlimJobs } from '../job-store.ts'
import type { JobWorker } from './job-worker.ts'

const BUDGET_MS = 3_000
const POLL_MS = 50
/** The jobs of a page share this time. */
const PAGE_BUDGET_MS = 1_000
/** A page does not check a job again that was checked this recently. */
const PAGE_MAX_AGE_MS = 2_000
const PAGE_CONCURRENCY = 20
/** The error that a reader sees if its check takes longer than the reader waits. */
const STILL_ASKING = CHECK_ERRORS.not_answered_yet

/**
 * Reconciliation on read: brings watched jobs up to date with the runtime, within the time that a reader waits. If the
 * runtime takes longer, the stored job is returned and the check continues. Concurrent reads share one check, on one node
 * and across nodes.
 */
export class Reconciler {
  readonly #context: JobContext
  readonly #worker: JobWorker
  readonly #checks = new SingleFlight<string, void>()
  readonly #waits = new SingleFlight<string, boolean>()

  constructor(context: JobContext, worker: JobWorker) {
    this.#context = context
    this.#worker = worker
  }

  async refresh(job: JobRow): Promise<JobRow> {
    if (!isWatched(job.status) || this.#context.runtime === null) return job
    const isDone = await this.#waits.run(job.id, () => this.#within(BUDGET_MS, this.#check(job.id)))
    const fresh = (await findJob(this.#context.db, job.id)) ?? job
    return isDone || !isWatched(fresh.status) ? fresh : { ...fresh, last_error: fresh.last_error ?? STILL_ASKING }
  }

  /**
   * For a page of a list: checks its watched jobs, except those checked a moment ago. False when there were none to check.
   * Started checks continue after the time is over.
   */
  async refreshAll(jobs: readonly Pick<JobRow, 'id' | 'status' | 'checked_at'>[]): Promise<boolean> {
    const { clock, runtime } = this.#context
    const oldMs = clock.now() - PAGE_MAX_AGE_MS
    const old = jobs.filter(({ status, checked_at }) => isWatched(status) && (checked_at ?? 0) <= oldMs)
    if (old.length === 0 || runtime === null) return false
    const waiting = old.map(({ id }) => id)
    let isOver = false
    const checkInTurn = async () => {
      for (let id = waiting.shift(); id !== undefined && !isOver; id = waiting.shift()) await this.#ask(id)
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

  async #check(id: string): Promise<void> {
    const { db, clock } = this.#context
    const sinceMs = clock.now()
    await this.#ask(id)
    let [job] = await findSlimJobs(db, [id])
    // Another node or the sweep holds the lease: wait for its result, within the budget.
    while (job && isBeingChecked(job, sinceMs, clock.now()) && clock.now() - sinceMs < BUDGET_MS) {
      await clock.sleep(POLL_MS)
      ;[job] = await findSlimJobs(db, [id])
    }
  }

  /** Readers of one job share one check. It does nothing if another worker holds the job. */
  #ask(id: string): Promise<void> {
    return this.#checks.run(id, () => this.#worker.check(id))
  }
}

function isBeingChecked(job: SlimJob, sinceMs: number, nowMs: number): boolean {
  const seenSince = job.checked_at !== null && job.checked_at >= sinceMs
  return isWatched(job.status) && !seenSince && job.lease_until !== null && job.lease_until > nowMs
}
