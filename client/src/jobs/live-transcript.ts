import type { JobStatus } from '../types.ts'
import type { LiveMessage, LivePart } from './live.ts'

export interface ToolCall {
  /** The number of the call in its message. */
  index: number
  id: string
  name: string
  /** JSON text, possibly incomplete. */
  args: string
}

export interface TranscriptMessage {
  id: string
  role: LiveMessage['role']
  node: string | null
  /** Of a sub-agent: the tasks of the outer graphs that the node is part of, outermost first. Else empty. */
  namespace: readonly string[]
  text: string
  reasoning: string
  toolCalls: ToolCall[]
  toolCallId: string | null
}

/** The output of a run so far. Each part makes a new object, so that a view can compare by identity. */
export interface LiveTranscript {
  messages: readonly TranscriptMessage[]
  /** The assistant's text so far. */
  text: string
  reasoning: string
  /** The last progress report of the graph. */
  progress: unknown
  /** The node that finished last. */
  step: string | null
  /** Set when the run has ended or pauses. */
  status: JobStatus | null
}

export const EMPTY_TRANSCRIPT: LiveTranscript = {
  messages: [],
  text: '',
  reasoning: '',
  progress: undefined,
  step: null,
  status: null,
}

/** Adds one part of the live output to the transcript. */
export function addLivePart(shown: LiveTranscript, part: LivePart): LiveTranscript {
  switch (part.type) {
    case 'reset':
      return EMPTY_TRANSCRIPT
    case 'progress':
      return { ...shown, progress: part.value }
    case 'step':
      return { ...shown, step: part.node }
    case 'end':
      return { ...shown, status: part.status }
    case 'message':
      return withMessages(shown, addMessage(shown.messages, part.message))
  }
}

function withMessages(shown: LiveTranscript, messages: TranscriptMessage[]): LiveTranscript {
  const spoken = messages.filter(({ role }) => role === 'assistant')
  const join = (field: 'text' | 'reasoning') =>
    spoken.flatMap((message) => (message[field] === '' ? [] : [message[field]])).join('\n\n')
  return { ...shown, messages, text: join('text'), reasoning: join('reasoning') }
}

/** Pieces without an id continue the last message of their role. */
function addMessage(messages: readonly TranscriptMessage[], piece: LiveMessage): TranscriptMessage[] {
  const last = messages.at(-1)
  const continues = piece.id === null && piece.partial && last?.role === piece.role
  const id = piece.id ?? (continues && last ? last.id : `message-${messages.length}`)
  const known = messages.find((message) => message.id === id)
  if (!known) return [...messages, append(emptyMessage(id, piece), piece)]
  const base = piece.partial ? known : emptyMessage(id, piece)
  return messages.map((message) => (message === known ? append(base, piece) : message))
}

function emptyMessage(id: string, { role, node, namespace = [], tool_call_id }: LiveMessage): TranscriptMessage {
  return { id, role, node, namespace, text: '', reasoning: '', toolCalls: [], toolCallId: tool_call_id ?? null }
}

function append(message: TranscriptMessage, piece: LiveMessage): TranscriptMessage {
  let { toolCalls } = message
  for (const { index, id, name, args } of piece.tool_calls ?? []) {
    const known = toolCalls.find((call) => call.index === index) ?? {
      index,
      id: `${message.id}-${index}`,
      name: '',
      args: '',
    }
    const call = { index, id: id ?? known.id, name: name ?? known.name, args: known.args + args }
    // Concurrent tool calls may begin in any order.
    toolCalls = [...toolCalls.filter((one) => one !== known), call].sort((a, b) => a.index - b.index)
  }
  return {
    ...message,
    text: message.text + (piece.text ?? ''),
    reasoning: message.reasoning + (piece.reasoning ?? ''),
    toolCalls,
  }
}
