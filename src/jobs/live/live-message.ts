import { JsonText, writeJson } from '../../core/json/json-text.ts'
import { isJsonObject, type Json, type JsonObject } from '../../core/json.ts'

export const LIVE_ROLES = ['assistant', 'user', 'system', 'tool'] as const
export type LiveRole = (typeof LIVE_ROLES)[number]

interface LiveToolCall {
  /** Which call of the message. Parts with the same index belong to one call. */
  index: number
  id?: string
  name?: string
  /** JSON text: the next piece of it in a partial message, else all of it. */
  args: string
}

/** A message of a run, or the next piece of one. */
interface LiveMessage {
  /** Pieces with the same id belong to one message. */
  id: string | null
  role: LiveRole
  /** The node of the graph that wrote it. */
  node: string | null
  /** The tasks of the outer graphs that the node is part of, outermost first. Absent: it is a node of the graph itself. */
  namespace?: readonly string[]
  /** True: append to the earlier pieces with this id. False: this is the whole message, which replaces them. */
  partial: boolean
  text?: string
  reasoning?: string
  tool_calls?: LiveToolCall[]
  /** Of a tool's message: the call that it answers. */
  tool_call_id?: string
}

const ROLES: Readonly<Record<string, LiveRole>> = {
  ai: 'assistant',
  assistant: 'assistant',
  human: 'user',
  user: 'user',
  system: 'system',
  developer: 'system',
  tool: 'tool',
  function: 'tool',
}

/**
 * Reads the pair of a message and its metadata, as the runtime streams it. Null if it contains nothing for viewers.
 * `namespace`: that of the event, for a message whose metadata has none. The JS server puts the task of the node itself there.
 */
export function readLiveMessage(pair: Json | undefined, namespace: readonly string[] = []): LiveMessage | null {
  if (!Array.isArray(pair)) return null
  const [written, metadata] = pair
  const message = isJsonObject(written) ? unwrap(written) : {}
  const type = textOf(message.type)
  const kind = type.replace(/Message(?:Chunk)?$/, '').toLowerCase()
  const role = Object.hasOwn(ROLES, kind) ? ROLES[kind] : undefined
  if (role === undefined) return null
  const { text, reasoning } = readContent(message)
  const toolCalls = readToolCalls(message)
  // Skip a piece that contains only counters, as the last one often does. But a tool may answer with an empty text.
  if (text === '' && reasoning === '' && toolCalls.length === 0 && role !== 'tool') return null
  const node = isJsonObject(metadata) ? textOf(metadata.langgraph_node) : ''
  const outer = namespaceIn(metadata) ?? namespace
  const toolCallId = textOf(message.tool_call_id)
  return {
    id: textOf(message.id) || null,
    role,
    node: node || null,
    ...(outer.length === 0 ? {} : { namespace: outer }),
    // The JS server names the type of a piece like that of a message, but only a piece has this field.
    partial: type.endsWith('Chunk') || Array.isArray(message.tool_call_chunks),
    ...(text === '' && role !== 'tool' ? {} : { text }),
    ...(reasoning === '' ? {} : { reasoning }),
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    ...(toolCallId === '' ? {} : { tool_call_id: toolCallId }),
  }
}

/** The runtime names the place of a task `researcher:1f0c…|answer:1f0d…`, with the task itself at the end. */
function namespaceIn(metadata: Json | undefined): string[] | null {
  const place = isJsonObject(metadata) ? textOf(metadata.langgraph_checkpoint_ns) : ''
  return place === '' ? null : place.split('|').slice(0, -1)
}

/** Some servers write a message as its class and the arguments of its constructor. */
function unwrap(message: JsonObject): JsonObject {
  if (message.type !== 'constructor' || !isJsonObject(message.kwargs)) return message
  const name = Array.isArray(message.id) ? textOf(message.id.at(-1)) : ''
  return { type: name, ...message.kwargs }
}

/** Text and reasoning of a content that is a text or a list of blocks, in the spellings of the model providers. */
function readContent({ content, additional_kwargs }: JsonObject): { text: string; reasoning: string } {
  const extra = isJsonObject(additional_kwargs) ? additional_kwargs : {}
  let text = ''
  let reasoning = textOf(extra.reasoning_content) + summaryOf(extra.reasoning)
  const blocks = Array.isArray(content) ? content : [content]
  for (const block of blocks) {
    if (typeof block === 'string') text += block
    if (!isJsonObject(block)) continue
    const kind = textOf(block.type)
    if (/^(?:thinking|reasoning)/.test(kind)) reasoning += reasoningOf(block)
    else if (/^(?:text|output_text)/.test(kind)) text += textOf(block.text)
  }
  return { text, reasoning }
}

function reasoningOf(block: JsonObject): string {
  const { reasoning_content } = block
  const inner = isJsonObject(reasoning_content) ? textOf(reasoning_content.text) : textOf(reasoning_content)
  return textOf(block.thinking) || textOf(block.reasoning) || inner || textOf(block.text) || summaryOf(block)
}

function summaryOf(value: Json | undefined): string {
  const summary = isJsonObject(value) && Array.isArray(value.summary) ? value.summary : []
  return summary.map((part) => (isJsonObject(part) ? textOf(part.text) : '')).join('')
}

function readToolCalls({ tool_call_chunks, tool_calls }: JsonObject): LiveToolCall[] {
  const pieces = Array.isArray(tool_call_chunks) ? tool_call_chunks.filter(isJsonObject) : []
  const whole = Array.isArray(tool_calls) ? tool_calls.filter(isJsonObject) : []
  const calls = pieces.length > 0 ? pieces : whole
  return calls.map(({ index, id, name, args }, place) => ({
    index: indexOf(index) ?? place,
    ...(typeof id === 'string' && id !== '' ? { id } : {}),
    ...(typeof name === 'string' && name !== '' ? { name } : {}),
    args: typeof args === 'string' ? args : args === undefined || args === null ? '' : writeJson(args),
  }))
}

function indexOf(index: unknown): number | undefined {
  const value = index instanceof JsonText ? Number(index.text) : index
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 ? value : undefined
}

function textOf(value: Json | undefined): string {
  return typeof value === 'string' ? value : ''
}
