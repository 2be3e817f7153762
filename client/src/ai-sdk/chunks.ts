import type { UIMessageChunk } from 'ai'
import { parseJson } from '../errors.ts'
import type { LivePart } from '../jobs/live.ts'
import {
  addLivePart,
  EMPTY_TRANSCRIPT,
  type LiveTranscript,
  type ToolCall,
  type TranscriptMessage,
} from '../jobs/live-transcript.ts'

/** The parts of one message that were written as chunks. */
interface Written {
  text: string
  reasoning: string
  open: { kind: 'text' | 'reasoning'; id: string } | null
  calls: Map<string, { name: string; args: string; isDone: boolean }>
}

/**
 * Writes the live output of one run as chunks: only new output, or all of it after a reset. Nodes that run at the same time
 * write several messages at once, so each message has its own open parts.
 */
export class ChunkWriter {
  #transcript: LiveTranscript = EMPTY_TRANSCRIPT
  readonly #written = new Map<string, Written>()
  #parts = 0;

  *write(part: LivePart): Generator<UIMessageChunk> {
    const before = this.#transcript.messages
    this.#transcript = addLivePart(this.#transcript, part)
    const { messages } = this.#transcript
    if (part.type === 'reset') yield* this.#restart()
    if (part.type === 'progress') yield progressOf(part.value)
    if (part.type === 'step') {
      const place = placeOf(part)
      for (const message of messages) if (placeOf(message) === place) yield* this.#close(message.id)
    }
    const changed = messages.find((message, place) => message !== before[place])
    if (part.type !== 'message' || !changed) return
    yield* this.#show(changed, part.message.partial)
    if (!part.message.partial) yield* this.#close(changed.id)
  }

  /** The stored output is the truth: adds text that did not arrive live, and replaces text that differs. */
  *complete(text: string): Generator<UIMessageChunk> {
    const { messages } = this.#transcript
    const last = messages.findLast((message) => message.role === 'assistant' && message.text !== '')
    if (text === '' || text === last?.text) return
    const whole = { ...(last ?? NO_MESSAGE), text }
    const others = last ? messages.map((message) => (message === last ? whole : message)) : [...messages, whole]
    this.#transcript = { ...this.#transcript, messages: others }
    yield* this.#show(whole)
  }

  *end(): Generator<UIMessageChunk> {
    for (const id of this.#written.keys()) yield* this.#close(id)
  }

  /** A piece only adds to its message. Comparing all of the text at each piece would take quadratic time. */
  *#show(message: TranscriptMessage, isPiece = false): Generator<UIMessageChunk> {
    if (message.role === 'tool') return yield* this.#showToolOutput(message)
    if (message.role !== 'assistant') return
    const written = this.#written.get(message.id) ?? { text: '', reasoning: '', open: null, calls: new Map() }
    this.#written.set(message.id, written)
    for (const kind of ['reasoning', 'text'] as const) {
      const sent = written[kind]
      if (!isPiece && !message[kind].startsWith(sent)) return yield* this.#restart()
      if (message[kind].length === sent.length) continue
      if (written.open?.kind !== kind) {
        yield* closeText(written)
        written.open = { kind, id: String(++this.#parts) }
        yield { type: `${kind}-start`, id: written.open.id, ...originOf(message) }
      }
      written[kind] = message[kind]
      yield { type: `${kind}-delta`, id: written.open.id, delta: message[kind].slice(sent.length) }
    }
    for (const call of message.toolCalls) yield* showToolCall(written, call, isPiece)
  }

  /** Skips the output of a tool call that was never shown. */
  *#showToolOutput({ toolCallId, text }: TranscriptMessage): Generator<UIMessageChunk> {
    for (const [id, { calls }] of this.#written) {
      if (toolCallId === null || !calls.has(toolCallId)) continue
      yield* this.#close(id)
      yield { type: 'tool-output-available', toolCallId, output: parseJson(text) ?? text, dynamic: true }
    }
  }

  *#restart(): Generator<UIMessageChunk> {
    for (const written of this.#written.values()) yield* closeText(written)
    yield { type: 'reset-step' }
    this.#written.clear()
    const { progress, messages } = this.#transcript
    if (progress !== undefined) yield progressOf(progress)
    for (const message of messages) yield* this.#show(message)
  }

  *#close(id: string): Generator<UIMessageChunk> {
    const written = this.#written.get(id)
    if (!written) return
    yield* closeText(written)
    for (const [toolCallId, call] of written.calls) {
      if (call.isDone) continue
      call.isDone = true
      const input = parseJson(call.args || '{}') ?? call.args
      yield { type: 'tool-input-available', toolCallId, toolName: call.name, input, dynamic: true }
    }
  }
}

const NO_MESSAGE: TranscriptMessage = {
  id: 'output',
  role: 'assistant',
  node: null,
  namespace: [],
  text: '',
  reasoning: '',
  toolCalls: [],
  toolCallId: null,
}

const placeOf = ({ node, namespace = [] }: { node: string | null; namespace?: readonly string[] }) =>
  [...namespace, node].join('|')

/** For a chat with sub-agents: which node wrote the part. */
function originOf({ node, namespace }: TranscriptMessage) {
  return node === null ? {} : { providerMetadata: { project_api: { node, namespace: [...namespace] } } }
}

const progressOf = (data: unknown) => ({ type: 'data-progress', id: 'progress', data }) as const

function* showToolCall(written: Written, { id, name, args }: ToolCall, isPiece: boolean): Generator<UIMessageChunk> {
  const known = written.calls.get(id)
  if (known?.isDone) return
  if (!known) {
    yield* closeText(written)
    yield { type: 'tool-input-start', toolCallId: id, toolName: name, dynamic: true }
  }
  const sent = known?.args ?? ''
  if (args.length > sent.length && (isPiece || args.startsWith(sent))) {
    yield { type: 'tool-input-delta', toolCallId: id, inputTextDelta: args.slice(sent.length) }
  }
  written.calls.set(id, { name, args, isDone: false })
}

function* closeText(written: Written): Generator<UIMessageChunk> {
  const { open } = written
  written.open = null
  if (open) yield { type: `${open.kind}-end`, id: open.id }
}
