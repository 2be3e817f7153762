import type { JsonPart } from '../core/json/json-part.ts'
import { JsonDepthError, scanJson } from '../core/json/json-scan.ts'
import { JsonText } from '../core/json/json-text.ts'
import { JsonSyntaxError } from '../core/json/json-tokens.ts'
import { type Wanted, WHOLE, wantAll, wantFields, wantItems } from '../core/json/wanted.ts'
import { isJsonObject, type Json, type JsonObject, MAX_JSON_DEPTH } from '../core/json.ts'
import { asStorableText, isStorableText } from '../core/text.ts'
import { RuntimeUnavailable } from './check-errors.ts'
import { withoutTokens } from './redact-tokens.ts'
import type { RunDescription, RuntimeRun, ThreadState, Traces } from './runtime-types.ts'

const MAX_ERROR_LENGTH = 4_000
const MAX_ID_LENGTH = 255
/** The length of `\u0000`, the longest escape of one character. */
const MAX_ESCAPE_LENGTH = 6

/** The answer was read, but this service does not store what it contains. */
export class UnacceptableAnswer extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'UnacceptableAnswer'
  }
}

export const WANTED_IDS = { thread_id: WHOLE, run_id: WHOLE, status: WHOLE }
/** The fields of an error object that describe the error, best first. */
const ERROR_WORDS = ['message', 'error', 'name'] as const
export const WANTED_ERROR = wantFields({ message: WHOLE, error: WHOLE, name: WHOLE })
export const WANTED_TRACES = wantFields({ trace_id: WHOLE, tracer_trace_id: WHOLE })

export const WANTED_RUN = wantAll(
  wantFields({
    ...WANTED_IDS,
    created_at: WHOLE,
    metadata: WANTED_TRACES,
    kwargs: wantFields({
      command: wantFields({ resume: WHOLE }),
      input: WHOLE,
      config: wantFields({ configurable: wantFields({ checkpoint_id: WHOLE }) }),
    }),
  }),
  WANTED_TRACES,
)

/** For a state of which only the questions matter. */
export const NO_VALUES = wantFields({})

/** The parts of a thread's state, with the parts of its values that the job type wants. */
export function wantedState(values: Wanted): Wanted {
  return wantFields({
    values: wantAll(values, WANTED_TRACES),
    next: WHOLE,
    checkpoint: wantFields({ checkpoint_id: WHOLE }),
    checkpoint_id: WHOLE,
    metadata: wantFields({ run_id: WHOLE }),
    tasks: wantItems(wantFields({ error: WANTED_ERROR, interrupts: wantItems(WHOLE) })),
  })
}

/** An answer that is not JSON may come from a proxy: it proves nothing about the run. */
export async function readAnswer(
  text: string,
  { wanted, maxDepth = MAX_JSON_DEPTH }: { wanted: Wanted; maxDepth?: number },
): Promise<JsonPart> {
  try {
    return (await scanJson(text, { wanted, maxDepth })).root
  } catch (error) {
    if (error instanceof JsonDepthError) throw new UnacceptableAnswer(`The output is ${error.message}`)
    if (!(error instanceof JsonSyntaxError)) throw error
    throw new RuntimeUnavailable('not_json', { cause: error })
  }
}

export function readRun(run: JsonPart): RuntimeRun {
  if (run.kind !== 'object') throw new RuntimeUnavailable('not_a_run')
  const [runId, threadId, status] = [idIn(run, 'run_id'), idIn(run, 'thread_id'), idIn(run, 'status')]
  if (runId === null || threadId === null || status === null) {
    throw new RuntimeUnavailable('run_without_ids')
  }
  const metadata = run.at('metadata')
  return {
    runId: runId.toLowerCase(),
    threadId: threadId.toLowerCase(),
    status,
    metadata: asObject(metadata?.parse()),
    checkpointId: idIn(run.at('kwargs', 'config', 'configurable'), 'checkpoint_id'),
    traces: readTraces(run, metadata),
  }
}

export const THREAD_FIELDS = ['thread_id', 'metadata'] as const
export const WANTED_THREAD = wantFields(Object.fromEntries(THREAD_FIELDS.map((name) => [name, WHOLE])))

export function readThread(thread: JsonPart): { threadId: string; metadata: JsonObject } {
  return { threadId: idIn(thread, 'thread_id') ?? '', metadata: asObject(thread.at('metadata')?.parse()) }
}

/** The fields of metadata that name a caller. */
const OWNER_FIELDS = ['user_id', 'owner', 'created_by'] as const
/** The runtime's own value of `created_by`. It is in every run, so it names no caller. */
const CREATED_BY_RUNTIME = 'system'
const WANTED_OWNERS = wantFields({ graph_id: WHOLE, user_id: WHOLE, owner: WHOLE, created_by: WHOLE })
export const WANTED_DESCRIPTION = wantFields({ assistant_id: WHOLE, metadata: WANTED_OWNERS })

export function readDescription(run: JsonPart, thread: JsonPart): RunDescription {
  if (run.kind !== 'object' || thread.kind !== 'object') {
    throw new RuntimeUnavailable('not_a_run')
  }
  const metadata = [run.at('metadata'), thread.at('metadata')]
  const graphs = [idIn(run, 'assistant_id'), ...metadata.map((fields) => idIn(fields, 'graph_id'))]
  return {
    graphs: graphs.filter(isId),
    owners: metadata.flatMap(ownersIn),
    metadata: asObject(run.at('metadata')?.parse()),
  }
}

function ownersIn(metadata: JsonPart | undefined): string[] {
  const ids = OWNER_FIELDS.map((name) => {
    const id = idIn(metadata, name)
    return name === 'created_by' && id === CREATED_BY_RUNTIME ? null : id
  })
  return ids.filter(isId)
}

export function readState(state: JsonPart): ThreadState {
  if (state.kind !== 'object') throw new RuntimeUnavailable('not_a_state')
  const values = state.at('values')
  const listed = state.at('next')?.parse()
  const next = Array.isArray(listed) ? listed.map(asName) : []
  const tasks = state.at('tasks')?.items ?? []
  return {
    values: values?.kind === 'object' ? values : null,
    next,
    isDone: next.length === 0 && tasks.length === 0,
    checkpointId: idIn(state.at('checkpoint'), 'checkpoint_id') ?? idIn(state, 'checkpoint_id'),
    runId: idIn(state.at('metadata'), 'run_id')?.toLowerCase() ?? null,
    error: tasks.map((task) => readError(task.at('error'))).find((error) => error !== null) ?? null,
    interrupts: tasks.flatMap((task) => task.at('interrupts')?.items ?? []).map(({ text }) => new JsonText(text)),
    traces: readTraces(values),
  }
}

/** The error of a callback or a task. A long one is cut before it is parsed. */
export function readError(error: JsonPart | undefined): string | null {
  if (error === undefined) return null
  const value = error.parse() as Json | undefined
  if (value !== undefined) return wordsOf(value)
  const words = ERROR_WORDS.map((name) => error.at(name)).find((part) => part?.kind === 'string' && part.text !== '""')
  if (words !== undefined) return readError(words)
  return asErrorText(error.kind === 'string' ? startOfString(error.text) : error.text.slice(0, 2 * MAX_ERROR_LENGTH))
}

function startOfString(text: string): string {
  let end = MAX_ESCAPE_LENGTH * (MAX_ERROR_LENGTH + 1)
  // The cut must not go through an escape.
  while (parseIfJson(`${text.slice(0, end)}"`) === undefined) end -= 1
  return parseIfJson(`${text.slice(0, end)}"`) as string
}

/**
 * Runtimes send a string, an object with `error` (or `name`) and `message`, or such an object as a string. Only the message
 * is kept, because a callback may contain nothing else. So the error is the same for callbacks and checks.
 */
export function wordsOf(value: Json | undefined): string | null {
  if (value === undefined || value === null || value === '') return null
  if (typeof value === 'string') {
    const inner = parseIfJson(value)
    return isJsonObject(inner) ? wordsOf(inner) : asErrorText(value)
  }
  if (isJsonObject(value)) {
    const words = ERROR_WORDS.map((name) => value[name]).find((word) => typeof word === 'string' && word !== '')
    if (typeof words === 'string') return asErrorText(words)
  }
  return asErrorText(JSON.stringify(value))
}

function asErrorText(text: string): string {
  return asStorableText(withoutTokens(text), MAX_ERROR_LENGTH)
}

/** Reads trace ids from the first object that has them: the payload, its metadata, the graph's values. */
export function readTraces(...sources: (JsonPart | undefined)[]): Traces {
  const named = (name: string) => sources.map((source) => idIn(source, name)).find((id) => id !== null) ?? null
  return { traceId: named('trace_id'), tracerTraceId: named('tracer_trace_id') }
}

const MAX_ID_TEXT_LENGTH = MAX_ESCAPE_LENGTH * MAX_ID_LENGTH + 2

/** The id in a wanted field. Null when there is none. */
export function idIn(part: JsonPart | undefined, name: string): string | null {
  const id = part?.at(name)?.parse(MAX_ID_TEXT_LENGTH)
  return isId(id) ? id : null
}

export function isId(value: unknown): value is string {
  return typeof value === 'string' && value !== '' && value.length <= MAX_ID_LENGTH && isStorableText(value)
}

function asObject(value: unknown): JsonObject {
  return isJsonObject(value) ? value : {}
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
