import { backoffMs } from '../../core/async/backoff.ts'
import type { IdGenerator } from '../../core/ids.ts'
import { writeJson } from '../../core/json/json-text.ts'
import type { Random } from '../../core/random.ts'
import { isSameTrace, noTracer, type Span, type Tracer } from '../../core/tracing.ts'
import type { Transaction } from '../../db/database.ts'
import { appendEvents, type EventType, type NewEvent } from '../../events/event-store.ts'
import { type PushIntent, recordPushIntents } from '../../push/intent-store.ts'
import type { NotificationText } from '../../push/notification-text.ts'
import type { PushOptOut } from '../../push/push-opt-out.ts'
import type { Traces } from '../../runtime/runtime-types.ts'
import type { JobUsage } from '../../usage/usage-store.ts'
import type { CallbackOutcome } from '../callback-store.ts'
import { deleteChecks, type JobCheck, makeDue, newCheck, questionDueAt, replaceChecks } from '../check-store.ts'
import {
  type Evidence,
  isEnd,
  isNotified,
  isTerminal,
  isWatched,
  type JobStatus,
  NO_TOKENS,
  type OutputMisfit,
  type RunObservation,
  STATUSES,
  type Verdict,
  type Via,
} from '../job.ts'
import { nextStatus } from '../job-machine.ts'
import { type JobRow, type SlimJob, STORED_NAMES, type StoredJob } from '../job-row.ts'
import { changeJobs, insertJobRuns, type JobChange, type JobRun, lockSlimJobs } from '../job-store.ts'
import { deadlineFrom, type JobTypes, limitedTypeOf, linkOf, questionTimes } from '../job-types.ts'
import { jobEvent } from './job-event.ts'
import { type AskedQuestions, dropAnswers, recordQuestions, type UnusedAnswer } from './pause-store.ts'
import { recordExtraRuns } from './record-extra-runs.ts'
import { appendTimeline, type NewTimelineRow, type TimelineKind } from './timeline-store.ts'
import { recordUsage, usageOf } from './usage-of.ts'
import { ANSWER_EXPIRED } from './verdict.ts'

/** New information about a job, from a callback, a read, the sweep or a cancel request. */
export interface JobUpdate extends RunObservation {
  jobId: string
  /** The number of the job's run, if it is known. */
  runSeq?: number
  /** Null if this service itself made the decision. */
  via: Via | null
  /** Set for a callback. If it proves nothing, the sweep asks the runtime at once. */
  unverified?: boolean
  /** Set when the caller stores the transition with the callback that caused it, instead of an entry of its own. */
  keepsTransition?: boolean
  /** Set for the result of a check. If it ends the job, it is the last check that the job's row keeps. */
  isCheck?: boolean
  /** When the runtime was asked. If the database is unavailable, the update may be written much later, or twice. */
  askedAtMs?: number
  /** The span of the callback or the check. */
  traceContext?: string | null
}

/** Evidence is confirmed when it is seen again, at least this long after the first time. */
export const CONFIRM_AFTER_MS = 10_000

/** The longest time between two checks of a paused job that no client reads. */
const PAUSED_CHECK_MS = 3_600_000

export function nextCheckOfPaused(atMs: number, random: Random): number {
  return atMs + backoffMs({ baseMs: PAUSED_CHECK_MS, maxMs: PAUSED_CHECK_MS }, 0, random)
}

/** applied: it paused or ended the job. duplicate, stale: known already. deferred: it did neither. */
type SettleOutcome = Exclude<CallbackOutcome, 'adopted'>

/** A job during its settlement. Its stored documents are not read; documents of a verdict are written. */
export type SettlingJob = SlimJob & Partial<Pick<JobRow, 'output' | 'interrupts' | 'resume_input'>>

type ContinuedElsewhere = Extract<Verdict, { kind: 'continued_elsewhere' }>
type AnsweredElsewhere = Extract<Verdict, { kind: 'answered_elsewhere' }>

export interface Settled {
  outcome: SettleOutcome
  job: SettlingJob
  /** The detail of the transition that the update caused, as JSON, for an update that `keepsTransition`. */
  transition?: string
}

interface SettleContext {
  ids: IdGenerator
  random: Random
  types: JobTypes
  pushOptOut: PushOptOut
  usageLimitRuns: number | null
  tracer?: Tracer
  atMs: number
}

/**
 * Ends a job exactly once. Job, output, usage, event and push intents are collected in memory and then written in a few
 * statements of one transaction. Made by `settleJobs`, for one `settle` or one `write`.
 */
export class Settlement {
  /** The jobs that this settlement ended. */
  readonly ended: SettlingJob[] = []
  /** Outputs that do not fit the schema of their type. */
  readonly misfits: { type: string; reason: OutputMisfit['reason'] }[] = []
  /** Further runs that were not known before. */
  readonly extraRuns: JobRun[] = []
  readonly #tx: Transaction
  readonly #context: SettleContext
  readonly #jobs = new Map<string, { job: SettlingJob; before: SettlingJob }>()
  readonly #runs: JobRun[] = []
  readonly #extraRuns: JobRun[] = []
  readonly #questions: AskedQuestions[] = []
  /** Answers that did not reach the runtime, by the job and the number of the run that asked. */
  readonly #unusedAnswers: UnusedAnswer[] = []
  /** Jobs whose next check is due now. */
  readonly #due = new Set<string>()
  /** The checks of jobs that paused, or that go on after a pause. */
  readonly #checks: JobCheck[] = []
  /** Jobs whose checks end: the runtime is no longer asked about them. */
  readonly #unwatched = new Set<string>()
  readonly #events: NewEvent[] = []
  readonly #usage: JobUsage[] = []
  readonly #intents: PushIntent[] = []
  readonly #timeline: NewTimelineRow[] = []
  readonly #spans: Span[] = []

  constructor(tx: Transaction, context: SettleContext) {
    this.#tx = tx
    this.#context = context
  }

  get atMs(): number {
    return this.#context.atMs
  }

  /** Locks the jobs of these updates, applies the updates in order and writes the result. Every job must exist. */
  async settle(updates: readonly JobUpdate[]): Promise<Settled[]> {
    await this.lock([...new Set(updates.map((update) => update.jobId))])
    const settled = updates.map((update) => this.apply(update))
    await this.write()
    return settled
  }

  /** Once in a transaction, for all of its jobs. See `lockSlimJobs` for the order of locks. */
  async lock(ids: readonly string[], options: { skipLocked?: boolean } = {}): Promise<SettlingJob[]> {
    const jobs = await lockSlimJobs(this.#tx, ids, options)
    for (const job of jobs) this.add(job)
    return jobs
  }

  /** Takes a job that this transaction has locked or inserted. */
  add(job: SettlingJob): void {
    this.#jobs.set(job.id, { job, before: { ...job } })
  }

  apply(update: JobUpdate): Settled {
    const job = this.#jobs.get(update.jobId)?.job
    if (!job) throw new Error(`There is no job ${update.jobId} to settle`)
    const stale = { outcome: 'stale', job } as const
    if (update.runSeq !== undefined && update.runSeq !== job.run_seq) return stale
    if (update.runId !== null && job.run_id !== null && update.runId !== job.run_id) return stale
    if (update.runId !== null && job.run_id === null && isWatched(job.status)) this.#learnRun(job, update.runId)
    this.#keepTraces(job, update.traces)

    const verdict = applyCancelRequest(job, update.verdict)
    if (this.#needsConfirmation(job, { ...update, verdict })) return { outcome: 'deferred', job }
    const isGivenUp = verdict.kind === 'failed' && (update.via === null || verdict.confirm === 'thread_missing')
    const to = nextStatus(job.status, isGivenUp ? 'given_up' : verdict.kind)
    if (to === null) return { outcome: this.#outcomeOfNoMove(job, { ...update, verdict }), job }
    if (verdict.kind === 'continued_elsewhere') return this.#takeRun(job, verdict, update.via)
    if (verdict.kind === 'answered_elsewhere') return this.#replaceQuestions(job, verdict, update.via)
    const transition = this.#move(job, to, { ...update, verdict })
    return { outcome: isWatched(to) ? 'deferred' : 'applied', job, ...(update.keepsTransition && { transition }) }
  }

  /** After a check of a locked job: once the time of its question has come, ends the job or reminds its owner. */
  applyQuestionTimes(job: SettlingJob): void {
    const { types, atMs } = this.#context
    const { id: jobId, run_seq } = job
    const dueMs = questionDueAt(job)
    if (job.status !== 'awaiting_input' || dueMs === null || atMs < dueMs) return
    if (job.answer_by !== null && atMs >= job.answer_by) {
      this.apply({ jobId, runId: null, verdict: ANSWER_EXPIRED, via: null, isCheck: true, traces: null })
    } else if (job.remind_at !== null && atMs >= job.remind_at) {
      job.remind_at = null
      this.#note(job, 'reminded', { via: null, detail: {} })
      const text = types.get(job.type)?.notifications.reminder
      const span = this.#startSpan(job, { via: null, cause: null })
      this.#announce(job, 'job.reminder', { cause: `${jobId}:${run_seq}:reminder`, text, span })
    }
  }

  async write(): Promise<void> {
    const tx = this.#tx
    const { pushOptOut } = this.#context
    await Promise.all([
      changeJobs(
        tx,
        Array.from(this.#jobs.values(), (held) => changesOf(held, this.#unwatched.has(held.job.id))),
      ),
      makeDue(tx, [...this.#due], this.#context.atMs),
      deleteChecks(tx, [...this.#unwatched]),
      replaceChecks(tx, this.#checks),
      this.#writeRuns(),
      this.#writeExtraRuns(),
      appendEvents(tx, this.#events),
      recordUsage(tx, this.#usage, this.#context),
      recordPushIntents(tx, this.#intents, pushOptOut),
      appendTimeline(tx, this.#timeline),
    ])
  }

  /** A further run of a number, of a start that was repeated. It is noted. See `findLateAnswer` for when it is followed. */
  noteExtraRun(job: SettlingJob, { runId, runSeq }: { runId: string; runSeq: number }): void {
    const { atMs } = this.#context
    this.#extraRuns.push({ run_id: runId, job_id: job.id, run_seq: runSeq, is_extra: 1, created_at: atMs })
  }

  /** After the commit. A repeated transaction creates new spans; the spans of the failed attempt are never sent. */
  endSpans(): void {
    for (const span of this.#spans) span.end()
  }

  async #writeRuns(): Promise<void> {
    await insertJobRuns(this.#tx, this.#runs)
    await recordQuestions(this.#tx, this.#questions)
    await dropAnswers(this.#tx, this.#unusedAnswers)
  }

  async #writeExtraRuns(): Promise<void> {
    const { ids, atMs } = this.#context
    const added = await recordExtraRuns(this.#tx, this.#extraRuns, { ids, atMs })
    this.extraRuns.push(...added)
  }

  /** A callback can arrive before the answer to the start request. Then the run's id comes from the callback. */
  #learnRun(job: SettlingJob, runId: string): void {
    const { atMs } = this.#context
    job.run_id = runId
    job.started_at ??= atMs
    job.updated_at = atMs
    this.#runs.push({ run_id: runId, job_id: job.id, run_seq: job.run_seq, is_extra: 0, created_at: atMs })
  }

  #keepTraces(job: SettlingJob, traces: Traces | null): void {
    if (traces === null) return
    job.trace_id ??= traces.traceId
    job.tracer_trace_id ??= traces.tracerTraceId
  }

  /** Records evidence that must be confirmed, when it is first seen. True if the verdict does not count yet. */
  #needsConfirmation(job: SettlingJob, { verdict, via, unverified, askedAtMs }: JobUpdate): boolean {
    const { atMs } = this.#context
    const evidence = 'confirm' in verdict ? verdict.confirm : undefined
    const isPaused = job.status === 'awaiting_input'
    if (evidence === undefined || isTerminal(job.status)) {
      // A callback confirms and contradicts nothing: only answers of the runtime do.
      if (job.awaiting_confirmation !== null && !unverified && contradicts(verdict, job.awaiting_confirmation)) {
        this.#awaitConfirmation(job, null)
        // The run goes on, or the question is still open: the evidence was no hint of an end.
        const isActive = verdict.kind === 'running' || verdict.kind === 'pending'
        if ((isActive || isPaused) && job.first_hint !== 'callback') job.first_hint = null
      }
      return false
    }
    // The run of a paused job has ended: only evidence about its question counts.
    if (isPaused && evidence !== 'question_closed' && evidence !== 'thread_missing') return true
    if (job.awaiting_confirmation !== evidence) this.#awaitConfirmation(job, evidence)
    job.first_hint ??= via
    return (askedAtMs ?? atMs) - (job.awaiting_confirmation_since ?? atMs) < CONFIRM_AFTER_MS
  }

  #awaitConfirmation(job: SettlingJob, evidence: Evidence | null): void {
    job.awaiting_confirmation = evidence
    job.awaiting_confirmation_since = evidence === null ? null : this.#context.atMs
  }

  #outcomeOfNoMove(job: SettlingJob, { verdict, unverified }: JobUpdate): SettleOutcome {
    if (!isWatched(job.status)) {
      const contradicts = isEnd(verdict.kind) && verdict.kind !== job.status
      return contradicts ? 'stale' : 'duplicate'
    }
    if (verdict.kind === 'unclear' && unverified) {
      // The next check is due now, instead of after the backoff.
      this.#due.add(job.id)
      job.next_check_at = this.#context.atMs
      job.first_hint ??= 'callback'
    }
    return 'deferred'
  }

  /** Returns the detail of the transition. */
  #move(job: SettlingJob, to: JobStatus, update: JobUpdate): string {
    const { verdict, via, isCheck = false, traceContext = null, keepsTransition, unconfirmed } = update
    const { ids, atMs } = this.#context
    const from = job.status
    job.status = to
    job.updated_at = atMs
    if (job.run_id !== null) job.started_at ??= atMs
    if (verdict.kind === 'completed') job.output = verdict.output.text
    if (verdict.kind === 'failed') {
      job.error_code = verdict.code
      job.error_message = verdict.message
    }
    if (verdict.kind === 'awaiting_input') this.#ask(job, writeJson(verdict.interrupts))
    else if (from === 'awaiting_input') job.interrupts = null
    const asked = verdict.kind === 'awaiting_input' ? this.#context.types.get(job.type) : undefined
    Object.assign(job, questionTimes(atMs, asked))
    if (!isWatched(to)) {
      this.#awaitConfirmation(job, null)
      job.settled_by = via === null ? null : (job.first_hint ?? via)
      job.next_check_at = null
      job.last_error = null
      if (isCheck) {
        job.checked_at = atMs
        job.check_attempts += 1
      }
      if (isTerminal(to)) this.#unwatched.add(job.id)
      else this.#pauseChecks(job)
    }
    // The row is locked. Even if the table of moves let an ended job move again, it would end and count only once.
    if (isTerminal(to) && job.finished_at === null) {
      job.finished_at = atMs
      this.ended.push(job)
      this.#countUsage(job, verdict)
    }
    const error = to === 'failed' ? job.error_code : undefined
    const detail = JSON.stringify({ from, to, error, ...(unconfirmed && { confirmed: false }) })
    if (!keepsTransition) {
      this.#timeline.push({ id: ids.next('tml'), job_id: job.id, at: atMs, kind: 'transition', via, detail })
    }
    if (verdict.kind === 'completed' && verdict.misfit) this.#noteMisfit(job, verdict.misfit, via)
    this.#announceStatus(job, this.#startSpan(job, { via, cause: traceContext }))
    return detail
  }

  /** The questions stay with their run when the job no longer shows them. */
  #ask(job: SettlingJob, interrupts: string): void {
    job.interrupts = interrupts
    if (job.run_id !== null) this.#questions.push({ run_id: job.run_id, questions: interrupts })
  }

  /** A paused job is checked rarely, and takes no place among the active runs of its type. */
  #pauseChecks(job: SettlingJob): void {
    const { atMs, random } = this.#context
    job.first_hint = null
    job.next_check_at = Math.min(nextCheckOfPaused(atMs, random), questionDueAt(job) ?? Number.POSITIVE_INFINITY)
    this.#checks.push(newCheck({ ...job, start_attempts: 0, lease_token: null, lease_until: null }))
  }

  /** The paused job goes on with a run that another client of the runtime started. */
  #takeRun(job: SettlingJob, { runId, answered }: ContinuedElsewhere, via: JobUpdate['via']): Settled {
    const { types, atMs } = this.#context
    const type = types.get(job.type)
    const isUnanswered = job.run_id === null && job.run_seq > 1
    if (isUnanswered) this.#unusedAnswers.push({ job_id: job.id, run_seq: job.run_seq - 1 })
    job.status = 'generating'
    job.run_id = runId
    job.run_seq += 1
    job.resume_input = null
    job.resume_questions = JSON.stringify(answered)
    job.interrupts = null
    Object.assign(job, questionTimes(atMs, undefined))
    job.settled_by = null
    job.first_hint = null
    this.#awaitConfirmation(job, null)
    job.deadline_at = type ? deadlineFrom(atMs, type) : atMs
    job.updated_at = atMs
    job.checked_at = null
    job.check_attempts = 0
    job.next_check_at = atMs
    this.#runs.push({ run_id: runId, job_id: job.id, run_seq: job.run_seq, is_extra: 0, created_at: atMs })
    // It was started once, elsewhere: its checks begin with short pauses.
    const started = { ...job, start_attempts: 1, lease_token: null, lease_until: null }
    this.#checks.push(newCheck(started, { limited_type: limitedTypeOf(type) }))
    const unused = isUnanswered ? { answer: 'not_applied' } : {}
    this.#note(job, 'continued_elsewhere', { via, detail: { run_seq: job.run_seq, run_id: runId, ...unused } })
    this.#announceStatus(job, this.#startSpan(job, { via, cause: null }))
    return { outcome: 'deferred', job }
  }

  /** The questions of the paused job were closed without a run. It shows those that are open now, which may be none. */
  #replaceQuestions(job: SettlingJob, { interrupts }: AnsweredElsewhere, via: JobUpdate['via']): Settled {
    const { atMs, types } = this.#context
    if (interrupts.length === 0) job.interrupts = null
    else this.#ask(job, writeJson(interrupts))
    job.updated_at = atMs
    this.#awaitConfirmation(job, null)
    this.#note(job, 'answered_elsewhere', { via, detail: { questions: interrupts.length } })
    const cause = `${job.id}:${job.run_seq}:answered_elsewhere:${atMs}`
    this.#events.push(jobEvent(job, 'job.updated', { cause, atMs, types }))
    return { outcome: 'deferred', job }
  }

  #note(job: SettlingJob, kind: TimelineKind, { via, detail }: { via: JobUpdate['via']; detail: object }): void {
    const { ids, atMs } = this.#context
    this.#timeline.push({ id: ids.next('tml'), job_id: job.id, at: atMs, kind, via, detail: JSON.stringify(detail) })
  }

  /** Starts a span in the trace of the job. Its parent is the callback or the check, if that is part of the same trace. */
  #startSpan(job: SettlingJob, { via, cause }: { via: JobUpdate['via']; cause: string | null }): Span {
    const { tracer = noTracer } = this.#context
    const isWithin = job.trace_context === null || isSameTrace(cause, job.trace_context)
    const span = tracer.start('job.settle', {
      parent: isWithin ? cause : job.trace_context,
      links: [job.trace_context, isWithin ? null : cause],
      attributes: { 'job.id': job.id, 'job.type': job.type, 'job.status': job.status, 'job.via': via },
    })
    this.#spans.push(span)
    return span
  }

  #noteMisfit(job: SettlingJob, { reason, fault }: OutputMisfit, via: JobUpdate['via']): void {
    job.output_check = 'failed'
    this.misfits.push({ type: job.type, reason })
    this.#note(job, 'output_check', { via, detail: { reason, fault } })
  }

  #countUsage(job: SettlingJob, verdict: Verdict): void {
    const { input, output, total } = verdict.kind === 'completed' ? verdict.tokens : NO_TOKENS
    job.input_tokens = input || null
    job.output_tokens = output || null
    job.total_tokens = total || null
    // A job without an owner is counted when a user claims it.
    if (job.created_by !== null) this.#usage.push(usageOf(job, job.created_by))
  }

  #announceStatus(job: SettlingJob, span: Span): void {
    const { status } = job
    const text = isNotified(status) ? this.#context.types.get(job.type)?.notifications[status] : undefined
    this.#announce(job, STATUSES[status].event, { cause: `${job.id}:${job.run_seq}:${status}`, text, span })
  }

  #announce(
    job: SettlingJob,
    event: EventType,
    { cause, text, span }: { cause: string; text: NotificationText | undefined; span: Span },
  ): void {
    const { ids, atMs, types, tracer = noTracer } = this.#context
    const { context } = span
    this.#events.push(jobEvent(job, event, { cause, atMs, types }))
    const attributes = { 'event.cause': cause }
    this.#spans.unshift(tracer.start(`event ${event}`, { kind: 'producer', parent: context, attributes }))
    if (text === undefined || job.created_by === null) return
    this.#intents.push({
      id: ids.next('ntf'),
      cause,
      job_id: job.id,
      subject: job.created_by,
      title: text.title,
      body: text.body,
      data: JSON.stringify({ job_id: job.id, type: job.type, status: job.status }),
      link: linkOf(types.get(job.type), job),
      created_at: atMs,
      trace_context: context,
    })
  }
}

/** An unclear answer proves that the run exists, and nothing about its state. */
function contradicts(verdict: Verdict, evidence: Evidence): boolean {
  return verdict.kind !== 'unclear' || evidence === 'run_missing' || evidence === 'thread_missing'
}

/** If cancellation was requested, treats a pause as cancelled. An unconfirmed pause stays so: the run may have completed. */
function applyCancelRequest(job: SettlingJob, verdict: Verdict): Verdict {
  if (verdict.kind !== 'awaiting_input' || job.cancel_requested_at === null) return verdict
  return verdict.confirm ? { kind: 'cancelled', confirm: verdict.confirm } : { kind: 'cancelled' }
}

/** The columns that differ from the stored row. When its checks end, the job's row keeps the data of the last check. */
function changesOf(
  { job, before }: Record<'job' | 'before', SettlingJob & Partial<StoredJob>>,
  isUnwatched: boolean,
): JobChange {
  const keepsCheck = isUnwatched && job.check_attempts > 0
  const change: Record<string, unknown> = { id: job.id }
  for (const name of STORED_NAMES) {
    const isKept = keepsCheck && (name === 'checked_at' || name === 'check_attempts')
    if (job[name] !== before[name] || isKept) change[name] = job[name]
  }
  return change as JobChange
}
