import type { DataUIPart, UIMessage } from 'ai'
import type { Interrupt, JobFailure, JobStatus, Turn } from '../types.ts'

/** What the transport notes in `metadata` of a message. Store it with your messages. */
export type ChatMetadata = {
  /** The job of the turn. */
  jobId?: string
  /** The conversation: the id with which another device opens the chat. */
  threadId?: string
  /** The run of the job that wrote the message: 1, and one more after each answer. */
  run?: number
  /** How the run ended. `awaiting_input`: with a question. Absent while it runs. */
  status?: JobStatus
  /** Why it failed. */
  error?: JobFailure
  /** In a message of the user: the answer to the open questions, in place of the text. */
  answer?: unknown
  /** In a message of the user: the answers by the ids of the questions. */
  answers?: Record<string, unknown>
}

/** The data parts of a message: `data-question` and `data-progress`. */
export type ChatData = {
  /** A question of the graph. A breakpoint has no question: `value` is null, and any message continues the job. */
  question: { jobId: string; interruptId: string | null; value: unknown }
  /** The last progress report of the graph. */
  progress: unknown
}

/** A message of a chat on jobs, for `useChat<ChatMessage>`. */
export type ChatMessage = UIMessage<ChatMetadata, ChatData>

/** The text that the user typed. */
export function textOfMessage({ parts }: Pick<UIMessage, 'parts'>): string {
  return parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n')
}

export function metadataOf(message: Pick<UIMessage, 'metadata'> | undefined): ChatMetadata {
  return (message?.metadata ?? {}) as ChatMetadata
}

/** The id of the answer's message: the job's id, and from the second run on the number of the run. */
export function messageIdOf(jobId: string, run: number): string {
  return run > 1 ? `${jobId}.${run}` : jobId
}

/** A breakpoint has no question but waits for the user. */
export function questionParts(
  jobId: string,
  questions: readonly Interrupt[],
): DataUIPart<Pick<ChatData, 'question'>>[] {
  return (questions.length > 0 ? questions : [{ value: null } as Interrupt]).map(({ id, value }, place) => ({
    type: 'data-question',
    id: id ?? `question-${place}`,
    data: { jobId, interruptId: id ?? null, value },
  }))
}

/** The messages of a turn as the service stores it. A run that is not over has none: the transport shows it live. */
export function messagesOfTurn(
  turn: Turn,
  { toText, fromInput }: { toText: (output: unknown) => string; fromInput: (input: unknown) => string },
): ChatMessage[] {
  const { id: jobId, thread_id: threadId, input, status, run, pauses } = turn
  const messages: ChatMessage[] = []
  const add = (role: 'user' | 'assistant', id: string, message: Omit<ChatMessage, 'id' | 'role'>) =>
    messages.push({ id, role, ...message, metadata: { jobId, threadId, ...message.metadata } })
  const text = (value: string) => [{ type: 'text' as const, text: value }]
  // The run of a job without an input was started elsewhere.
  if (input !== null) add('user', `${jobId}.user`, { parts: text(fromInput(input)) })
  for (const pause of pauses) {
    const id = messageIdOf(jobId, pause.run)
    const parts = questionParts(jobId, pause.questions ?? [])
    add('assistant', id, { parts, metadata: { run: pause.run, status: 'awaiting_input' } })
    const { answers } = pause
    if (answers === null) continue
    const values = Object.values(answers).map((value) => (typeof value === 'string' ? value : JSON.stringify(value)))
    add('user', `${id}.answer`, { parts: text(values.join('\n')), metadata: { answers } })
  }
  const metadata = { run, status }
  const id = messageIdOf(jobId, run)
  if (status === 'completed') add('assistant', id, { parts: text(toText(turn.output)), metadata })
  if (status === 'awaiting_input') add('assistant', id, { parts: questionParts(jobId, turn.interrupts), metadata })
  if (status === 'failed') add('assistant', id, { parts: [], metadata: { ...metadata, error: turn.error } })
  if (status === 'cancelled') add('assistant', id, { parts: [], metadata })
  return messages
}

/** The text of the last message in the input; else the input as JSON. */
export function defaultFromInput(input: unknown): string {
  if (typeof input === 'string') return input
  const messages = (input as { messages?: unknown } | undefined)?.messages
  const last = Array.isArray(messages) ? (messages.at(-1) as { content?: unknown } | undefined) : undefined
  return defaultText(last?.content ?? input)
}

export function defaultText(output: unknown): string {
  if (typeof output === 'string') return output
  if (!Array.isArray(output)) return JSON.stringify(output, null, 2)
  return output.map((block: { text?: unknown }) => (typeof block?.text === 'string' ? block.text : '')).join('')
}
