import { JobAwaitingInput, JobCancelled, JobFailed } from '../errors.ts'
import { LinkedAbort } from '../http/abort.ts'
import { idempotency } from '../http/connection.ts'
import { type CallOptions, type ListOptions, listOf } from '../resources/pages.ts'
import { type CreateOptions, remove } from '../resources/resources.ts'
import {
  type AnswerOf,
  type ConfigurableOf,
  hasEnded,
  type InputOf,
  type Job,
  type OutputOf,
  type TimelineEntry,
  type TypeName,
} from '../types.ts'
import {
  type AnswerOptions,
  type ClientContext,
  type ContinueOptions,
  pathOf,
  requestJob,
  startJob,
} from './job-requests.ts'
import { followLive, type LiveOptions, type LivePart } from './live.ts'
import { waitForJob } from './wait-for-job.ts'

export interface ResultOptions extends CallOptions {
  /**
   * True: keep waiting while the job awaits input that a user gives elsewhere; if its `answer_by` passes without an answer,
   * throws `JobFailed` with `answer_expired`. Default: throws `JobAwaitingInput`.
   */
  waitForAnswer?: boolean
  /** The longest time to wait. Then `request_timeout` is thrown; the job continues. */
  timeoutMs?: number
}

export interface RetryOptions extends CreateOptions {
  /** True: repeat the job also if it was retried already. Default: such a job is a `conflict`. */
  again?: boolean
}

/** After a conflict. A closed question is confirmed after 10 s, at the next read. */
const CLOSED_WITHIN_MS = 30_000

type Answering<Types, Name extends TypeName<Types>> = AnswerOptions<ConfigurableOf<Types, Name>>

/** One job: its last known state, and all actions on it. */
export class JobHandle<Types, Name extends TypeName<Types> = TypeName<Types>> {
  readonly id: string
  readonly #context: ClientContext
  #data: Job<Types, Name> | undefined
  #liveCursor: string | null = null

  constructor(context: ClientContext, id: string, data?: Job) {
    this.#context = context
    this.id = id
    this.#data = data as Job<Types, Name> | undefined
  }

  /** The job as it was last read. Undefined before the first read. */
  get data(): Job<Types, Name> | undefined {
    return this.#data
  }

  /** Reads the job now. */
  async get({ signal }: CallOptions = {}): Promise<Job<Types, Name>> {
    return this.#keep(await requestJob(this.#context, 'GET', pathOf(this.id), { signal }))
  }

  /**
   * Resolves with the output. Throws `JobFailed`, `JobCancelled` or `JobAwaitingInput`. Waits out every outage once this
   * handle has read the job. Before that, it rejects if the first read fails.
   */
  async result({ signal, waitForAnswer = false, timeoutMs }: ResultOptions = {}): Promise<OutputOf<Types, Name>> {
    const abort = new LinkedAbort(signal)
    const wait = () =>
      waitForJob(this.#context, this.id, {
        until: ({ status }) => hasEnded(status) || (status === 'awaiting_input' && !waitForAnswer),
        isKnown: this.#data !== undefined,
        onRead: (read) => this.#keep(read),
        signal: abort.signal,
      })
    const { clock } = this.#context.connection
    const limit = (ms: number) => ({ clock, ms, message: `The job has not ended within ${ms / 1_000} s` })
    try {
      const job = await (timeoutMs === undefined ? wait() : abort.within(limit(timeoutMs), wait))
      switch (job.status) {
        case 'failed':
          throw new JobFailed(job.error.message, job)
        case 'cancelled':
          throw new JobCancelled('The job was cancelled', job)
        case 'awaiting_input':
          throw new JobAwaitingInput('The job awaits input', job)
        // No default: a status without a case does not compile. The wait does not end with an active job.
        case 'completed':
        case 'processing':
        case 'generating':
          return job.output as OutputOf<Types, Name>
      }
    } finally {
      abort.unlink()
    }
  }

  /** The output of the run as it appears. After an answer, another call shows the next run. */
  async *live(options: LiveOptions = {}): AsyncGenerator<LivePart> {
    const after = options.after === undefined ? this.#liveCursor : options.after
    for await (const part of followLive(this.#context, this.id, { ...options, after })) {
      if (part.type === 'end' && part.status === 'awaiting_input') this.#liveCursor = part.cursor
      yield part
    }
  }

  /**
   * Answers the job's only question. No error if it was answered already: here, on another device, or in another tool, whose
   * run the job then follows.
   */
  async answer(value: AnswerOf<Types, Name>, options: Answering<Types, Name> = {}): Promise<Job<Types, Name>> {
    const { interrupts } = await this.#paused(options)
    // The id ensures that the answer cannot reach a newer question.
    const id = interrupts?.length === 1 ? interrupts[0]?.id : undefined
    const given = value ?? null
    return this.#resume(id === undefined ? { input: given } : { answers: { [id]: given } }, options)
  }

  /** Answers several questions, by the ids in `interrupts`. */
  answers(
    values: Record<string, AnswerOf<Types, Name>>,
    options: Answering<Types, Name> = {},
  ): Promise<Job<Types, Name>> {
    return this.#resume({ answers: values }, options)
  }

  /** Continues a job that asks nothing: after a breakpoint, or when its question was closed elsewhere without a run. */
  resume(options: Answering<Types, Name> = {}): Promise<Job<Types, Name>> {
    return this.#resume({ input: null }, options)
  }

  /** Starts the next turn of the conversation: a new job on the same thread. */
  async continue(
    input: InputOf<Types, Name>,
    options: ContinueOptions<ConfigurableOf<Types, Name>> = {},
  ): Promise<JobHandle<Types, Name>> {
    const { type } = this.#data ?? (await this.get(options))
    const work = { type, input, continues: this.id, on_busy: options.onBusy }
    const next = await startJob(this.#context, work, options)
    return new JobHandle<Types, Name>(this.#context, next.id, next)
  }

  /** Replaces the input of a job that waits for its `run_at` or the turn before it; `conflict` once it has started. */
  async replaceInput(input: InputOf<Types, Name>, { signal }: CallOptions = {}): Promise<Job<Types, Name>> {
    return this.#keep(await requestJob(this.#context, 'PATCH', pathOf(this.id), { body: { input }, signal }))
  }

  /** Repeats a job that has ended: a new job with the same input, whose `retry_of` is this one. */
  async retry({ again, idempotencyKey, signal }: RetryOptions = {}): Promise<JobHandle<Types, Name>> {
    const options = { body: { again }, headers: idempotency(idempotencyKey), signal }
    const next = await requestJob(this.#context, 'POST', `${pathOf(this.id)}/retry`, options)
    return new JobHandle<Types, Name>(this.#context, next.id, next)
  }

  /** Cancels the job. No error if it is cancelled already; `conflict` if it ended otherwise. */
  cancel({ signal }: CallOptions = {}): Promise<Job<Types, Name>> {
    return this.#change('cancel', { signal, isDone: ({ status }) => status === 'cancelled' })
  }

  /** Deletes the job and all its data. The job must have ended. */
  delete(options: CallOptions = {}): Promise<void> {
    return remove(this.#context.connection, pathOf(this.id), options)
  }

  /** Everything that happened to the job, oldest first. */
  timeline(options: ListOptions = {}) {
    return listOf<TimelineEntry>(this.#context.connection, `${pathOf(this.id)}/timeline`, options)
  }

  /** Reads the job again if it was last read before it paused: that state has no questions. */
  async #paused(options: CallOptions): Promise<Job<Types, Name>> {
    return this.#data?.status === 'awaiting_input' ? this.#data : this.get(options)
  }

  /**
   * Done if the job has a newer run: another device, or an attempt whose response was lost, has answered. A job that ended
   * without one has no answer.
   */
  async #resume(answer: object, { configurable, signal }: Answering<Types, Name>): Promise<Job<Types, Name>> {
    const body = { ...answer, configurable }
    const paused = await this.#paused({ signal })
    if (paused.status !== 'awaiting_input' && paused.error?.code !== 'answer_expired') return paused
    const isDone = ({ run_id }: Pick<Job, 'run_id'>) => run_id !== paused.run_id
    try {
      return await this.#change('resume', { body, signal, isDone })
    } catch (error) {
      if ((error as { code?: unknown }).code !== 'conflict') throw error
      const job = await this.#whenClosed(paused, signal)
      if (!job || !isDone(job)) throw error
      return this.#keep(job)
    }
  }

  /** The service sees a closed question twice before it follows the run that closed it. Undefined if that takes too long. */
  async #whenClosed(paused: Job<Types, Name>, signal: AbortSignal | undefined): Promise<Job | undefined> {
    const asked = JSON.stringify(paused.interrupts)
    const until = ({ status, run_id, interrupts }: Job) =>
      status !== 'awaiting_input' || run_id !== paused.run_id || JSON.stringify(interrupts) !== asked
    const abort = new LinkedAbort(signal)
    const limit = { clock: this.#context.connection.clock, ms: CLOSED_WITHIN_MS, message: '' }
    const options = { until, isKnown: true, onRead: (read: Job) => this.#keep(read), signal: abort.signal }
    try {
      return await abort.within(limit, () => waitForJob(this.#context, this.id, options))
    } catch (error) {
      if (signal?.aborted || (error as { code?: unknown }).code !== 'request_timeout') throw error
      return undefined
    } finally {
      abort.unlink()
    }
  }

  /** After a failure, reads the job before it repeats the change: the change may be made already. */
  async #change(
    action: string,
    { isDone, ...options }: CallOptions & { body?: object; isDone: (job: Job<Types, Name>) => boolean },
  ): Promise<Job<Types, Name>> {
    const recover = async () => {
      const job = await this.get(options)
      return isDone(job) ? { body: job as unknown as Job } : undefined
    }
    return this.#keep(await requestJob(this.#context, 'POST', `${pathOf(this.id)}/${action}`, { ...options, recover }))
  }

  #keep(job: Job): Job<Types, Name> {
    this.#data = job as unknown as Job<Types, Name>
    return this.#data
  }
}
