import { hasMoreValues } from '../../core/json/json-scan.ts'
import { keepNumberText, writeJson } from '../../core/json/json-text.ts'
import { isJsonObject, type Json } from '../../core/json.ts'
import type { RunStreamEvent } from '../../runtime/run-stream.ts'
import type { LiveMode } from '../job-types.ts'
import { readLiveMessage } from './live-message.ts'

interface LiveEvent {
  event: 'message' | 'progress' | 'step' | 'reset'
  /** One line of JSON. */
  data: string
}

/** More values would block the event loop for too long: keeping the digits of numbers takes about 1 µs per value. */
const MAX_MESSAGE_VALUES = 20_000
const RESET: LiveEvent = { event: 'reset', data: '{}' }

/**
 * Translates one event of the runtime into live events for viewers: mostly one, sometimes none. Output that cannot be read
 * becomes a reset, so that viewers know that something is missing.
 */
export function toLiveEvents(upstream: RunStreamEvent, modes: readonly LiveMode[]): LiveEvent[] {
  try {
    return readEvent(upstream, modes)
  } catch {
    return [RESET]
  }
}

function readEvent(upstream: RunStreamEvent, modes: readonly LiveMode[]): LiveEvent[] {
  // Events of a subgraph are named `messages|researcher:1f0c…`: after the kind comes the namespace.
  const [kind, ...namespace] = upstream.event.split('|')
  switch (kind) {
    case 'messages':
      return modes.includes('messages') ? toMessage(upstream, namespace) : []
    case 'custom':
      return modes.includes('custom') ? toProgress(upstream) : []
    case 'updates':
      return nodesIn(upstream).map((node) => ({
        event: 'step',
        data: JSON.stringify({ node, ...(namespace.length > 0 && { namespace }) }),
      }))
    case 'metadata':
      return isRepeated(upstream) ? [RESET] : []
    default:
      return []
  }
}

function toMessage(upstream: RunStreamEvent, namespace: readonly string[]): LiveEvent[] {
  if (upstream.isCut || hasMoreValues(upstream.data, MAX_MESSAGE_VALUES)) return [RESET]
  // The arguments of a tool call may hold a number that JavaScript cannot. Most pieces are only text, and parsed faster.
  const hasCalls = /"tool_calls":\s*\[\s*\{/.test(upstream.data)
  const message = readLiveMessage(JSON.parse(upstream.data, hasCalls ? keepNumberText : undefined) as Json, namespace)
  return message === null ? [] : [{ event: 'message', data: writeJson(message) }]
}

/** The payload keeps its exact text. Line ends in JSON are only white space. */
function toProgress(upstream: RunStreamEvent): LiveEvent[] {
  if (upstream.isCut) return [RESET]
  JSON.parse(upstream.data)
  return [{ event: 'progress', data: upstream.data.replaceAll('\n', ' ') }]
}

const FIRST_KEY = /^\s*\{\s*("(?:[^"\\]|\\.){1,255}")\s*:/

/** Names such as `__interrupt__` are not nodes. An update that was cut still begins with the name of its node. */
function nodesIn({ data, isCut }: RunStreamEvent): string[] {
  const first = isCut ? FIRST_KEY.exec(data)?.[1] : undefined
  const update: unknown = isCut ? undefined : JSON.parse(data)
  const names = isJsonObject(update) ? Object.keys(update) : first ? [String(JSON.parse(first))] : []
  return names.filter((name) => !name.startsWith('__'))
}

/** The runtime runs the graph again after a crash: the output of the previous attempt is no longer valid. */
function isRepeated({ data }: RunStreamEvent): boolean {
  const metadata: unknown = JSON.parse(data)
  return isJsonObject(metadata) && typeof metadata.attempt === 'number' && metadata.attempt > 1
}
