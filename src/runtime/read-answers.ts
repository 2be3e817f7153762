import {
  isJsonObject,
  isJsonTooDeep,
  type Json,
  type JsonObject,
  MAX_JSON_DEPTH,
  parseForeignJson,
} from '../core/json.ts'
import { asStorableText, isStorableText } from '../core/text.ts'
import { type RuntimeRun, RuntimeUnavailable, type ThreadState, type Traces } from './runtime-types.ts'

const MAX_ERROR_LENGTH = 4_000
const MAX_ID_LENGTH = 255

/** The answer was read, but this service does not store what it contains. */
export class UnacceptableAnswer extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'UnacceptableAnswer'
  }
}

/** An answer that is not JSON may come from a proxy: it proves nothing about the run. */
export function readAnswer(text: string, { maxDepth = MAX_JSON_DEPTH } = {}): Json {
  if (isJsonTooDeep(text, maxDepth)) throw new UnacceptableAnswer(`The output is nested deeper than ${maxDepth} levels`)
  try {
    return parseForeignJson(text)
  } catch (error) {
    throw new RuntimeUnavailable('the runtime answered something that is not JSON', { cause: error })
  }
}

export function readRun(value: Json): RuntimeRun {
  if (!isJsonObject(value)) throw new RuntimeUnavailable('the runtime answered something that is not a run')
  const { run_id, thread_id, status } = value
  if (!isId(run_id) || !isId(thread_id) || !isId(status)) {
    throw new RuntimeUnavailable('the runtime answered a run without its ids or its status')
  }
  const metadata = isJsonObject(value.metadata) ? value.metadata : {}
  return { runId: run_id, threadId: thread_id, status, metadata, traces: readTraces(value, metadata) }
}

export function readState(value: Json): ThreadState {
  if (!isJsonObject(value)) throw new RuntimeUnavailable('the runtime answered something that is not a state')
  const metadata = isJsonObject(value.metadata) ? value.metadata : {}
  const tasks = Array.isArray(value.tasks) ? value.tasks.filter(isJsonObject) : []
  return {
    values: isJsonObject(value.values) ? value.values : {},
    next: Array.isArray(value.next) ? value.next.map(asName) : [],
    runId: typeof metadata.run_id === 'string' ? metadata.run_id : null,
    error: tasks.map((task) => readError(task.error)).find((error) => error !== null) ?? null,
    interrupts: tasks.flatMap((task) => (Array.isArray(task.interrupts) ? task.interrupts : [])),
  }
}

/**
 * Runtimes send a string, an object with `error` (or `name`) and `message`, or such an object as a string. Only the
 * message is kept, because a callback may have nothing else: a failure reads the same on every path.
 */
export function readError(value: Json | undefined): string | null {
  if (value === undefined || value === null || value === '') return null
  if (typeof value === 'string') {
    const inner = parseIfJson(value)
    return isJsonObject(inner) ? readError(inner) : asErrorText(value)
  }
  if (isJsonObject(value)) {
    const words = [value.message, value.error, value.name].find((word) => typeof word === 'string' && word !== '')
    if (typeof words === 'string') return asErrorText(words)
  }
  return asErrorText(JSON.stringify(value))
}

function asErrorText(text: string): string {
  return asStorableText(withoutTokens(text), MAX_ERROR_LENGTH)
}

/**
 * Redacts the token in callback URLs that the runtime echoes, so that stored texts and logs cannot be used to post
 * callbacks. In JSON and in nested URLs the characters around it may be escaped. Other URLs keep their tokens: they may
 * be output.
 */
export function withoutTokens(text: string): string {
  return text.replace(TOKEN, '$1[redacted]')
}

const TOKEN =
  /((?:\/|\\u002f|%2f)webhooks(?:\\?\/|\\u002f|%2f)[^"\s]{0,500}?(?:[?&]|\\u0026|\\u003f|%26|%3f)token(?:=|\\u003d|%3d))[^"&\\\s%#]+/gi

/** Reads trace ids from the first object that has them: the payload, its metadata, the graph's values. */
export function readTraces(...sources: (JsonObject | undefined)[]): Traces {
  const named = (name: string): string | null => {
    for (const source of sources) {
      const value = source?.[name]
      if (isId(value)) return value
    }
    return null
  }
  return { traceId: named('trace_id'), tracerTraceId: named('tracer_trace_id') }
}

export function isId(value: unknown): value is string {
  return typeof value === 'string' && value !== '' && value.length <= MAX_ID_LENGTH && isStorableText(value)
}

function asName(value: Json): string {
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function parseIfJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
