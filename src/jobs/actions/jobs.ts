import { type AuditedChange, type AuditOrigin, recordAudit } from '../../audit/record-audit.ts'
import { toRfc3339 } from '../../core/clock.ts'
import { ApiError, QuotaExceeded, UnavailableError } from '../../core/errors.ts'
import type { JsonText } from '../../core/json/json-text.ts'
import { uuidFrom } from '../../core/random.ts'
import { parseTraceContext } from '../../core/tracing.ts'
import type { Transaction } from '../../db/database.ts'
import { appendEvents } from '../../events/event-store.ts'
import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { UnacceptableAnswer } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import type { ThreadState } from '../../runtime/runtime-types.ts'
import { endOfPeriodMs, lockUsage, periodOf } from '../../usage/usage-store.ts'
import { fitAnswer, type GivenAnswer, isStillOpen } from '../answers.ts'
import {
  changeOwner,
  lockStarts,
  lockWaitingTurn,
  makeDue,
  newCheck,
  type Place,
  replaceChecks,
} from '../check-store.ts'
import { isTerminal, isWatched, type JobStatus, STATUSES } from '../job.ts'
import type { CancelReason, JobContext } from '../job-context.ts'
import { nextStatus } from '../job-machine.ts'
import { INLINE_BYTES, type JobRow, newJob, type SizedJob } from '../job-row.ts'
import {
  changeJobs,
  findJobRuns,
  findSizedJobs,
  insertJob,
  insertJobRuns,
  lockJob as lockStoredJob,
  updateJobs,
} from '../job-store.ts'
import { deadlineFrom, faultOfConfigurable, type JobType, limitedTypeOf, questionTimes } from '../job-types.ts'
import { takesPlace } from '../leases/places-store.ts'
import { findSpentLimit, lockLimitedUsage } from '../leases/usage-limit.ts'
import { type Asker, askedBy } from '../runs/caller.ts'
import { fetchQuestions } from '../runs/fetch-questions.ts'
import { jobEvent } from '../settlement/job-event.ts'
import { recordAnswer } from '../settlement/pause-store.ts'
import { settleJobs, settleWithin } from '../settlement/settle.ts'
import { CONFIRM_AFTER_MS, type Settlement, type SettlingJob } from '../settlement/settlement.ts'
import { appendTimeline, type TimelineKind } from '../settlement/timeline-store.ts'
import { recordUsage, usageOf } from '../settlement/usage-of.ts'
import { claimThread, findEarlierRuns, findThread, setTitle } from '../thread-store.ts'
import { countUnfinished, findUnfinishedOn } from '../uncommon-jobs.ts'
import type { JobWorker } from '../worker/job-worker.ts'
import type { Reconciler } from '../worker/reconcile.ts'
import { findThreadToContinue, lockFollowed, type OnBusy, takeTurn, titleOf } from './conversation.ts'
import { noRuntime } from './follow-run.ts'

const STATE_BUDGET_MS = 3_000
/** Starts of one owner that are in progress at once on four nodes, 50 changes on each. More nodes may have more. */
const STARTS_IN_PROGRESS = 200

export interface NewJobRequest {
  type: JobType
  createdBy: string
  /** The principal that asks for it. */
  asker: Asker
  projectId: string | null
  /** An admin asks for it: the quota of unfinished jobs does not apply. */
  byAdmin?: boolean
  /** Input for a run that this service starts, or a run started elsewhere. */
  work: NewRun | { threadId: string; runId: string }
  /** The ended job that this one repeats. */
  retryOf?: string
  /** False: the sweep starts the run. For many jobs at once, which would not find free slots here. */
  startsHere?: boolean
  /** For a run whose job is stored already: throws `LargeDocuments` if its documents have more bytes. */
  maxBytes?: number
}

interface NewRun {
  input: JsonText
  /** The job whose conversation it continues; null for a new conversation. */
  continues: string | null
  /** Given when that conversation is known. The job that it continues may be deleted. */
  onThread?: string
  onBusy?: OnBusy
  configurable?: JsonText
  /** When it starts, by the calendar; absent: now. */
  runAtMs?: number
}

interface Resume {
  asker: Asker
  configurable?: JsonText | undefined
  by: AuditOrigin | undefined
  /** Throws `LargeDocuments` if the documents of the job have more bytes. */
  maxBytes: number
}

/** A created or resumed job. After the commit, the caller calls `begin`. */
export interface CreatedJob {
  job: JobRow
  begin: () => void
}

/** What clients do with jobs: start, follow, cancel, resume. The change is durable before the runtime is called. */
export class Jobs {
  readonly #context: JobContext
  readonly #worker: JobWorker
  readonly #reconciler: Reconciler
  readonly #maxUnfinishedJobs: number | null
  readonly #wakeSweep: () => void

  constructor(
    context: JobContext,
    worker: JobWorker,
    options: {
      reconciler: Reconciler
      maxUnfinishedJobs: number | null
      wakeSweep: () => void
    },
  ) {
    this.#context = context
    this.#worker = worker
    this.#reconciler = options.reconciler
    this.#maxUnfinishedJobs = options.maxUnfinishedJobs
    this.#wakeSweep = options.wakeSweep
  }

  /** Runs inside the caller's transaction. */
  async create(tx: Transaction, request: NewJobRequest): Promise<CreatedJob> {
    if (this.#context.runtime === null) throw noRuntime()
    if ('runId' in request.work) {
      const job = await this.#follow(tx, request, request.work)
      return { job, begin: () => this.#begin(job, { isPinned: false }) }
    }
    return this.#createOwn(tx, request, request.work)
  }

  /** Starts the run that `create` or `resume` has just leased. A job without such a lease is due, and the sweep takes it. */
  #begin(job: JobRow, { isPinned }: { isPinned: boolean }): void {
    // A job that has a run was claimed or followed: if it has a lease, another worker holds it.
    if (job.lease_token === null || job.run_id !== null) this.#wakeSweep()
    else this.#worker.startFresh(job, { isPinned })
  }

  /**
   * Ends the job at once if no run is active. Otherwise the runtime is asked to stop the run, and the job ends with the
   * run. The result comes without its documents if they are large.
   */
  cancel(id: string, by?: AuditOrigin): Promise<SizedJob> {
    return settleJobs(this.#context, async (tx, settlement) => {
      const [job] = await settlement.lock([id])
      await this.requestCancel(tx, settlement, { job, by })
      await settlement.write()
      const [cancelled] = await findSizedJobs(tx, [id])
      return cancelled as SizedJob
    })
  }

  /**
   * Part of a settlement, which has locked the job, if it exists, and writes it. If no run is active, the job ends at once.
   * Otherwise true: after the commit the caller calls `stopSoon`.
   */
  async requestCancel(
    tx: Transaction,
    settlement: Settlement,
    { job, by, reason }: { job: SettlingJob | undefined; by: AuditOrigin | undefined; reason?: CancelReason },
  ): Promise<boolean> {
    if (!job) throw noSuchJob()
    const { atMs } = settlement
    const { id, status } = job
    if (isTerminal(status)) throw new ApiError('conflict', `The job is ${status} already`)
    const nothingRuns = !isWatched(job.status) || (job.run_id === null && (await lockStarts(tx, id)) === 0)
    if (job.cancel_requested_at === null) {
      job.cancel_requested_at = atMs
      if (!nothingRuns) await makeDue(tx, [id], atMs)
      await this.#addToTimeline(tx, job, 'cancel_requested', { reason })
      await this.#audit(tx, job, {
        by,
        action: 'job.cancelled',
        before: { status },
        ...(reason && { after: { reason } }),
      })
    }
    if (nothingRuns) {
      settlement.apply({ jobId: id, runId: null, verdict: { kind: 'cancelled' }, via: null, traces: null })
    }
    return !nothingRuns
  }

  /** After the commit of a `requestCancel`: asks the runtime to stop the run now, if a slot is free. */
  stopSoon(id: string): void {
    this.#worker.checkSoon(id, 'sweep')
  }

  /**
   * Answers the graph's questions. The job continues with a new run. The thread's state is read first, so that the caller
   * learns at once if a question was answered elsewhere. If the runtime cannot be asked, the start checks it later.
   */
  async resume(paused: JobRow, given: GivenAnswer, { asker, configurable, by, maxBytes }: Resume): Promise<CreatedJob> {
    const { db, clock, types, runtime } = this.#context
    const type = types.get(paused.type)
    checkAwaitsInput(paused)
    if (!type || runtime === null) throw new UnavailableError('The job cannot be resumed now')
    const fault = faultOfConfigurable(type, configurable, 'body/configurable')
    if (fault) throw new ApiError('invalid_request', fault)
    const answer = await fitAnswer(given, paused.interrupts, type.resumeSchema)
    const state = await this.#readState(runtime, paused)
    const isOpen = state === undefined || (state !== null && isStillOpen(answer.questions, state))
    // Without a question, only the runs of the thread show whether another client continued it.
    if (!isOpen || answer.questions === null) await this.#checkQuestion(paused)
    return db.transaction(async (tx) => {
      const job = await lockJob(tx, paused.id, maxBytes)
      const to = checkAwaitsInput(job)
      const isSame = job.run_seq === paused.run_seq && job.interrupts === paused.interrupts
      if (!isSame) throw new ApiError('conflict', 'The job asks something else meanwhile')
      const atMs = clock.now()
      if (atMs >= (job.answer_by ?? Number.POSITIVE_INFINITY)) {
        throw new ApiError('conflict', 'The time to answer is over')
      }
      job.status = to
      job.run_id = null
      job.run_seq += 1
      job.resume_input = answer.command
      job.resume_questions = answer.questions && JSON.stringify(answer.questions)
      job.interrupts = null
      Object.assign(job, askedBy(asker, job.created_by))
      job.configurable = configurable?.text ?? job.configurable
      Object.assign(job, questionTimes(atMs, undefined))
      job.settled_by = null
      job.first_hint = null
      job.awaiting_confirmation = null
      job.awaiting_confirmation_since = null
      job.check_attempts = 0
      job.checked_at = null
      job.next_check_at = atMs
      job.deadline_at = deadlineFrom(atMs, type)
      job.updated_at = atMs
      // If the state could not be read, the start must read it: it does not count as fresh.
      const place = await this.#leaseForStart(tx, { job, type, isPossible: state !== undefined })
      await updateJobs(tx, [job])
      await recordAnswer(tx, { runId: paused.run_id, answers: answer.given, atMs })
      await replaceChecks(tx, [newCheck(job, place)])
      await this.#addToTimeline(tx, job, 'resumed', { run_seq: job.run_seq })
      await this.#audit(tx, job, { by, action: 'job.resumed', after: { run_seq: job.run_seq } })
      const cause = `${job.id}:${job.run_seq}:resumed`
      await appendEvents(tx, [jobEvent(job, STATUSES[to].event, { cause, atMs, types: this.#context.types })])
      const isPinned = (await findThread(tx, job.thread_id))?.is_pinned === 1
      return { job, begin: () => this.#begin(job, { isPinned }) }
    })
  }

  /** Null when the thread is gone, undefined when the runtime does not answer in time. */
  async #readState(runtime: RuntimeClient, job: JobRow): Promise<ThreadState | null | undefined> {
    const { db, clock } = this.#context
    const budget = new AbortController()
    const over = new AbortController()
    void clock.sleep(STATE_BUDGET_MS, over.signal).then(() => budget.abort(new Error('the time is over')))
    try {
      const earlier = (await findEarlierRuns(db, job)).map(({ run_id }) => run_id)
      const runs = job.run_id === null ? [] : [job.run_id, ...earlier]
      return await fetchQuestions(db, runtime, { threadId: job.thread_id, runs }, budget.signal)
    } catch (error) {
      if (error instanceof RuntimeUnavailable || error instanceof UnacceptableAnswer) return undefined
      throw error
    } finally {
      over.abort()
    }
  }

  /** The answer does not fit the thread: the job is checked at once, and the caller learns what became of its question. */
  async #checkQuestion(paused: JobRow): Promise<void> {
    const job = await this.#reconciler.checkNow(paused)
    if (job.error_code === 'run_lost') {
      throw new ApiError('conflict', 'The runtime no longer knows the thread: the job has failed')
    }
    if (job.awaiting_confirmation === 'thread_missing') {
      throw new UnavailableError('The runtime does not find the thread now', {
        retryAfterSeconds: CONFIRM_AFTER_MS / 1_000,
      })
    }
    const isClosed = paused.interrupts !== null || job.awaiting_confirmation !== null || job.run_seq !== paused.run_seq
    if (isClosed) throw new ApiError('conflict', 'The question was answered elsewhere meanwhile')
  }

  async #createOwn(tx: Transaction, request: NewJobRequest, work: NewRun): Promise<CreatedJob> {
    const { ids, random, clock } = this.#context
    const { type, createdBy: owner } = request
    const { input, continues, onThread, onBusy = 'reject', runAtMs = null } = work
    const afterCommit: (() => void)[] = []
    const interruption = this.#interruption(tx, { owner, afterCommit })
    const threadId =
      onThread ?? (continues === null ? null : await findThreadToContinue(tx, { continues, type: type.name, owner }))
    const turn = threadId === null ? null : await takeTurn(tx, { threadId, onBusy, interruption, nowMs: clock.now() })
    await this.#checkLimits(tx, request)
    const given = {
      // The turns of a conversation are in the order of their ids, even if the clock of another node is ahead.
      id: ids.next('job', turn?.thread.newest),
      input: input.text,
      project_id: request.projectId,
      created_by: owner,
      continues,
      retry_of: request.retryOf ?? null,
      run_at: runAtMs,
      thread_id: threadId ?? uuidFrom(random),
      run_id: null,
      ...askedBy(request.asker, owner),
      configurable: work.configurable?.text ?? null,
      trace_context: this.#context.tracer?.current ?? null,
    }
    const job = newJob(type, given, clock.now())
    const isPinned = turn?.thread.is_pinned === 1
    const not_before = runAtMs !== null && runAtMs > clock.calendar() ? runAtMs : null
    if (turn?.waits || not_before !== null) {
      await this.#insert(tx, job, { place: { waits_on: job.thread_id, not_before }, title: titleOf(input) })
      job.queued_behind = (await findUnfinishedOn(tx, job.thread_id)).at(-2)?.id ?? null
      job.next_check_at = null
      afterCommit.push(() => this.#wakeSweep())
    } else {
      const isPossible = request.startsHere ?? true
      const place = await this.#leaseForStart(tx, { job, type, isPossible })
      await this.#insert(tx, job, { place, title: titleOf(input) })
      afterCommit.push(() => this.#begin(job, { isPinned }))
    }
    const begin = () => {
      for (const act of afterCommit) act()
    }
    return { job, begin }
  }

  /** Cancels the turns that a new one interrupts. */
  #interruption(tx: Transaction, { owner, afterCommit }: { owner: string; afterCommit: (() => void)[] }) {
    const { settlement, onCommitted } = settleWithin(this.#context, tx)
    let jobs: SettlingJob[] = []
    return {
      lock: async (ids: readonly string[]) => {
        jobs = await settlement.lock(ids)
      },
      cancelAll: async () => {
        const unfinished = jobs.filter(({ status }) => !isTerminal(status))
        if (unfinished.some(({ created_by }) => created_by !== null && created_by !== owner)) {
          throw new ApiError('conflict', 'A job of another user on the thread is unfinished')
        }
        for (const job of unfinished) {
          const isRunning = await this.requestCancel(tx, settlement, { job, by: undefined })
          if (isRunning) afterCommit.push(() => this.stopSoon(job.id))
        }
        // The check of the limits locks the usage too. Locked after the counters that this writes, two transactions could
        // each wait for the other.
        await lockUsage(tx, { subjects: [owner], period: periodOf(settlement.atMs) })
        await settlement.write()
        afterCommit.push(onCommitted)
      },
    }
  }

  /** Replaces the input of a turn that waits for its start. */
  replaceInput(id: string, input: JsonText, { asker, by, maxBytes }: Omit<Resume, 'configurable'>): Promise<JobRow> {
    const { db, clock } = this.#context
    return db.transaction(async (tx) => {
      const job = await lockJob(tx, id, maxBytes)
      if (job.continues === null) await setTitle(tx, job.thread_id, titleOf(input))
      if (!(await lockWaitingTurn(tx, id))) {
        throw new ApiError('conflict', `The job is ${job.status}: only the input of a turn that waits can be replaced`)
      }
      const change = { input: input.text, ...askedBy(asker, job.created_by), updated_at: clock.now() }
      await changeJobs(tx, [{ id, ...change }])
      await this.#addToTimeline(tx, job, 'input_replaced', {})
      await this.#audit(tx, job, { by, action: 'job.input_replaced' })
      return { ...job, ...change }
    })
  }

  async #follow(tx: Transaction, request: NewJobRequest, run: { threadId: string; runId: string }): Promise<JobRow> {
    const { ids, clock } = this.#context
    const [known] = await findJobRuns(tx, [run.runId])
    if (known) return this.#claim(tx, { jobId: known.job_id, threadId: run.threadId }, request)
    await lockFollowed(tx, run.threadId, clock.now())
    await this.#checkLimits(tx, request)
    const given = {
      id: ids.next('job'),
      input: null,
      project_id: request.projectId,
      created_by: request.createdBy,
      thread_id: run.threadId,
      run_id: run.runId,
      trace_context: this.#context.tracer?.current ?? null,
    }
    const place = { limited_type: limitedTypeOf(request.type) }
    const job = await this.#insert(tx, newJob(request.type, given, clock.now()), { place })
    const followed = { run_id: run.runId, job_id: job.id, run_seq: 1, is_extra: 0, created_at: job.created_at }
    await insertJobRuns(tx, [followed])
    return job
  }

  /** The run's callback arrived first and created a job without an owner: the caller becomes its owner. */
  async #claim(
    tx: Transaction,
    { jobId, threadId }: { jobId: string; threadId: string },
    request: NewJobRequest,
  ): Promise<JobRow> {
    const { type, createdBy, projectId, maxBytes = INLINE_BYTES } = request
    const job = await lockJob(tx, jobId, maxBytes)
    const fits = job.type === type.name && job.thread_id === threadId
    if (job.created_by === createdBy && fits) return job
    if (job.created_by !== null || job.erased_at !== null || !fits)
      throw new ApiError('conflict', 'Another job follows that run')
    await claimThread(tx, job.thread_id, createdBy)
    await this.#checkLimits(tx, request)
    job.created_by = createdBy
    job.project_id = projectId
    job.updated_at = this.#context.clock.now()
    await updateJobs(tx, [job])
    await changeOwner(tx, jobId, createdBy)
    await this.#addToTimeline(tx, job, 'claimed', { created_by: createdBy })
    const usage = job.finished_at === null ? [] : [usageOf(job, createdBy)]
    await recordUsage(tx, usage, { ...this.#context, atMs: job.updated_at })
    return job
  }

  async #insert(tx: Transaction, job: JobRow, details: { place: Place; title?: string | null }): Promise<JobRow> {
    await insertJob(tx, job, details)
    const traceId = parseTraceContext(job.trace_context)?.traceId
    await this.#addToTimeline(tx, job, 'created', {
      type: job.type,
      ...(traceId !== undefined && { request_trace_id: traceId }),
      ...(job.retry_of !== null && { retry_of: job.retry_of }),
      ...(job.run_at !== null && { run_at: toRfc3339(job.run_at) }),
    })
    const { id, created_at: atMs } = job
    await appendEvents(tx, [jobEvent(job, 'job.created', { cause: `${id}:created`, atMs, types: this.#context.types })])
    return job
  }

  /** With a free slot, this process leases the job for its start, and counts the first attempt in the same commit. */
  async #leaseForStart(
    tx: Transaction,
    { job, type, isPossible = true }: { job: JobRow; type: JobType; isPossible?: boolean },
  ): Promise<Place> {
    const limited_type = limitedTypeOf(type)
    if (!(await takesPlace(tx, type, job.created_by))) {
      // Until the job gets a place, only its deadline is due. A check of its question may still hold a lease.
      job.start_attempts = 0
      job.lease_token = null
      job.lease_until = null
      job.next_check_at = job.deadline_at
      return { limited_type, queued_at: job.updated_at }
    }
    const lease = isPossible && this.#worker.mayStart ? this.#worker.newLease() : null
    job.start_attempts = lease === null ? 0 : 1
    job.lease_token = lease?.token ?? null
    job.lease_until = lease?.untilMs ?? null
    return { limited_type, lease_node: lease?.node ?? null }
  }

  /** Before a transaction creates jobs of several owners, one by one. */
  async lockUsageOf(tx: Transaction, owners: readonly string[]): Promise<void> {
    await lockLimitedUsage(tx, owners, this.#usageCheck())
  }

  #usageCheck() {
    return { nowMs: this.#context.clock.now(), defaultRuns: this.#context.usageLimitRuns }
  }

  async #checkLimits(tx: Transaction, { createdBy, byAdmin }: NewJobRequest): Promise<void> {
    if (!byAdmin) await this.#checkUnfinished(tx, createdBy)
    await this.#checkUsageLimit(tx, createdBy)
  }

  /**
   * Far below the limit, counts without a lock, so that an owner never waits for its other starts. On PostgreSQL, such a
   * start exceeds the limit if 200 others of its owner commit between its count and its own commit. The excess is at most
   * the starts in progress: 50 on each node. On SQLite there is none, because transactions run one after the other.
   */
  async #checkUnfinished(tx: Transaction, owner: string): Promise<void> {
    const limit = this.#maxUnfinishedJobs
    if (limit === null) return
    let unfinished = await countUnfinished(tx, owner)
    if (unfinished < limit && unfinished + STARTS_IN_PROGRESS >= limit) {
      await lockUsage(tx, { subjects: [owner], period: periodOf(this.#context.clock.now()) })
      unfinished = await countUnfinished(tx, owner)
    }
    if (unfinished >= limit) throw new QuotaExceeded(limit, 'unfinished jobs')
  }

  async #checkUsageLimit(tx: Transaction, owner: string): Promise<void> {
    const check = this.#usageCheck()
    const spent = await findSpentLimit(tx, owner, check)
    if (spent === null) return
    const { nowMs } = check
    const retryAfterSeconds = Math.ceil((endOfPeriodMs(nowMs) - nowMs) / 1000)
    const message = `The limit of ${spent.limit} ${spent.unit} for ${periodOf(nowMs)} is reached`
    throw new ApiError('usage_limit_exceeded', message, { headers: { 'retry-after': String(retryAfterSeconds) } })
  }

  /** Records nothing without an origin: changes by the owner are in the timeline. */
  async #audit(
    tx: Transaction,
    { id }: Pick<JobRow, 'id'>,
    { by, ...change }: Omit<AuditedChange, 'by' | 'object'> & { by: AuditOrigin | undefined },
  ): Promise<void> {
    if (by) await recordAudit(tx, this.#context, { ...change, by, object: { kind: 'job', id } })
  }

  async #addToTimeline(tx: Transaction, job: Pick<JobRow, 'id'>, kind: TimelineKind, detail: object): Promise<void> {
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

/** Returns the status after a resume; throws if the job awaits no input. */
function checkAwaitsInput({ status }: JobRow): JobStatus {
  const to = nextStatus(status, 'resumed')
  if (to === null) throw new ApiError('conflict', `The job is ${status}: it awaits no input`)
  return to
}

async function lockJob(tx: Transaction, id: string, maxBytes: number): Promise<JobRow> {
  const job = await lockStoredJob(tx, id, maxBytes)
  if (!job) throw noSuchJob()
  return job
}

function noSuchJob(): ApiError {
  return new ApiError('not_found', 'No such job')
}
