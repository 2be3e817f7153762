import type { IdGenerator } from '../../core/ids.ts'
import { writeJson } from '../../core/json/json-text.ts'
import type { Transaction } from '../../db/database.ts'
import { appendEvents, type NewEvent } from '../../events/event-store.ts'
import { type PushIntent, recordPushIntents } from '../../push/intent-store.ts'
import type { PushOptOut } from '../../push/push-opt-out.ts'
import type { Traces } from '../../runtime/runtime-types.ts'
import { periodOf, recordUsage, type UsageRecord } from '../../usage/usage-store.ts'
import type { CallbackOutcome } from '../callbacks/callback-store.ts'
import {
  type FailureCode,
  isEnd,
  isNotified,
  isTerminal,
  isWatched,
  type JobStatus,
  NO_TOKENS,
  type RunObservation,
  STATUSES,
  type Verdict,
  type Via,
} from '../job.ts'
import { nextStatus } from '../job-machine.ts'
import type { JobRow } from '../job-row.ts'
import { insertJobRuns, type JobRun, lockJobs, updateJobs } from '../job-store.ts'
import type { JobTypes } from '../job-types.ts'
import { jobEvent } from './job-event.ts'
import { appendTimeline, type NewTimelineRow } from './timeline-store.ts'

/** What a callback, a read, the sweep or a cancel request says about a job. */
export interface JobUpdate extends RunObservation {
  jobId: string
  /** Which of the job's runs it is about, if that is known. */
  runSeq?: number
  /** Null when this service decided it. */
  via: Via | null
  /** Set for a callback. If it proves nothing, the sweep asks the runtime at once. */
  unverified?: boolean
}

/** How long after the first sighting the second one counts. */
export const SECOND_SIGHT_MS = 10_000

/** applied: it paused or ended the job. duplicate, stale: known already. deferred: it did neither. */
export type SettleOutcome = Exclude<CallbackOutcome, 'adopted'>

export interface Settled {
  outcome: SettleOutcome
  job: JobRow
}

export interface SettleContext {
  ids: IdGenerator
  types: JobTypes
  pushOptOut: PushOptOut
  atMs: number
}

/**
 * Ends a job exactly once. Job, output, usage, event and push intents are collected in memory and then written in a few
 * statements of one transaction. Made by `settleJobs`, for one `settle` or one `write`.
 */
export class Settlement {
  /** The jobs that this settlement ended. */
  readonly ended: JobRow[] = []
  readonly #tx: Transaction
  readonly #context: SettleContext
  readonly #jobs = new Map<string, JobRow>()
  readonly #touched = new Set<JobRow>()
  readonly #runs: JobRun[] = []
  readonly #events: NewEvent[] = []
  readonly #usage: UsageRecord[] = []
  readonly #intents: PushIntent[] = []
  readonly #timeline: NewTimelineRow[] = []

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

  async lock(ids: readonly string[]): Promise<JobRow[]> {
    const jobs = await lockJobs(this.#tx, ids)
    for (const job of jobs) this.add(job)
    return jobs
  }

  /** Takes a job that this transaction has locked or inserted. */
  add(job: JobRow): void {
    this.#jobs.set(job.id, job)
  }

  apply(update: JobUpdate): Settled {
    const job = this.#jobs.get(update.jobId)
    if (!job) throw new Error(`There is no job ${update.jobId} to settle`)
    const stale = { outcome: 'stale', job } as const
    if (update.runSeq !== undefined && update.runSeq !== job.run_seq) return stale
    if (update.runId !== null && job.run_id !== null && update.runId !== job.run_id) return stale
    if (update.runId !== null && job.run_id === null && isWatched(job.status)) this.#learnRun(job, update.runId)
    this.#keepTraces(job, update.traces)

    const verdict = applyCancelRequest(job, update.verdict)
    if (this.#mustSeeAgain(job, { ...update, verdict })) return { outcome: 'deferred', job }
    const isGivenUp = verdict.kind === 'failed' && update.via === null
    const to = nextStatus(job.status, isGivenUp ? 'given_up' : verdict.kind)
    if (to === null) return { outcome: this.#outcomeOfNoMove(job, { ...update, verdict }), job }
    this.#move(job, to, { ...update, verdict })
    return { outcome: isWatched(to) ? 'deferred' : 'applied', job }
  }

  async write(): Promise<void> {
    const tx = this.#tx
    const { pushOptOut } = this.#context
    await Promise.all([
      updateJobs(tx, [...this.#touched]),
      insertJobRuns(tx, this.#runs),
      appendEvents(tx, this.#events),
      recordUsage(tx, this.#usage),
      recordPushIntents(tx, this.#intents, pushOptOut),
      appendTimeline(tx, this.#timeline),
    ])
  }

  /** A callback can arrive before the answer to the start request, and then it is the first to name the run. */
  #learnRun(job: JobRow, runId: string): void {
    const { atMs } = this.#context
    job.run_id = runId
    job.started_at ??= atMs
    this.#touched.add(job)
    this.#runs.push({ run_id: runId, job_id: job.id, run_seq: job.run_seq, created_at: atMs })
  }

  #keepTraces(job: JobRow, traces: Traces | null): void {
    if (traces === null) return
    if (job.trace_id === null && traces.traceId !== null) {
      job.trace_id = traces.traceId
      this.#touched.add(job)
    }
    if (job.tracer_trace_id === null && traces.tracerTraceId !== null) {
      job.tracer_trace_id = traces.tracerTraceId
      this.#touched.add(job)
    }
  }

  /** Notes the first sighting of a finding that must be seen twice. True while it does not count yet. */
  #mustSeeAgain(job: JobRow, { verdict, via, unverified }: JobUpdate): boolean {
    const { atMs } = this.#context
    const code = verdict.kind === 'failed' && verdict.twice ? verdict.code : null
    if (code === null || !isWatched(job.status)) {
      // What a callback says, unlike an answer of the runtime, is no sighting.
      if (job.doubt_code !== null && !unverified) this.#noteDoubt(job, null)
      return false
    }
    if (job.doubt_code !== code) this.#noteDoubt(job, code)
    job.first_hint ??= via
    return atMs - (job.doubt_at ?? atMs) < SECOND_SIGHT_MS
  }

  #noteDoubt(job: JobRow, code: FailureCode | null): void {
    job.doubt_code = code
    job.doubt_at = code === null ? null : this.#context.atMs
    this.#touched.add(job)
  }

  #outcomeOfNoMove(job: JobRow, { verdict, unverified }: JobUpdate): SettleOutcome {
    if (!isWatched(job.status)) {
      const contradicts = isEnd(verdict.kind) && verdict.kind !== job.status
      return contradicts ? 'stale' : 'duplicate'
    }
    if (verdict.kind === 'unclear' && unverified) {
      // The next check is due now, instead of after the backoff.
      job.next_check_at = this.#context.atMs
      job.first_hint ??= 'callback'
      this.#touched.add(job)
    }
    return 'deferred'
  }

  #move(job: JobRow, to: JobStatus, { verdict, via }: JobUpdate): void {
    const { ids, atMs } = this.#context
    const from = job.status
    job.status = to
    job.updated_at = atMs
    if (job.run_id !== null) job.started_at ??= atMs
    this.#touched.add(job)
    if (verdict.kind === 'completed') job.output = verdict.output.text
    if (verdict.kind === 'failed') {
      job.error_code = verdict.code
      job.error_message = verdict.message
    }
    job.interrupts = verdict.kind === 'awaiting_input' ? writeJson(verdict.interrupts) : null
    if (!isWatched(to)) {
      job.doubt_code = null
      job.doubt_at = null
      job.settled_by = via === null ? null : (job.first_hint ?? via)
      job.next_check_at = null
      job.last_error = null
    }
    if (isTerminal(to)) {
      job.finished_at = atMs
      this.ended.push(job)
      this.#countUsage(job, verdict)
    }
    const detail = JSON.stringify(to === 'failed' ? { from, to, error: job.error_code } : { from, to })
    this.#timeline.push({ id: ids.next('tml'), job_id: job.id, at: atMs, kind: 'transition', via, detail })
    this.#announce(job, to)
  }

  #countUsage(job: JobRow, verdict: Verdict): void {
    const { atMs } = this.#context
    const tokens = verdict.kind === 'completed' ? verdict.tokens : NO_TOKENS
    this.#usage.push({
      job_id: job.id,
      subject: job.created_by,
      period: periodOf(atMs),
      type: job.type,
      input_tokens: tokens.input,
      output_tokens: tokens.output,
      total_tokens: tokens.total,
      settled_at: atMs,
    })
  }

  #announce(job: JobRow, to: JobStatus): void {
    const { ids, types, atMs } = this.#context
    const cause = `${job.id}:${job.run_seq}:${to}`
    this.#events.push(jobEvent(job, STATUSES[to].event, cause, atMs))
    const text = isNotified(to) ? types.get(job.type)?.notifications[to] : undefined
    if (text === undefined || job.created_by === null) return
    this.#intents.push({
      id: ids.next('ntf'),
      cause,
      job_id: job.id,
      subject: job.created_by,
      title: text.title,
      body: text.body,
      data: JSON.stringify({ job_id: job.id, type: job.type, status: to }),
      created_at: atMs,
    })
  }
}

/** If cancellation was requested, treats a pause as cancelled. */
function applyCancelRequest(job: JobRow, verdict: Verdict): Verdict {
  return verdict.kind === 'awaiting_input' && job.cancel_requested_at !== null ? { kind: 'cancelled' } : verdict
}
