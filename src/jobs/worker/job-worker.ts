import { UnavailableError } from '../../core/errors.ts'
import { uuidFrom } from '../../core/random.ts'
import { inSpan, noTracer } from '../../core/tracing.ts'
import type { Node } from '../../db/nodes/node.ts'
import { WriteBatcher } from '../../db/write-batcher.ts'
import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { START_TIMEOUT_MS } from '../../runtime/runtime-client.ts'
import type { Via } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import { TurnsByOwner } from '../leases/lease-in-turn.ts'
import { type Lease, type LeasedJob, leaseJob, leaseJobs, postpone } from '../leases/lease-store.ts'
import { type AbandonedAttempt, stopAbandonedRuns } from '../runs/extra-runs.ts'
import type { ReportedRun } from '../runs/inspect.ts'
import { type JobWork, processJob } from './process-job.ts'
import { CheckRecorder } from './record-check.ts'

const DEFAULT_SLOTS = 100
/** Besides the start itself, a check calls the runtime at most this often. The lease must last longer than all calls. */
const CALLS_PER_LEASE = 8
const LEASE_SLACK_MS = 5_000
/** A start that finds no free slot is tried again after this time. */
const POSTPONED_MS = 1_000
/** A check that failed because the database did is made again after this time. */
const FAILED_MS = 5_000
/** While the database fails, the lease of a failed check is given back once in a second, until it runs out. */
const GIVE_BACK_EVERY_MS = 1_000
/** The ids of the jobs that wait for their lease, far more than there are slots. */
const MAX_LEASING_BYTES = 64 * 1024

/** The runtime handles a start up to a minute late. After this time, the run of an abandoned attempt has appeared. */
const LOOK_AFTER_MS = 75_000
const MAX_LOOKS = 1_000
/** A turn that runs for longer than an hour and a quarter is not waited for. */
const MAX_LOOKS_AT_ONE = 60

type CheckCause = Pick<JobWork, 'via' | 'reported' | 'fresh'>

/**
 * Processes jobs in the background, a bounded number at once. A job that finds no free slot is not lost: it stays due in
 * the database, and the sweep of this node or another takes it.
 */
export class JobWorker {
  readonly #context: JobContext
  readonly #leaseMs: number
  readonly #slots: number
  readonly #running = new Set<Promise<void>>()
  /** Checks that reads started. They use no slot, because a client waits for each of them. */
  readonly #forReaders = new Set<Promise<void>>()
  /** Starts. They may take a minute each, so they have slots of their own, and do not delay checks. */
  readonly #starts = new Set<Promise<void>>()
  /** Checks of jobs that clients watch on a stream. They have slots of their own, so that a full sweep does not delay them. */
  readonly #forStreams = new Set<Promise<void>>()
  /** Later looks for the runs of abandoned attempts. */
  readonly #looks = new Set<Promise<void>>()
  readonly #stopping = new AbortController()
  readonly #node: Pick<Node, 'id' | 'isAlive' | 'holdsLeaseOf'>
  readonly #recorder: CheckRecorder
  readonly #turns = new TurnsByOwner()
  /** The leases of jobs that are checked soon. Callbacks arrive in groups, and their jobs are leased in groups too. */
  readonly #leases: WriteBatcher<string, LeasedJob | Error | undefined>
  /** The last round took a job for each free slot, so that more may be due. */
  #isFull = false
  /** Called when half of the slots are free after such a round: taking one job for each freed slot would cost more. */
  onSlotsFree: () => void = () => {}

  constructor(
    context: JobContext,
    options: {
      node: Pick<Node, 'id' | 'isAlive' | 'holdsLeaseOf'>
      runtimeTimeoutMs: number
      slots?: number | undefined
    },
  ) {
    const { node, runtimeTimeoutMs, slots = DEFAULT_SLOTS } = options
    this.#context = context
    this.#node = node
    this.#recorder = new CheckRecorder(context)
    this.#slots = slots
    this.#leaseMs = START_TIMEOUT_MS + runtimeTimeoutMs * CALLS_PER_LEASE + LEASE_SLACK_MS
    this.#leases = new WriteBatcher({
      commit: (ids) => this.#leaseTogether(ids),
      sizeOf: (id) => id.length,
      maxBatch: slots,
      maxBatchBytes: MAX_LEASING_BYTES,
      maxWaiting: 2 * slots,
      maxWaitingBytes: MAX_LEASING_BYTES,
      commitsAtOnce: 1,
    })
  }

  get freeSlots(): number {
    return this.#mayLease ? this.#slots - this.#running.size : 0
  }

  /** Whether a new job can be started at once. */
  get mayStart(): boolean {
    return this.#mayLease && this.#starts.size < this.#slots
  }

  /** Without a live heartbeat, other nodes could take the new lease at once. */
  get #mayLease(): boolean {
    return this.#node.isAlive && !this.#stopping.signal.aborted
  }

  newLease(): Lease {
    const nowMs = this.#context.clock.now()
    return { token: uuidFrom(this.#context.random), node: this.#node.id, nowMs, untilMs: nowMs + this.#leaseMs }
  }

  /** Starts the run of a job that this process has just created under its own lease. */
  startFresh(job: JobRow, { isPinned }: { isPinned: boolean }): void {
    const { input, resume_input, configurable, output: _output, interrupts: _interrupts, ...slim } = job
    const leased = { ...slim, last_start_at: null, unseen_at: null }
    const fresh = { input, resume_input, configurable, isPinned }
    this.#track(this.#process(leased, { via: null, fresh }), this.#starts)
  }

  /** Checks the job in the background, if a slot is free. `reported` is its run, if a callback asks for the check. */
  checkSoon(jobId: string, via: Via, reported?: ReportedRun): void {
    if (this.freeSlots > 0) this.#track(this.#processLeased(jobId, { via, reported }, this.#leaseSoon(jobId)))
  }

  /** Checks a job that a client watches on a stream, in the background. Resolves when the check has begun. */
  async checkForStream(jobId: string, signal: AbortSignal): Promise<void> {
    while (this.#forStreams.size >= this.#slots && !signal.aborted) await Promise.race(this.#forStreams)
    if (!this.#mayLease || signal.aborted) return
    this.#track(this.#processLeased(jobId, { via: 'sweep' }, this.#leaseSoon(jobId)), this.#forStreams)
  }

  /**
   * Checks the job now. False if it did not, because another worker holds its lease or checked it after `checkedBeforeMs`.
   * If the reader stops waiting, the check continues and its result is used.
   */
  check(jobId: string, checkedBeforeMs = Number.POSITIVE_INFINITY): Promise<boolean> {
    if (!this.#mayLease) return Promise.resolve(false)
    const leasing = leaseJob(this.#context.db, jobId, this.newLease(), checkedBeforeMs)
    const work = this.#processLeased(jobId, { via: 'read' }, leasing)
    this.#track(work, this.#forReaders)
    return work
  }

  async #processLeased(jobId: string, cause: CheckCause, leasing: Promise<LeasedJob | undefined>): Promise<boolean> {
    const job = await this.#orLog(jobId, leasing)
    if (!job) return false
    const work = job.run_id === null ? this.#startInTurn(job, cause) : this.#process(job, cause)
    // Only a reader waits for a start, which has a slot of its own.
    if (job.run_id !== null || cause.via === 'read') await work
    return true
  }

  /** Starts the run of a leased job. If no slot is free, the sweep takes the job again later. */
  #startInTurn(job: LeasedJob, cause: CheckCause): Promise<void> {
    const hasSlot = this.#starts.size < this.#slots
    const later = () => postpone(this.#context.db, job, this.#context.clock.now() + POSTPONED_MS)
    const work = hasSlot ? this.#process(job, cause) : this.#orLog(job.id, later())
    this.#track(work, hasSlot ? this.#starts : this.#running)
    return work
  }

  async #leaseSoon(jobId: string): Promise<LeasedJob | undefined> {
    const leased = await this.#leases.submit(jobId)
    if (leased instanceof Error) throw leased
    return leased
  }

  /** Never rejects: a second attempt would find the jobs leased by the first one. */
  async #leaseTogether(ids: readonly string[]): Promise<(LeasedJob | Error | undefined)[]> {
    try {
      const leased = this.#mayLease ? await leaseJobs(this.#context.db, ids, this.newLease()) : []
      const byId = new Map(leased.map((job) => [job.id, job]))
      return ids.map((id) => {
        const job = byId.get(id)
        // The first of two requests for one job gets it.
        byId.delete(id)
        return job
      })
    } catch (error) {
      return ids.map(() => error as Error)
    }
  }

  /**
   * For the sweep: leases due jobs, as many as there are free slots and at most `limit`. Returns how many it leased.
   * `onlyQuestions`: the runtime is not to be asked now.
   */
  async takeDue(limit: number, { onlyQuestions = false } = {}): Promise<number> {
    const slots = Math.min(limit, this.freeSlots)
    this.#isFull = slots <= 0
    if (slots <= 0) return 0
    const only = onlyQuestions ? 'questions' : this.#starts.size >= this.#slots ? 'checks' : undefined
    const due = await this.#turns.lease(this.#context.db, slots, { ...this.newLease(), only })
    this.#isFull = due.length === slots
    for (const job of due) {
      const cause = { via: 'sweep' } as const
      if (job.run_id === null) void this.#startInTurn(job, cause).catch(() => {})
      else this.#track(this.#process(job, cause))
    }
    return due.length
  }

  /** Resolves when no job is being processed. */
  async idle(): Promise<void> {
    const inProgress = () => [...this.#running, ...this.#starts, ...this.#forReaders, ...this.#forStreams]
    while (inProgress().length > 0) await Promise.all(inProgress())
  }

  async close(): Promise<void> {
    this.#stopping.abort(new Error('the service is shutting down'))
    await this.idle()
    await Promise.all(this.#looks)
  }

  #process(job: LeasedJob, cause: CheckCause): Promise<void> {
    const { tracer = noTracer } = this.#context
    const { trace_context: parent } = job
    const span = tracer.start(job.run_id === null ? 'job.start' : 'job.check', {
      // A job that no request made has no trace. Then the span is part of the current one, or begins a trace.
      ...(parent !== null && { parent }),
      links: [cause.fresh ? null : parent, parent === null || tracer.current === parent ? null : tracer.current],
      attributes: { 'job.id': job.id, 'job.type': job.type, 'job.via': cause.via },
    })
    const work = {
      job,
      ...cause,
      holdsLease: () => this.#node.holdsLeaseOf((job.lease_until ?? 0) - this.#leaseMs),
      recorder: this.#recorder,
      onAbandoned: (attempt: AbandonedAttempt) => this.#lookLater(attempt),
      signal: this.#stopping.signal,
    }
    return inSpan(tracer, span, () =>
      this.#orLog(job.id, processJob(this.#context, work)).catch((error: unknown) => {
        // Any other error would come again at once. Its lease runs out.
        if (error instanceof UnavailableError) this.#track(this.#giveBack(job))
        throw error
      }),
    )
  }

  /** Gives back the lease of a check because the database failed: the lease lasts for longer than a minute. */
  async #giveBack(job: LeasedJob): Promise<void> {
    const { db, clock } = this.#context
    const { signal } = this.#stopping
    while (!signal.aborted && clock.now() < (job.lease_until ?? 0)) {
      try {
        return await postpone(db, job, clock.now() + FAILED_MS)
      } catch {
        await clock.sleep(GIVE_BACK_EVERY_MS, signal)
      }
    }
  }

  /**
   * The job may end or pause before the run of an abandoned attempt appears, and its checks look no more. So the run is
   * looked for once more, when no turn of the thread runs and the runtime answers, unless this process ends before.
   */
  #lookLater(attempt: AbandonedAttempt): void {
    const { clock, runtime } = this.#context
    const { signal } = this.#stopping
    if (runtime === null || this.#looks.size >= MAX_LOOKS) return
    const hasLooked = () =>
      stopAbandonedRuns(this.#context, runtime, { ...attempt, signal }).catch((error: unknown) => {
        if (error instanceof UnavailableError || error instanceof RuntimeUnavailable) return false
        throw error
      })
    const look = async () => {
      for (let looks = 0; looks < MAX_LOOKS_AT_ONE; looks++) {
        await clock.sleep(LOOK_AFTER_MS, signal)
        if (signal.aborted || (await hasLooked())) return
      }
    }
    this.#track(this.#orLog(attempt.job.id, look()), this.#looks)
  }

  /** Logs a failure where it happens: there the line gets the id of the trace. */
  async #orLog<Result>(jobId: string, work: Promise<Result>): Promise<Result> {
    try {
      return await work
    } catch (error) {
      this.#context.log.warn({ jobId, err: error }, 'job.check_failed')
      throw error
    }
  }

  #track(work: Promise<unknown>, among = this.#running): void {
    const onEnd = () => {
      among.delete(tracked)
      this.#wakeIfFull()
    }
    // A failure is in the log already.
    const tracked = work.then(onEnd, onEnd)
    among.add(tracked)
  }

  #wakeIfFull(): void {
    if (!this.#isFull || this.freeSlots < this.#slots / 2) return
    this.#isFull = false
    this.onSlotsFree()
  }
}
