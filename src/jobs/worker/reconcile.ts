import { SingleFlight } from '../../core/async/single-flight.ts'
import { isWatched } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import { findJob } from '../job-store.ts'
import type { JobWorker } from './job-worker.ts'

const BUDGET_MS = 3_000
const POLL_MS = 50

/**
 * Reconciliation on read: brings a watched job up to date with the runtime within three seconds. If the runtime does not
 * answer, the stored job is returned. Concurrent reads share one check, on one node and across nodes.
 */
export class Reconciler {
  readonly #context: JobContext
  readonly #worker: JobWorker
  readonly #checks = new SingleFlight<string, JobRow | undefined>()

  constructor(context: JobContext, worker: JobWorker) {
    this.#context = context
    this.#worker = worker
  }

  async refresh(job: JobRow): Promise<JobRow> {
    if (!isWatched(job.status) || this.#context.runtime === null) return job
    const fresh = await this.#checks.run(job.id, () => this.#check(job.id))
    return fresh ?? job
  }

  async #check(id: string): Promise<JobRow | undefined> {
    const { db, clock } = this.#context
    const sinceMs = clock.now()
    const budget = new AbortController()
    const over = new AbortController()
    void clock.sleep(BUDGET_MS, over.signal).then(() => budget.abort(new Error('the budget of a read is spent')))
    try {
      await this.#worker.check(id, 'read', budget.signal)
      let job = await findJob(db, id)
      // Another node or the sweep holds the lease: wait for its result, within the budget.
      while (job && isBeingChecked(job, sinceMs, clock.now()) && clock.now() - sinceMs < BUDGET_MS) {
        await clock.sleep(POLL_MS, budget.signal)
        job = await findJob(db, id)
      }
      return job
    } finally {
      over.abort()
    }
  }
}

function isBeingChecked(job: JobRow, sinceMs: number, nowMs: number): boolean {
  const seenSince = job.checked_at !== null && job.checked_at >= sinceMs
  return isWatched(job.status) && !seenSince && job.lease_until !== null && job.lease_until > nowMs
}
