import { uuidFrom } from '../../core/random.ts'
import type { Via } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import { type Lease, leaseDueJobs, leaseJob } from './lease-store.ts'
import { processJob } from './process-job.ts'

const DEFAULT_SLOTS = 50
/** A start calls the runtime at most five times, and the lease must outlast these calls. */
const CALLS_PER_LEASE = 6
const LEASE_SLACK_MS = 5_000

/**
 * Processes jobs in the background, a bounded number at once. A job that finds no free slot is not lost: it stays due in
 * the database, and the sweep of this node or another takes it.
 */
export class JobWorker {
  readonly #context: JobContext
  readonly #leaseMs: number
  readonly #slots: number
  readonly #running = new Set<Promise<void>>()
  /** Checks that readers asked for. They take no slot, because a reader waits for each of them. */
  readonly #forReaders = new Set<Promise<void>>()
  readonly #stopping = new AbortController()

  constructor(context: JobContext, options: { runtimeTimeoutMs: number; slots?: number | undefined }) {
    const { runtimeTimeoutMs, slots = DEFAULT_SLOTS } = options
    this.#context = context
    this.#slots = slots
    this.#leaseMs = runtimeTimeoutMs * CALLS_PER_LEASE + LEASE_SLACK_MS
  }

  get freeSlots(): number {
    return this.#stopping.signal.aborted ? 0 : this.#slots - this.#running.size
  }

  newLease(): Lease {
    const nowMs = this.#context.clock.now()
    return { token: uuidFrom(this.#context.random), nowMs, untilMs: nowMs + this.#leaseMs }
  }

  /** Starts the run of a job that this process has just created under its own lease. */
  startFresh(job: JobRow): void {
    this.#track(processJob(this.#context, { job, via: null, fresh: true, signal: this.#stopping.signal }), job.id)
  }

  /** Checks the job in the background, if a slot is free. */
  checkSoon(jobId: string, via: Via): void {
    if (this.freeSlots > 0) this.#track(this.#leaseAndProcess(jobId, via), jobId)
  }

  /**
   * Checks the job now, unless another worker holds its lease. The check goes on when its reader stops waiting for it, and
   * its result is used.
   */
  check(jobId: string): Promise<void> {
    const work = this.#leaseAndProcess(jobId, 'read')
    this.#track(work, jobId, this.#forReaders)
    return work
  }

  async #leaseAndProcess(jobId: string, via: Via): Promise<void> {
    if (this.#stopping.signal.aborted) return
    const job = await leaseJob(this.#context.db, jobId, this.newLease())
    if (job) await processJob(this.#context, { job, via, signal: this.#stopping.signal })
  }

  /** For the sweep: leases due jobs, as many as there are free slots and at most `limit`. Returns how many it leased. */
  async takeDue(limit: number): Promise<number> {
    const slots = Math.min(limit, this.freeSlots)
    if (slots <= 0) return 0
    const due = await leaseDueJobs(this.#context.db, slots, this.newLease())
    for (const job of due) {
      this.#track(processJob(this.#context, { job, via: 'sweep', signal: this.#stopping.signal }), job.id)
    }
    return due.length
  }

  /** Resolves when no job is being processed. */
  async idle(): Promise<void> {
    while (this.#running.size + this.#forReaders.size > 0) await Promise.all([...this.#running, ...this.#forReaders])
  }

  async close(): Promise<void> {
    this.#stopping.abort(new Error('the service is shutting down'))
    await this.idle()
  }

  #track(work: Promise<void>, jobId: string, among = this.#running): void {
    const tracked = work
      .catch((error: unknown) => this.#context.log.warn({ jobId, err: error }, 'job.check_failed'))
      .finally(() => among.delete(tracked))
    among.add(tracked)
  }
}
