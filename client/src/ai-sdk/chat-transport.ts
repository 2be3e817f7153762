import type { ChatTransport, UIMessage, UIMessageChunk } from 'ai'
import type { ApiClient } from '../client.ts'
import { ApiError } from '../errors.ts'
import { LinkedAbort } from '../http/abort.ts'
import type { JobHandle } from '../jobs/job-handle.ts'
import { waitForJob } from '../jobs/wait-for-job.ts'
import {
  type AnswerOf,
  type ConfigurableOf,
  hasEnded,
  type InputOf,
  type Interrupt,
  type Job,
  type OutputOf,
  type TypeName,
} from '../types.ts'
import { ChunkWriter } from './chunks.ts'
import { type ChatPlace, ChatPlaces, type PlaceStorage, readPlace } from './places.ts'

/** A conditional type: the compiler inserts the job type before it checks the function, so literals keep their types. */
type Returning<Result, Args extends unknown[]> = [Result] extends [infer Known] ? (...args: Args) => Known : never

export interface ChatTransportOptions<Types, Name extends TypeName<Types>> {
  api: ApiClient<Types>
  /** The type of the jobs. Each turn of the chat is one job. */
  type: Name
  /** The input of a turn. Default: `{messages: [{role: 'user', content: <the text>}]}`. */
  toInput?: Returning<InputOf<Types, Name>, [message: UIMessage]>
  /**
   * The answer to a question, called for each open question. Default: its value in `metadata.answers` of the message, by
   * the id of the question; else `metadata.answer`; else the text.
   */
  toAnswer?: Returning<AnswerOf<Types, Name>, [message: UIMessage, question: Interrupt]>
  /** Values for the graph, such as a model, of each turn and each answer. Default: none. */
  toConfigurable?: Returning<ConfigurableOf<Types, Name>, [message: UIMessage]>
  /** The text of an output, for text that did not arrive live. Default: a text, the text blocks of a list, else JSON. */
  toText?: (output: OutputOf<Types, Name>) => string
  /** Where each chat's job and cursor are kept across page loads. Default: `sessionStorage`, if there is one. */
  storage?: PlaceStorage
  /** True: closing the stream cancels the job. `useChat` also closes it when its component unmounts. Default: false. */
  cancelOnStop?: boolean
}

type SendOptions = Parameters<ChatTransport<UIMessage>['sendMessages']>[0]

interface Turn<Types, Name extends TypeName<Types>> {
  job: JobHandle<Types, Name>
  /** The turn's output begins after this cursor. An answered job continues with a new run. */
  after: string | null
}

/**
 * A `ChatTransport` for `useChat` of the AI SDK: each turn is a job, shown word by word. Questions of the graph arrive as
 * `data-question` parts, and the user's next message answers them. A reload in the middle of an answer resumes it.
 */
export class JobChatTransport<Types, Name extends TypeName<Types>> implements ChatTransport<UIMessage> {
  /** A resumed answer is shown from its beginning. */
  readonly resumeStreamIsReplay = true
  readonly #options: ChatTransportOptions<Types, Name>
  readonly #places: ChatPlaces
  readonly #starting = new Map<string, Promise<Turn<Types, Name>>>()
  /** Chats that the user stopped. The next message is a new turn, even if the last one shown is a question. */
  readonly #stopped = new Set<string>()

  constructor(options: ChatTransportOptions<Types, Name>) {
    this.#options = options
    this.#places = new ChatPlaces(options.storage)
  }

  readonly sendMessages: ChatTransport<UIMessage>['sendMessages'] = async (options) => {
    const { chatId, abortSignal: signal } = options
    const starting = this.#nextTurn(options)
    this.#starting.set(chatId, starting)
    const { job, after } = await starting.finally(() => this.#starting.delete(chatId))
    if (this.#options.cancelOnStop) {
      const cancel = () => void job.cancel().catch(() => {})
      // A chat that was stopped while its job started gets no event any more.
      if (signal?.aborted) cancel()
      else signal?.addEventListener('abort', cancel, { once: true })
    }
    return toStream((own) => this.#show(chatId, { job, after }, own), signal)
  }

  readonly reconnectToStream: ChatTransport<UIMessage>['reconnectToStream'] = async ({
    chatId,
    abortSignal: signal,
  }) => {
    const place = this.#places.get(chatId)
    if (!place || place.isDone) return null
    this.#stopped.delete(chatId)
    const job = this.#options.api.jobs.handle<Name>(place.jobId)
    try {
      await job.get({ signal })
    } catch (error) {
      if (isGone(error)) return null
      throw error
    }
    return toStream((own) => this.#show(chatId, { job, after: place.after }, own), signal)
  }

  /** Cancels the job of the chat, for a Stop button. Does nothing if the job has ended. */
  readonly cancel = async (chatId: string): Promise<void> => {
    this.#stopped.add(chatId)
    await this.#starting.get(chatId)?.catch(() => {})
    const place = this.#places.get(chatId)
    if (place) await cancelJob(this.#options.api.jobs.handle<Name>(place.jobId))
  }

  /** Answers the open questions of the chat, continues its conversation, or begins one. */
  async #nextTurn({ chatId, messages, trigger, abortSignal: signal }: SendOptions): Promise<Turn<Types, Name>> {
    const { api, type, toInput = defaultInput } = this.#options
    const message = messages.findLast(({ role }) => role === 'user')
    if (!message) throw new Error('There is no message to send')
    const input = () => toInput(message) as InputOf<Types, Name>
    const options = this.#optionsOf(message)
    const goesOn = messages.length > 1 || trigger === 'regenerate-message'
    const last = this.#lastPlace(chatId, messages)
    const job = last && (goesOn || !last.isDone) ? api.jobs.handle<Name>(last.jobId) : null
    const isStopped = this.#stopped.delete(chatId)
    // The signal no longer applies: a chat that is stopped now must still store its job.
    const keep = (turn: Turn<Types, Name>) => {
      this.#places.set(chatId, { jobId: turn.job.id, after: turn.after, isDone: false, pausedRun: null })
      return turn
    }
    try {
      if (job && last) {
        const found = await job.get({ signal })
        const { status } = found
        if (trigger === 'submit-message' && goesOn) {
          const isLate = isLateAnswer(found, { messages, message, last, isStopped })
          if (status === 'awaiting_input' && !isLate) await this.#answer(job, message)
          if (status === 'awaiting_input' || isLate) return keep({ job, after: last.after })
        }
        if (!hasEnded(status) && (goesOn || status !== 'awaiting_input')) await this.#end(job, signal)
        if (goesOn) return keep({ job: await job.continue(input(), options), after: null })
      }
    } catch (error) {
      if (!isGone(error)) throw error
    }
    return keep({ job: await api.jobs.start(type, input(), options), after: null })
  }

  /** If another device continued the chat, the messages are newer than the stored place. Then their metadata is used. */
  #lastPlace(chatId: string, messages: readonly UIMessage[]): ChatPlace | undefined {
    const own = this.#places.get(chatId)
    const seen = messages.flatMap(({ metadata }) => readPlace(metadata) ?? [])
    const last = seen.at(-1)
    const isOld = last && last.jobId !== own?.jobId && seen.some(({ jobId }) => jobId === own?.jobId)
    return own && !isOld ? own : last
  }

  async #answer(job: JobHandle<Types, Name>, message: UIMessage): Promise<void> {
    const { toAnswer = defaultAnswer } = this.#options
    const questions: readonly Interrupt[] = job.data?.interrupts ?? []
    const [first] = questions
    const answerTo = (question: Interrupt) => toAnswer(message, question) as AnswerOf<Types, Name>
    const options = this.#optionsOf(message)
    const byId = () => Object.fromEntries(questions.map((question) => [String(question.id), answerTo(question)]))
    if (!first) await job.resume(options)
    else if (questions.length === 1) await job.answer(answerTo(first), options)
    else await job.answers(byId(), options)
  }

  #optionsOf(message: UIMessage): { configurable?: ConfigurableOf<Types, Name> } {
    const { toConfigurable } = this.#options
    return toConfigurable ? { configurable: toConfigurable(message) as ConfigurableOf<Types, Name> } : {}
  }

  /** The thread accepts the next turn only after this one has ended. */
  async #end(job: JobHandle<Types, Name>, signal: AbortSignal | undefined): Promise<void> {
    await cancelJob(job)
    const until = ({ status }: Pick<Job, 'status'>) => hasEnded(status)
    await waitForJob(this.#options.api.context, job.id, { until, isKnown: true, signal })
  }

  async *#show(chatId: string, { job, after }: Turn<Types, Name>, signal: AbortSignal): AsyncGenerator<UIMessageChunk> {
    const stop = () => this.#stopped.add(chatId)
    if (signal.aborted) stop()
    else signal.addEventListener('abort', stop, { once: true })
    const writer = new ChunkWriter()
    let isStarted = false
    for await (const part of job.live({ after, signal })) {
      if (!isStarted) {
        isStarted = true
        yield { type: 'start', messageId: messageIdOf(job.id, part.cursor), messageMetadata: { jobId: job.id } }
        yield { type: 'start-step' }
      }
      yield* writer.write(part)
      if (part.type !== 'end') continue
      const found = await job.get({ signal })
      const pausedRun = found.status === 'awaiting_input' ? found.run_id : null
      // Before the last chunks: `useChat` reads nothing after an error.
      this.#places.set(chatId, { jobId: job.id, after: part.cursor, isDone: true, pausedRun })
      yield* this.#conclude(found, writer)
      yield { type: 'finish-step' }
      const messageMetadata = { jobId: job.id, after: part.cursor, ...(pausedRun !== null && { pausedRun }) }
      yield { type: 'finish', messageMetadata }
    }
  }

  /** Writes the end of the turn as the job shows it: its output, its questions or its error. */
  *#conclude(job: NonNullable<JobHandle<Types, Name>['data']>, writer: ChunkWriter): Generator<UIMessageChunk> {
    const { toText = defaultText } = this.#options
    if (job.status === 'completed') yield* writer.complete(toText(job.output as OutputOf<Types, Name>))
    yield* writer.end()
    switch (job.status) {
      case 'awaiting_input': {
        // A breakpoint has no question but waits for the user. Any message continues it.
        const questions: Interrupt[] = job.interrupts.length > 0 ? job.interrupts : [{ value: null }]
        for (const [place, { id, value }] of questions.entries()) {
          const data = { jobId: job.id, interruptId: id ?? null, value }
          yield { type: 'data-question', id: id ?? `question-${place}`, data }
        }
        return
      }
      case 'failed':
        return yield { type: 'error', errorText: job.error.message }
      case 'cancelled':
        return yield { type: 'abort', reason: 'cancelled' }
      default:
        // A status without a case does not compile.
        job.status satisfies 'completed' | 'processing' | 'generating'
    }
  }
}

export function createChatTransport<Types, Name extends TypeName<Types>>(options: ChatTransportOptions<Types, Name>) {
  return new JobChatTransport<Types, Name>(options)
}

/** The text that the user typed. */
export function textOfMessage({ parts }: Pick<UIMessage, 'parts'>): string {
  return parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n')
}

function defaultInput(message: UIMessage): unknown {
  return { messages: [{ role: 'user', content: textOfMessage(message) }] }
}

interface Sent {
  messages: readonly UIMessage[]
  message: UIMessage
  last: ChatPlace
  isStopped: boolean
}

/**
 * Whether the message answers a question that was answered before: by a double click, in another tab or on another device.
 * It must neither cancel the job nor answer a newer question, which the user has not seen.
 */
function isLateAnswer({ id, status, run_id }: Pick<Job, 'id' | 'status' | 'run_id'>, sent: Sent): boolean {
  const { messages, message, last, isStopped } = sent
  const isPaused = status === 'awaiting_input'
  const shown = readPlace(messages.findLast(({ role }) => role === 'assistant')?.metadata) ?? last
  if (shown.jobId === id && shown.pausedRun !== null) {
    return shown.pausedRun !== run_id && status !== 'cancelled' && (isPaused || !isStopped)
  }
  const { answer, answers } = answersIn(message)
  const hasAnswer = answer !== undefined || answers !== undefined
  return hasAnswer && !isStopped && !isPaused && !hasEnded(status)
}

function answersIn({ metadata }: UIMessage) {
  return (metadata ?? {}) as { answer?: unknown; answers?: Record<string, unknown> }
}

function defaultAnswer(message: UIMessage, { id }: Interrupt): unknown {
  const { answer, answers } = answersIn(message)
  const own = answers?.[id ?? '']
  // `null` is an answer too.
  if (own !== undefined) return own
  return answer === undefined ? textOfMessage(message) : answer
}

function defaultText(output: unknown): string {
  if (typeof output === 'string') return output
  if (!Array.isArray(output)) return JSON.stringify(output, null, 2)
  return output.map((block: { text?: unknown }) => (typeof block?.text === 'string' ? block.text : '')).join('')
}

/** The id of the answer's message: the job's id, and from the second run on the number of the run. */
function messageIdOf(jobId: string, cursor: string): string {
  const run = Number.parseInt(cursor, 10)
  return run > 1 ? `${jobId}.${run}` : jobId
}

function isGone(error: unknown): boolean {
  return error instanceof ApiError && error.code === 'not_found'
}

async function cancelJob(job: { cancel(): Promise<unknown> }): Promise<void> {
  try {
    await job.cancel()
  } catch (error) {
    // The job has ended meanwhile.
    if (!(error instanceof ApiError && error.code === 'conflict')) throw error
  }
}

/** Cancelling the stream ends its source, even while the source waits for the next part. */
function toStream(
  open: (signal: AbortSignal) => AsyncGenerator<UIMessageChunk>,
  parent: AbortSignal | undefined,
): ReadableStream<UIMessageChunk> {
  const abort = new LinkedAbort(parent)
  const chunks = open(abort.signal)
  return new ReadableStream<UIMessageChunk>({
    pull: async (controller) => {
      const { done, value } = await chunks.next()
      if (!done) return controller.enqueue(value)
      abort.unlink()
      controller.close()
    },
    cancel: async () => {
      abort.unlink()
      abort.abort()
      await chunks.return(undefined)
    },
  })
}
