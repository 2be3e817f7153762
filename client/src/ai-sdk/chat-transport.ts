import type { ChatTransport, UIMessage, UIMessageChunk } from 'ai'
import type { ApiClient } from '../client.ts'
import { ApiError } from '../errors.ts'
import { LinkedAbort } from '../http/abort.ts'
import type { JobHandle } from '../jobs/job-handle.ts'
import {
  type AnswerOf,
  type ConfigurableOf,
  hasEnded,
  type InputOf,
  type Interrupt,
  type OutputOf,
  type Turn,
  type TypeName,
} from '../types.ts'
import {
  type ChatMessage,
  type ChatMetadata,
  defaultFromInput,
  defaultText,
  messageIdOf,
  messagesOfTurn,
  metadataOf,
  questionParts,
  textOfMessage,
} from './chat-messages.ts'
import { ChunkWriter } from './chunks.ts'
import { addTurn, type MessagesUpdate, stateOfTurn, watchConversation } from './watch-conversation.ts'

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
  /** The text of an input, for a chat that is loaded. Default: that of its last message, else JSON. */
  fromInput?: (input: InputOf<Types, Name>) => string
  /**
   * What a message does while a turn of the conversation is unfinished, perhaps in another tab. `enqueue`: it waits.
   * `interrupt`: that turn is cancelled. `reject`: the chat gets an error. Default: `enqueue`. A turn that was stopped in
   * this tab is cancelled in each case.
   */
  onBusy?: 'enqueue' | 'interrupt' | 'reject'
  /** Called when the first message of a chat has begun a conversation: put its `threadId` into the address of the page. */
  onConversation?: (chat: { chatId: string; threadId: string }) => void
  /** True: closing the stream cancels the job. `useChat` also closes it when its component unmounts. Default: false. */
  cancelOnStop?: boolean
}

export interface LoadOptions {
  /** How many turns to load, the newest. Default: 100. */
  turns?: number
  signal?: AbortSignal | undefined
}

type SendOptions = Parameters<ChatTransport<UIMessage>['sendMessages']>[0]

/** One run of a job, to be shown. */
interface Shown<Types, Name extends TypeName<Types>> {
  job: JobHandle<Types, Name>
  run: number
}

type TurnState = Pick<Turn, 'id' | 'status' | 'run'>

interface KnownConversation {
  thread_id: string
  /** The newest first. */
  data: TurnState[]
}

const TURNS = 100
const PAGE = 20
/** The turns that matter for the next one: five may wait behind the one that runs. */
const NEWEST = 10

/**
 * A `ChatTransport` for `useChat` of the AI SDK: each turn is a job, shown word by word. Questions of the graph arrive as
 * `data-question` parts, and the user's next message answers them. The service knows the conversation: a chat with its
 * `threadId` as id can be loaded, joined and continued on every device.
 */
export class JobChatTransport<Types, Name extends TypeName<Types>> implements ChatTransport<UIMessage> {
  /** A resumed answer is shown from its beginning. */
  readonly resumeStreamIsReplay = true
  readonly #options: ChatTransportOptions<Types, Name>
  /** The conversation of each chat. */
  readonly #threads = new Map<string, string>()
  /** The newest run of each chat that was not shown to its end. */
  readonly #unshown = new Map<string, Shown<Types, Name>>()
  readonly #starting = new Map<string, Promise<Shown<Types, Name>>>()
  /** What was shown of each turn, by the id of its job. */
  readonly #seen = new Map<string, string>()
  /** The runs that are being shown, each with its chat. */
  readonly #showing = new Map<Shown<Types, Name>, string>()
  /** Called when a chat has shown a run. */
  readonly #onIdle = new Set<() => void>()
  /** Chats that the user stopped. The next message is a new turn, even if the last one shown is a question. */
  readonly #stopped = new Set<string>()

  constructor(options: ChatTransportOptions<Types, Name>) {
    this.#options = options
  }

  readonly sendMessages: ChatTransport<UIMessage>['sendMessages'] = async (options) => {
    const { chatId, abortSignal: signal } = options
    const starting = this.#nextTurn(options)
    this.#starting.set(chatId, starting)
    const shown = await starting.finally(() => {
      this.#starting.delete(chatId)
      this.#reportIdle()
    })
    if (this.#options.cancelOnStop) {
      const cancel = () => void shown.job.cancel().catch(() => {})
      // A chat that was stopped while its job started gets no event any more.
      if (signal?.aborted) cancel()
      else signal?.addEventListener('abort', cancel, { once: true })
    }
    return toStream((own) => this.#show(chatId, shown, own), signal)
  }

  /** Joins the turn that runs, wherever it was started. Null if none runs. */
  readonly reconnectToStream: ChatTransport<UIMessage>['reconnectToStream'] = async ({
    chatId,
    abortSignal: signal,
  }) => {
    const { data = [] } = (await this.#read(this.#threadOf(chatId), { signal })) ?? {}
    const current = unfinishedIn(data)
    const isRunning = current !== undefined && current.status !== 'awaiting_input'
    const shown = isRunning ? this.#runOf(current) : this.#unshown.get(chatId)
    if (!shown) return null
    this.#stopped.delete(chatId)
    this.#unshown.set(chatId, shown)
    return toStream((own) => this.#show(chatId, shown, own), signal)
  }

  /** Cancels the turn of the chat, for a Stop button. Does nothing if it has ended. */
  readonly cancel = async (chatId: string): Promise<void> => {
    this.#stopped.add(chatId)
    await this.#starting.get(chatId)?.catch(() => {})
    const { data = [] } = this.#unshown.has(chatId) ? {} : ((await this.#read(this.#threadOf(chatId))) ?? {})
    const current = unfinishedIn(data)
    const shown = this.#unshown.get(chatId) ?? (current && this.#runOf(current))
    if (shown) await cancelJob(shown.job)
  }

  /**
   * The messages of a conversation as the service has them, for `messages` of `useChat`. A turn that runs has only the
   * message of the user: `resume: true` shows the rest. Empty if there is no such conversation.
   */
  readonly load = async (
    threadId: string,
    { turns: limit = TURNS, signal }: LoadOptions = {},
  ): Promise<ChatMessage[]> => {
    const { api } = this.#options
    const turns: Turn[] = []
    const list = api.conversations.turns(threadId, { limit: Math.min(limit, PAGE), signal })
    try {
      for await (const turn of list) {
        turns.unshift(turn as unknown as Turn)
        if (turns.length >= limit) break
      }
    } catch (error) {
      if (!isGone(error)) throw error
    }
    return turns.flatMap((turn) => this.#messagesOf(turn))
  }

  /**
   * Notices turns that begin, end or are answered elsewhere, through the client's stream of events: in another tab, on
   * another device, or by the service. Pass the update to `setMessages` of `useChat`, then call `resumeStream()`, which joins
   * a turn that runs. While the chat shows a turn itself, nothing is reported. Returns a function that ends the watch.
   */
  readonly watch = (chatId: string, onChange: (update: MessagesUpdate) => void): (() => void) => {
    const threadId = () => this.#threadOf(chatId)
    let isWatching = true
    const isBusy = () => this.#starting.has(chatId) || [...this.#showing.values()].includes(chatId) || !isWatching
    /** Not a turn that the user has stopped here, before it has ended. */
    const isNew = (turn: TurnState) => {
      const stopped = this.#stopped.has(chatId) ? this.#unshown.get(chatId)?.job.id : undefined
      return this.#seen.get(turn.id) !== stateOfTurn(turn) && (turn.id !== stopped || hasEnded(turn.status))
    }
    const check = async () => {
      // Most events are about turns of this chat: only new ones are read with their input and output.
      if (!(await this.#read(threadId()))?.data.some(isNew)) return true
      const { data = [] } = (await this.#read(threadId(), { isWhole: true })) ?? {}
      if (isBusy()) return false
      const added = (data as Turn[]).filter(isNew).map((turn) => this.#messagesOf(turn))
      if (added.length > 0) onChange((messages) => added.reduceRight<ChatMessage[]>(addTurn, messages))
      return true
    }
    const { onIdle, stop } = watchConversation({ events: this.#options.api.context.events, threadId, isBusy, check })
    this.#onIdle.add(onIdle)
    return () => {
      isWatching = false
      this.#onIdle.delete(onIdle)
      stop()
    }
  }

  /** The messages of a stored turn, which the chat shows from now on. */
  #messagesOf(turn: Turn): ChatMessage[] {
    const { toText = defaultText, fromInput = defaultFromInput } = this.#options
    this.#seen.set(turn.id, stateOfTurn(turn))
    return messagesOfTurn(turn, { toText, fromInput } as Parameters<typeof messagesOfTurn>[1])
  }

  /** Later, when the chat has handled the end of its stream. */
  #reportIdle(): void {
    for (const onIdle of this.#onIdle) setTimeout(onIdle)
  }

  /** Answers the open questions of the chat, continues its conversation, or begins one. */
  async #nextTurn({ chatId, messages, trigger, abortSignal: signal }: SendOptions): Promise<Shown<Types, Name>> {
    const { api, type, toInput = defaultInput, onBusy = 'enqueue' } = this.#options
    const message = messages.findLast(({ role }) => role === 'user')
    if (!message) throw new Error('There is no message to send')
    const isStopped = this.#stopped.delete(chatId)
    const options = this.#optionsOf(message)
    // The signal no longer applies once a job begins: a chat that is stopped now must still know it.
    const keep = (shown: Shown<Types, Name>, threadId: string | undefined) => {
      this.#unshown.set(chatId, shown)
      if (threadId !== undefined && this.#threads.get(chatId) !== threadId) {
        this.#threads.set(chatId, threadId)
        this.#options.onConversation?.({ chatId, threadId })
      }
      return shown
    }
    const input = () => toInput(message) as InputOf<Types, Name>
    const found = await this.#read(this.#threadToContinue(chatId, messages, trigger), { signal })
    const [newest] = found?.data ?? []
    if (!found || !newest) {
      const job = await api.jobs.start(type, input(), options)
      return keep({ job, run: 1 }, job.data?.thread_id)
    }
    const current = unfinishedIn(found.data)
    const isPaused = current?.status === 'awaiting_input'
    if (trigger === 'submit-message') {
      const answered = lateAnswerIn(found.data, { messages, message, isStopped })
      if (answered) return keep(this.#runOf(answered), found.thread_id)
      if (current && isPaused) {
        const shown = this.#runOf(current)
        if (!hasSeen(current, messages)) return keep(shown, found.thread_id)
        await this.#answer(shown.job, message, signal)
        return keep({ job: shown.job, run: current.run + 1 }, found.thread_id)
      }
    }
    const stopped = isStopped ? this.#unshown.get(chatId) : undefined
    if (stopped) await cancelJob(stopped.job)
    // A question that is not answered would hold the turn up, and a turn that was stopped takes a moment to end.
    const onBusyNow = isPaused ? 'interrupt' : stopped && onBusy === 'reject' ? 'enqueue' : onBusy
    const job = await this.#runOf(newest).job.continue(input(), { ...options, onBusy: onBusyNow })
    return keep({ job, run: 1 }, job.data?.thread_id)
  }

  /** The id of a chat may be that of its conversation. Otherwise its first message begins one. */
  #threadOf(chatId: string): string | undefined {
    return this.#threads.get(chatId) ?? (UUID.test(chatId) ? chatId : undefined)
  }

  /** A chat whose messages were cleared begins a new conversation, unless its id is that of a conversation. */
  #threadToContinue(chatId: string, messages: readonly UIMessage[], trigger: SendOptions['trigger']) {
    const goesOn = messages.length > 1 || trigger === 'regenerate-message' || UUID.test(chatId)
    const noted = messages.flatMap((one) => metadataOf(one).threadId ?? []).at(-1)
    return goesOn ? (noted ?? this.#threadOf(chatId)) : undefined
  }

  /** The newest turns of a conversation, without input and output unless they are wanted. Undefined if there is none. */
  async #read(
    threadId: string | undefined,
    { signal, isWhole = false }: { signal?: AbortSignal | undefined; isWhole?: boolean } = {},
  ): Promise<KnownConversation | undefined> {
    if (threadId === undefined) return undefined
    try {
      const query = { ...(!isWhole && { fields: 'summary' }), limit: NEWEST, signal }
      return (await this.#options.api.conversations.get(threadId, query)) as unknown as KnownConversation
    } catch (error) {
      if (!isGone(error)) throw error
      return undefined
    }
  }

  #runOf({ id, run }: TurnState): Shown<Types, Name> {
    return { job: this.#options.api.jobs.handle<Name>(id), run }
  }

  async #answer(job: JobHandle<Types, Name>, message: UIMessage, signal: AbortSignal | undefined): Promise<void> {
    const { toAnswer = defaultAnswer } = this.#options
    const questions: readonly Interrupt[] = (await job.get({ signal })).interrupts ?? []
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

  async *#show(chatId: string, shown: Shown<Types, Name>, signal: AbortSignal): AsyncGenerator<UIMessageChunk> {
    this.#showing.set(shown, chatId)
    try {
      yield* this.#chunksOf(chatId, shown, signal)
    } finally {
      this.#showing.delete(shown)
      this.#reportIdle()
    }
  }

  async *#chunksOf(chatId: string, shown: Shown<Types, Name>, signal: AbortSignal): AsyncGenerator<UIMessageChunk> {
    const { job } = shown
    const stop = () => this.#stopped.add(chatId)
    if (signal.aborted) stop()
    else signal.addEventListener('abort', stop, { once: true })
    const writer = new ChunkWriter()
    const metadata: ChatMetadata = { jobId: job.id }
    const threadId = this.#threadOf(chatId)
    if (threadId !== undefined) metadata.threadId = threadId
    let isStarted = false
    // The output of the run begins where that of the run before it ended.
    for await (const part of job.live({ after: shown.run > 1 ? `${shown.run - 1}-end` : null, signal })) {
      if (!isStarted) {
        isStarted = true
        // A cursor begins with the number of its run. A question may have been answered elsewhere meanwhile.
        metadata.run = Number.parseInt(part.cursor, 10)
        yield { type: 'start', messageId: messageIdOf(job.id, metadata.run), messageMetadata: { ...metadata } }
        yield { type: 'start-step' }
      }
      yield* writer.write(part)
      if (part.type !== 'end') continue
      const found = await job.get({ signal })
      if (this.#unshown.get(chatId)?.job.id === job.id) this.#unshown.delete(chatId)
      metadata.status = part.status
      this.#seen.set(job.id, stateOfTurn({ run: metadata.run ?? 1, status: part.status }))
      yield* this.#conclude(found, writer, metadata)
      yield { type: 'finish-step' }
      yield { type: 'finish', messageMetadata: { ...metadata } }
    }
  }

  /** Writes the end of the turn as the job shows it: its output, its questions or its error. */
  *#conclude(
    job: NonNullable<JobHandle<Types, Name>['data']>,
    writer: ChunkWriter,
    metadata: ChatMetadata,
  ): Generator<UIMessageChunk> {
    const { toText = defaultText } = this.#options
    if (job.status === 'completed') yield* writer.complete(toText(job.output as OutputOf<Types, Name>))
    yield* writer.end()
    switch (job.status) {
      case 'awaiting_input':
        return yield* questionParts(job.id, job.interrupts)
      case 'failed':
        // Before the error: `useChat` reads nothing after it.
        yield { type: 'message-metadata', messageMetadata: { ...metadata, error: job.error } }
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

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

/** The turn that runs or pauses: those after it wait. The newest turn is the first. */
function unfinishedIn(turns: readonly TurnState[]): TurnState | undefined {
  return turns.findLast(({ status }) => !hasEnded(status))
}

function defaultInput(message: UIMessage): unknown {
  return { messages: [{ role: 'user', content: textOfMessage(message) }] }
}

interface Sent {
  messages: readonly UIMessage[]
  message: UIMessage
  isStopped: boolean
}

/**
 * The turn whose question the message answers, if it was answered before: by a double click, in another tab or on another
 * device. The message must neither cancel its job nor answer a newer question, which the user has not seen.
 */
function lateAnswerIn(turns: readonly TurnState[], { messages, message, isStopped }: Sent): TurnState | undefined {
  const shown = metadataOf(lastAnswer(messages))
  const asked = shown.status === 'awaiting_input' ? turns.find(({ id }) => id === shown.jobId) : undefined
  if (asked) {
    const isLate = asked.run !== shown.run && asked.status !== 'cancelled'
    return isLate && (asked.status === 'awaiting_input' || !isStopped) ? asked : undefined
  }
  const { answer, answers } = metadataOf(message)
  const current = unfinishedIn(turns)
  const isAnswer = answer !== undefined || answers !== undefined
  return isAnswer && !isStopped && current?.status !== 'awaiting_input' ? current : undefined
}

/** Whether the chat shows the question of this turn. An app may have stored its messages without their metadata. */
function hasSeen({ id, run }: TurnState, messages: readonly UIMessage[]): boolean {
  const answer = lastAnswer(messages)
  const { jobId, run: shownRun } = metadataOf(answer)
  return answer !== undefined && (jobId === undefined || (jobId === id && shownRun === run))
}

function lastAnswer(messages: readonly UIMessage[]): UIMessage | undefined {
  return messages.findLast(({ role }) => role === 'assistant')
}

function defaultAnswer(message: UIMessage, { id }: Interrupt): unknown {
  const { answer, answers } = metadataOf(message)
  const own = answers?.[id ?? '']
  // `null` is an answer too.
  if (own !== undefined) return own
  return answer === undefined ? textOfMessage(message) : answer
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
