import type { IdGenerator } from '../../core/ids.ts'
import type { Transaction } from '../../db/database.ts'
import { appendEvents, type EventType, type NewEvent } from '../../events/event-store.ts'
import { type PushIntent, recordPushIntents } from '../../push/intent-store.ts'
import type { PushOptOut } from '../../push/push-opt-out.ts'
import type { Traces } from '../../runtime/runtime-types.ts'
import { periodOf, recordUsage, type UsageRecord } from '../../usage/usage-store.ts'
import {
  isTerminal,
  isUnfinished,
  type JobRow,
  type JobStatus,
  NO_TOKENS,
  type RunObservation,
  type Verdict,
  type Via,
} from '../job.ts'
import { nextStatus } from '../job-machine.ts'
import { insertJobRuns, type JobRun, lockJobs, updateJobs } from '../job-store.ts'
import type { JobTypes } from '../job-types.ts'
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

/** applied: it moved the job to a pause or its end. duplicate, stale: known already. deferred: it moved nothing that counts. */
export type SettleOutcome = 'applied' | 'duplicate' | 'stale' | 'deferred'

export interface Settled {
  outcome: SettleOutcome
  job: JobRow
  /** Whether it was this update that ended the job. */
  ended: boolean
}

export interface SettleContext {
  ids: IdGenerator
  types: JobTypes
  pushOptOut: PushOptOut
  atMs: number
}

/**
 * Ends a job exactly once, whoever noticed first: job, output, usage, event and push intents commit together, in the
 * caller's transaction. Takes many updates at once, in order, also several of one job. Every job must exist.
 */
export async function settle(
  tx: Transaction,
  updates: readonly JobUpdate[],
  context: SettleContext,
): Promise<Settled[]> {
  const held = await lockJobs(tx, [...new Set(updates.map((update) => update.jobId))])
  const settlement = new Settlement(held, context)
  const settled = updates.map((update) => settlement.apply(update))
  await settlement.write(tx)
  return settled
}

/** What a batch of updates does to the jobs they are about, gathered in memory and then written in a few statements. */
export class Settlement {
  readonly #jobs: Map<string, JobRow>
  readonly #context: SettleContext
  readonly #touched = new Set<string>()
  readonly #runs: JobRun[] = []
  readonly #events: NewEvent[] = []
  readonly #usage: UsageRecord[] = []
  readonly #intents: PushIntent[] = []
  readonly #timeline: NewTimelineRow[] = []

  constructor(held: readonly JobRow[], context: SettleContext) {
    this.#jobs = new Map(held.map((job) => [job.id, job]))
    this.#context = context
  }

  apply(update: JobUpdate): Settled {
    const job = this.#jobs.get(update.jobId)
    if (!job) throw new Error(`There is no job ${update.jobId} to settle`)
    const stale = { outcome: 'stale', job, ended: false } as const
    if (update.runSeq !== undefined && update.runSeq !== job.run_seq) return stale
    if (update.runId !== null && job.run_id !== null && update.runId !== job.run_id) return stale
    if (update.runId !== null && job.run_id === null && isUnfinished(job.status)) this.#learnRun(job, update.runId)
    this.#keepTraces(job, update.traces)

    const verdict = applyCancelRequest(job, update.verdict)
    const to = nextStatus(job.status, verdict.kind)
    if (to === null) return { outcome: this.#outcomeOfNoMove(job, { ...update, verdict }), job, ended: false }
    this.#move(job, to, { ...update, verdict })
    return { outcome: to === 'generating' ? 'deferred' : 'applied', job, ended: isTerminal(to) }
  }

  async write(tx: Transaction): Promise<void> {
    await Promise.all([
      updateJobs(
        tx,
        [...this.#touched].map((id) => this.#jobs.get(id) as JobRow),
      ),
      insertJobRuns(tx, this.#runs),
      appendEvents(tx, this.#events),
      recordUsage(tx, this.#usage),
      recordPushIntents(tx, this.#intents, this.#context.pushOptOut),
      appendTimeline(tx, this.#timeline),
    ])
  }

  /** The end of a run can arrive before the answer that told us its id. */
  #learnRun(job: JobRow, runId: string): void {
    job.run_id = runId
    job.started_at ??= this.#context.atMs
    this.#touched.add(job.id)
    this.#runs.push({ run_id: runId, job_id: job.id, run_seq: job.run_seq, created_at: this.#context.atMs })
  }

  #keepTraces(job: JobRow, traces: Traces | null): void {
    if (traces === null) return
    if (job.trace_id === null && traces.traceId !== null) {
      job.trace_id = traces.traceId
      this.#touched.add(job.id)
    }
    if (job.tracer_trace_id === null && traces.tracerTraceId !== null) {
      job.tracer_trace_id = traces.tracerTraceId
      this.#touched.add(job.id)
    }
  }

  #outcomeOfNoMove(job: JobRow, { verdict, unverified }: JobUpdate): SettleOutcome {
    if (!isUnfinished(job.status)) {
      const saysTheSame = verdict.kind === job.status || !['completed', 'failed', 'cancelled'].includes(verdict.kind)
      return saysTheSame ? 'duplicate' : 'stale'
    }
    if (verdict.kind === 'unclear' && unverified) {
      // The sweep looks at once, instead of when it would have.
      job.next_check_at = this.#context.atMs
      this.#touched.add(job.id)
    }
    return 'deferred'
  }

  #move(job: JobRow, to: JobStatus, { verdict, via }: JobUpdate): void {
    const { atMs } = this.#context
    const from = job.status
    job.status = to
    job.updated_at = atMs
    if (job.run_id !== null) job.started_at ??= atMs
    this.#touched.add(job.id)
    if (verdict.kind === 'completed') job.output = JSON.stringify(verdict.output)
    if (verdict.kind === 'failed') {
      job.error_code = verdict.code
      job.error_message = verdict.message
    }
    job.interrupts = verdict.kind === 'awaiting_input' ? JSON.stringify(verdict.interrupts) : null
    if (!isUnfinished(to)) {
      job.settled_by = via
      job.next_check_at = null
      job.last_error = null
    }
    if (isTerminal(to)) {
      job.finished_at = atMs
      this.#countUsage(job, verdict)
    }
    const detail = to === 'failed' ? { from, to, error: job.error_code } : { from, to }
    this.#note(job, { kind: 'transition', via, detail: JSON.stringify(detail) })
    this.#announce(job, to)
  }

  #note(job: JobRow, entry: Pick<NewTimelineRow, 'kind' | 'via' | 'detail'>): void {
    this.#timeline.push({ id: this.#context.ids.next('tml'), job_id: job.id, at: this.#context.atMs, ...entry })
  }

  #countUsage(job: JobRow, verdict: Verdict): void {
    const tokens = verdict.kind === 'completed' ? verdict.tokens : NO_TOKENS
    this.#usage.push({
      job_id: job.id,
      subject: job.created_by,
      period: periodOf(this.#context.atMs),
      type: job.type,
      input_tokens: tokens.input,
      output_tokens: tokens.output,
      total_tokens: tokens.total,
      settled_at: this.#context.atMs,
    })
  }

  #announce(job: JobRow, to: JobStatus): void {
    const { ids, types, atMs } = this.#context
    const cause = `${job.id}:${job.run_seq}:${to}`
    this.#events.push(jobEvent(job, to === 'generating' ? 'job.updated' : (`job.${to}` as EventType), cause, atMs))
    const text = to === 'generating' || to === 'processing' ? undefined : types.get(job.type)?.notifications[to]
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

/** What clients stream of a job: enough to act on, never its input or output, which they fetch. */
export function jobEvent(job: JobRow, type: EventType, cause: string, atMs: number): NewEvent {
  const data = {
    job_id: job.id,
    type: job.type,
    status: job.status,
    project_id: job.project_id,
    error: job.error_code === null ? null : { code: job.error_code, message: job.error_message },
    settled_by: job.settled_by,
  }
  return { subject: job.created_by, job_id: job.id, type, cause, data: JSON.stringify(data), created_at: atMs }
}
