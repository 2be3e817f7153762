import { type AuditedChange, type AuditOrigin, recordAudit } from '../../audit/record-audit.ts'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import type { JsonText } from '../../core/json/json-text.ts'
import { uuidFrom } from '../../core/random.ts'
import { parseTraceparent } from '../../core/tracing.ts'
import type { Transaction } from '../../db/database.ts'
import { appendEvents } from '../../events/event-store.ts'
import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { NO_VALUES, UnacceptableAnswer } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import type { ThreadState } from '../../runtime/runtime-types.ts'
import { countUsage, endOfPeriodMs, lockUsage, periodOf } from '../../usage/usage-store.ts'
import { fitAnswer, type GivenAnswer, isStillOpen } from '../answers.ts'
import { changeOwner, insertChecks, lockStarts, makeDue, newCheck, type Place } from '../check-store.ts'
import { isTerminal, isWatched, type JobStatus, STATUSES } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { nextStatus } from '../job-machine.ts'
import { type JobRow, newJob } from '../job-row.ts'
import { findJobRuns, insertJob, insertJobRuns, lockJobs, updateJobs } from '../job-store.ts'
import type { JobType } from '../job-types.ts'
import { jobEvent } from '../settlement/job-event.ts'
import { settleJobs } from '../settlement/settle.ts'
import { CONFIRM_AFTER_MS, type JobUpdate } from '../settlement/settlement.ts'
import { appendTimeline, type TimelineKind } from '../settlement/timeline-store.ts'
import { usageOf } from '../settlement/usage-of.ts'
import { THREAD_GONE } from '../settlement/verdict.ts'
import { countRuns } from '../uncommon-jobs.ts'
import type { JobWorker } from '../worker/job-worker.ts'
import { takesPlace } from '../worker/places-store.ts'
import { findThreadToContinue } from './conversation.ts'

const STATE_BUDGET_MS = 3_000

export interface NewJobRequest {
  type: JobType
  createdBy: string
  projectId: string | null
  /** Input for a run that this service starts, on the thread of the job that it continues, or a run started elsewhere. */
  work: { input: JsonText; continues: string | null } | { threadId: string; runId: string }
  /** The ended job that this one repeats. */
  retryOf?: string
  /** False: the sweep starts the run. For many jobs at once, which would not find free slots here. */
  startsHere?: boolean
}

/** What clients do with jobs: start, follow, cancel, resume. The change is durable before the runtime is called. */
export class Jobs {
  readonly #context: JobContext
  readonly #worker: JobWorker
  readonly #usageLimitRuns: number | null
  readonly #wakeSweep: () => void

  constructor(
    context: JobContext,
    worker: JobWorker,
    options: { usageLimitRuns: number | null; wakeSweep: () => void },
  ) {
    this.#context = context
    this.#worker = worker
    this.#usageLimitRuns = options.usageLimitRuns
    this.#wakeSweep = options.wakeSweep
  }

  /**
   * Whether the caller may follow this run: an admin may, and a caller that the run or its thread names. The run must be of
   * the type's graph. The runtime is asked, so that the ids alone give no access.
   */
  async checkMayFollow(
    run: { threadId: string; runId: string },
    { type, caller, isAdmin }: { type: JobType; caller: string; isAdmin: boolean },
  ): Promise<void> {
    const { runtime, log } = this.#context
    if (runtime === null) throw noRuntime()
    const found = await runtime.describeRun(run.threadId, run.runId).catch((error: unknown) => {
      if (!(error instanceof RuntimeUnavailable) && !(error instanceof UnacceptableAnswer)) throw error
      log.warn({ runId: run.runId, err: error }, 'job.follow_failed')
      throw new UnavailableError('The agent runtime cannot be asked about this run now', { retryAfterSeconds: 5 })
    })
    if (found === null || !(isAdmin || found.owners.includes(caller))) throw new ApiError('not_found', 'No such run')
    if (!found.graphs.includes(type.assistantId)) {
      throw new ApiError('conflict', `The run is not of the type ${type.name}`)
    }
  }

  /** Runs inside the caller's transaction. After its commit, the caller calls `begin` to start the run. */
  async create(tx: Transaction, request: NewJobRequest): Promise<JobRow> {
    if (this.#context.runtime === null) throw noRuntime()
    if ('runId' in request.work) return this.#follow(tx, request, request.work)
    await this.#checkUsageLimit(tx, request.createdBy)
    return this.#createOwn(tx, request, request.work)
  }

  /** Starts the run that `create` or `resume` has just leased. A job without such a lease is due, and the sweep takes it. */
  begin(job: JobRow): void {
    // A job that has a run was claimed or followed: if it has a lease, another worker holds it.
    if (job.lease_token === null || job.run_id !== null) this.#wakeSweep()
    else this.#worker.startFresh(job)
  }

  /**
   * Ends the job at once if no run is active. Otherwise the runtime is asked to stop the run, and the job ends with the
   * run.
   */
  cancel(id: string, by?: AuditOrigin): Promise<JobRow> {
    return settleJobs(this.#context, async (tx, settlement) => {
      const { job, update } = await this.requestCancel(tx, { id, by, atMs: settlement.atMs })
      if (!update) return job
      const [settled] = await settlement.settle([update])
      return { ...job, ...settled?.job }
    })
  }

  /** Part of a settlement. If no run is active, the job ends at once, and the caller settles the update. */
  async requestCancel(
    tx: Transaction,
    { id, by, atMs }: { id: string; by: AuditOrigin | undefined; atMs: number },
  ): Promise<{ job: JobRow; update: JobUpdate | null }> {
    const job = await lockJob(tx, id)
    const { status } = job
    if (isTerminal(status)) throw new ApiError('conflict', `The job is ${status} already`)
    const nothingRuns = !isWatched(job.status) || (job.run_id === null && (await lockStarts(tx, id)) === 0)
    if (job.cancel_requested_at === null) {
      job.cancel_requested_at = atMs
      await updateJobs(tx, [job])
      if (!nothingRuns) await makeDue(tx, [id], atMs)
      await this.#addToTimeline(tx, job, 'cancel_requested', {})
      await this.#audit(tx, job, { by, action: 'job.cancelled', before: { status } })
    }
    const cancelled = { jobId: id, runId: null, verdict: { kind: 'cancelled' }, via: null, traces: null } as const
    return { job, update: nothingRuns ? cancelled : null }
  }

  /** After the commit of a `requestCancel`: asks the runtime to stop the run now, if a slot is free. */
  stopSoon(id: string): void {
    this.#worker.checkSoon(id, 'sweep')
  }

  /**
   * Answers the graph's questions. The job continues with a new run. The thread's state is read first, so that the caller
   * learns at once if a question was answered elsewhere. If the runtime cannot be asked, the start checks it later.
   */
  async resume(paused: JobRow, given: GivenAnswer, by?: AuditOrigin): Promise<JobRow> {
    const { db, clock, types, runtime } = this.#context
    const type = types.get(paused.type)
    checkAwaitsInput(paused)
    if (!type || runtime === null) throw new UnavailableError('The job cannot be resumed now')
    const answer = await fitAnswer(given, paused.interrupts, type.resumeSchema)
    const state = await this.#readState(runtime, paused)
    if (state === null) throw await this.#noteLostThread(paused)
    if (state && !isStillOpen(answer.questions, state)) {
      throw new ApiError('conflict', 'The question was answered elsewhere meanwhile')
    }
    return db.transaction(async (tx) => {
      const job = await lockJob(tx, paused.id)
      const to = checkAwaitsInput(job)
      if (job.run_seq !== paused.run_seq) throw new ApiError('conflict', 'The job asks something else meanwhile')
      const atMs = clock.now()
      job.status = to
      job.run_id = null
      job.run_seq += 1
      job.resume_input = answer.command
      job.resume_questions = JSON.stringify(answer.questions)
      job.interrupts = null
      job.settled_by = null
      job.first_hint = null
      job.awaiting_confirmation = null
      job.awaiting_confirmation_since = null
      job.check_attempts = 0
      job.checked_at = null
      job.next_check_at = atMs
      job.deadline_at = atMs + type.deadlineMs
      job.updated_at = atMs
      // If the state could not be read, the start must read it: it does not count as fresh.
      const place = await this.#leaseForStart(tx, { job, type, isPossible: state !== undefined })
      await updateJobs(tx, [job])
      await insertChecks(tx, [newCheck(job, place)])
      await this.#addToTimeline(tx, job, 'resumed', { run_seq: job.run_seq })
      await this.#audit(tx, job, { by, action: 'job.resumed', after: { run_seq: job.run_seq } })
      await appendEvents(tx, [jobEvent(job, STATUSES[to].event, `${job.id}:${job.run_seq}:resumed`, atMs)])
      return job
    })
  }

  /** Null when the thread is gone, undefined when the runtime does not answer in time. */
  async #readState(runtime: RuntimeClient, { thread_id }: JobRow): Promise<ThreadState | null | undefined> {
    const { clock } = this.#context
    const budget = new AbortController()
    const over = new AbortController()
    void clock.sleep(STATE_BUDGET_MS, over.signal).then(() => budget.abort(new Error('the time is over')))
    try {
      return await runtime.fetchNewestState(thread_id, NO_VALUES, budget.signal)
    } catch (error) {
      if (error instanceof RuntimeUnavailable || error instanceof UnacceptableAnswer) return undefined
      throw error
    } finally {
      over.abort()
    }
  }

  /** Fails a paused job whose thread was seen missing twice. Returns the error for the caller. */
  async #noteLostThread({ id, run_seq }: JobRow): Promise<Error> {
    const lost = { jobId: id, runId: null, runSeq: run_seq, verdict: THREAD_GONE, via: null, traces: null }
    const [settled] = await settleJobs(this.#context, (_tx, settlement) => settlement.settle([lost]))
    if (settled?.outcome === 'deferred') {
      return new UnavailableError('The runtime does not find the thread now', {
        retryAfterSeconds: CONFIRM_AFTER_MS / 1_000,
      })
    }
    if (settled?.outcome !== 'applied') return new ApiError('conflict', 'The job has changed meanwhile')
    return new ApiError('conflict', 'The runtime no longer knows the thread: the job has failed')
  }

  async #createOwn(
    tx: Transaction,
    request: NewJobRequest,
    { input, continues }: { input: JsonText; continues: string | null },
  ): Promise<JobRow> {
    const { ids, random, clock } = this.#context
    const { type, createdBy: owner } = request
    const threadId = continues === null ? uuidFrom(random) : await findThreadToContinue(tx, { continues, type, owner })
    const given = {
      id: ids.next('job'),
      input: input.text,
      project_id: request.projectId,
      created_by: request.createdBy,
      continues,
      retry_of: request.retryOf ?? null,
      thread_id: threadId,
      run_id: null,
      trace_context: this.#context.tracer?.current ?? null,
    }
    const job = newJob(request.type, given, clock.now())
    const isPossible = request.startsHere ?? true
    return this.#insert(tx, job, await this.#leaseForStart(tx, { job, type: request.type, isPossible }))
  }

  async #follow(tx: Transaction, request: NewJobRequest, run: { threadId: string; runId: string }): Promise<JobRow> {
    const { ids, clock } = this.#context
    const [known] = await findJobRuns(tx, [run.runId])
    if (known) return this.#claim(tx, { jobId: known.job_id, threadId: run.threadId }, request)
    await this.#checkUsageLimit(tx, request.createdBy)
    const given = {
      id: ids.next('job'),
      input: null,
      project_id: request.projectId,
      created_by: request.createdBy,
      thread_id: run.threadId,
      run_id: run.runId,
      trace_context: this.#context.tracer?.current ?? null,
    }
    const place = { limited_type: request.type.maxRunning === null ? null : request.type.name }
    const job = await this.#insert(tx, newJob(request.type, given, clock.now()), place)
    await insertJobRuns(tx, [{ run_id: run.runId, job_id: job.id, run_seq: 1, created_at: job.created_at }])
    return job
  }

  /** The run's callback arrived first and created a job without an owner: the caller becomes its owner. */
  async #claim(
    tx: Transaction,
    { jobId, threadId }: { jobId: string; threadId: string },
    { type, createdBy, projectId }: NewJobRequest,
  ): Promise<JobRow> {
    const job = await lockJob(tx, jobId)
    const fits = job.type === type.name && job.thread_id === threadId
    if (job.created_by === createdBy && fits) return job
    if (job.created_by !== null || job.erased_at !== null || !fits)
      throw new ApiError('conflict', 'Another job follows that run')
    await this.#checkUsageLimit(tx, createdBy)
    job.created_by = createdBy
    job.project_id = projectId
    job.updated_at = this.#context.clock.now()
    await updateJobs(tx, [job])
    await changeOwner(tx, jobId, createdBy)
    await this.#addToTimeline(tx, job, 'claimed', { created_by: createdBy })
    if (job.finished_at !== null) await countUsage(tx, [usageOf(job, createdBy)])
    return job
  }

  async #insert(tx: Transaction, job: JobRow, place: Place = {}): Promise<JobRow> {
    await insertJob(tx, job, place)
    const traceId = parseTraceparent(job.trace_context)?.traceId
    await this.#addToTimeline(tx, job, 'created', {
      type: job.type,
      ...(traceId !== undefined && { request_trace_id: traceId }),
      ...(job.retry_of !== null && { retry_of: job.retry_of }),
    })
    await appendEvents(tx, [jobEvent(job, 'job.created', `${job.id}:created`, job.created_at)])
    return job
  }

  /** With a free slot, this process leases the job for its start, and counts the first attempt in the same commit. */
  async #leaseForStart(
    tx: Transaction,
    { job, type, isPossible = true }: { job: JobRow; type: JobType; isPossible?: boolean },
  ): Promise<Place> {
    const limited_type = type.maxRunning === null ? null : type.name
    if (!(await takesPlace(tx, type))) {
      // Until the job gets a place, only its deadline is due.
      job.start_attempts = 0
      job.next_check_at = job.deadline_at
      return { limited_type, queued_at: job.updated_at }
    }
    const lease = isPossible && this.#worker.freeSlots > 0 ? this.#worker.newLease() : null
    job.start_attempts = lease === null ? 0 : 1
    job.lease_token = lease?.token ?? null
    job.lease_until = lease?.untilMs ?? null
    return { limited_type, lease_node: lease?.node ?? null }
  }

  /** Unfinished jobs count too. Otherwise a caller could start any number of jobs before the first one ends. */
  async #checkUsageLimit(tx: Transaction, subject: string): Promise<void> {
    const limit = this.#usageLimitRuns
    if (limit === null) return
    const nowMs = this.#context.clock.now()
    const period = periodOf(nowMs)
    await lockUsage(tx, { subject, period })
    const runs = await countRuns(tx, { createdBy: subject, period })
    if (runs < limit) return
    const retryAfterSeconds = Math.ceil((endOfPeriodMs(nowMs) - nowMs) / 1000)
    throw new ApiError('usage_limit_exceeded', `The limit of ${limit} runs for ${period} is reached`, {
      headers: { 'retry-after': String(retryAfterSeconds) },
    })
  }

  /** Records nothing without an origin: changes by the owner are in the timeline. */
  async #audit(
    tx: Transaction,
    { id }: JobRow,
    { by, ...change }: Omit<AuditedChange, 'by' | 'object'> & { by: AuditOrigin | undefined },
  ): Promise<void> {
    if (by) await recordAudit(tx, this.#context, { ...change, by, object: { kind: 'job', id } })
  }

  async #addToTimeline(tx: Transaction, job: JobRow, kind: TimelineKind, detail: object): Promise<void> {
    const { ids, clock } = this.#context
    const entry = {
      id: ids.next('tml'),
      job_id: job.id,
      at: clock.now(),
      kind,
      via: null,
      detail: JSON.stringify(detail),
    }
    await appendTimeline(tx, [entry])
  }
}

function noRuntime(): UnavailableError {
  return new UnavailableError('No agent runtime is configured', { retryAfterSeconds: 60 })
}

/** Returns the status after a resume; throws if the job awaits no input. */
function checkAwaitsInput({ status }: JobRow): JobStatus {
  const to = nextStatus(status, 'resumed')
  if (to === null) throw new ApiError('conflict', `The job is ${status}: it awaits no input`)
  return to
}

async function lockJob(tx: Transaction, id: string): Promise<JobRow> {
  const [job] = await lockJobs(tx, [id])
  if (!job) throw new ApiError('not_found', 'No such job')
  return job
}
