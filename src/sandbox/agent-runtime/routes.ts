import { isJsonObject, type Json, type JsonObject } from '../../core/json.ts'
import { isUuid } from '../../core/uuid.ts'
import { type HttpResponse, json, text } from '../http-response.ts'
import type { RuntimeFaults } from './faults.ts'
import { assistantIdOf, type NewId } from './ids.ts'
import type { Run, Thread } from './records.ts'
import type { RuntimeState } from './state.ts'
import { placeOf, renderCheckpoint, renderRun, renderState, renderThread } from './wire.ts'

interface Call {
  threadId: string
  runId: string
  query: URLSearchParams
  headers: Record<string, string | string[] | undefined>
  body: Json
}

export interface Route {
  /** The name of the route in the counters. */
  name: string
  method: 'GET' | 'POST' | 'DELETE'
  path: RegExp
  /** Decides which fault settings apply. */
  kind: 'lookup' | 'start' | 'cancel' | 'update'
  answer: (call: Call) => HttpResponse
}

const BUSY = 'Thread is already running a task. Wait for it to finish or choose a different multitask strategy.'
/** The name of the route that starts a run. */
export const START_RUN = 'POST /threads/{t}/runs'
const STRATEGIES = ['reject', 'rollback', 'interrupt', 'enqueue']
const STREAM_MODES = [
  'values',
  'messages',
  'messages-tuple',
  'updates',
  'events',
  'debug',
  'tasks',
  'checkpoints',
  'custom',
]
const THREAD = '/threads/(?<threadId>[^/]+)'
const RUN = `${THREAD}/runs/(?<runId>[^/]+)`

interface RuntimeRoutesOptions {
  state: RuntimeState
  faults: () => Pick<RuntimeFaults, 'delivery' | 'lose_runs' | 'refuse_webhook'>
  newId: NewId
  graphIds: readonly string[]
}

/** The part of the runtime's API that this service calls, with the statuses and bodies of the real runtime. */
export function runtimeRoutes({ state, faults, newId, graphIds }: RuntimeRoutesOptions): Route[] {
  const onThread = (call: Call, answer: (thread: Thread) => HttpResponse): HttpResponse => {
    if (!isUuid(call.threadId)) return malformed('thread_id')
    const thread = state.thread(call.threadId)
    return thread ? answer(thread) : text(404, `Thread with ID ${call.threadId} not found`)
  }
  const onRun = (call: Call, answer: (thread: Thread, run: Run) => HttpResponse): HttpResponse => {
    if (isUuid(call.threadId) && !isUuid(call.runId)) return malformed('run_id')
    return onThread(call, (thread) => {
      const run = runsOf(thread).find(({ runId }) => runId === call.runId)
      return run ? answer(thread, run) : text(404, 'Run not found')
    })
  }
  const runsOf = (thread: Thread) => (faults().lose_runs ? [] : thread.runs)
  const busy = () => (faults().delivery === 'hosted' ? json(409, { detail: BUSY }) : text(422, BUSY))

  const createThread = ({ body }: Call): HttpResponse => {
    if (!isJsonObject(body)) return malformed('', 'Expected object')
    const { thread_id, if_exists = 'raise', metadata = {} } = body
    if (thread_id !== undefined && !isUuid(thread_id)) return malformed('thread_id')
    if (if_exists !== 'raise' && if_exists !== 'do_nothing') return malformed('if_exists', 'Invalid input')
    if (!isJsonObject(metadata)) return malformed('metadata', 'Expected object')
    const threadId = thread_id ?? newId()
    const existing = state.thread(threadId)
    if (existing && if_exists === 'raise') return text(409, 'Thread already exists')
    return json(200, renderThread(existing ?? state.createThread({ threadId, metadata })))
  }

  const deleteThread = (call: Call): HttpResponse =>
    onThread(call, (thread) => {
      state.deleteThread(thread)
      return { status: 204, body: '' }
    })

  const startRun = (call: Call): HttpResponse => {
    const { body, threadId } = call
    if (!isUuid(threadId)) return malformed('thread_id')
    if (!isJsonObject(body)) return malformed('', 'Expected object')
    const { assistant_id, webhook = null, metadata = {}, command, multitask_strategy = 'reject', after_seconds } = body
    const {
      stream_mode = ['values'],
      stream_resumable = false,
      stream_subgraphs = false,
      checkpoint = {},
      config = {},
    } = body
    const { configurable = {} } = isJsonObject(config) ? config : {}
    if (typeof assistant_id !== 'string') return malformed('assistant_id', 'Required')
    if (webhook !== null && typeof webhook !== 'string') return malformed('webhook', 'Expected string')
    if (!isJsonObject(metadata)) return malformed('metadata', 'Expected object')
    if (command !== undefined && !isJsonObject(command)) return malformed('command', 'Expected object')
    if (!isJsonObject(config)) return malformed('config', 'Expected object')
    if (!isJsonObject(configurable)) return malformed('configurable', 'Expected object')
    if (!isJsonObject(checkpoint)) return malformed('checkpoint', 'Expected object')
    const { checkpoint_id = null } = checkpoint
    if (checkpoint_id !== null && !isUuid(checkpoint_id)) return malformed('checkpoint_id')
    if (!STRATEGIES.includes(String(multitask_strategy))) return malformed('multitask_strategy', 'Invalid enum value')
    const streamModes = Array.isArray(stream_mode) ? stream_mode : [stream_mode]
    if (!streamModes.every((mode) => STREAM_MODES.includes(String(mode)))) {
      return malformed('stream_mode', 'Invalid enum value')
    }
    if (webhook !== null && faults().refuse_webhook) {
      return json(422, { detail: 'The webhook URL must not point to a loopback address' })
    }
    const graphId = graphIds.find((id) => id === assistant_id || assistantIdOf(id) === assistant_id)
    if (graphId === undefined) {
      const advice = 'Make sure the assistant ID is for a valid assistant or a valid graph ID.'
      return text(404, `No assistant found for "${assistant_id}". ${advice}`)
    }
    if (state.isFull) return text(503, 'Too many runs are under way')
    const thread = state.thread(threadId)
    // The real runtime answers the same for a thread it does not know.
    if (!thread) return busy()
    const run = state.startRun(thread, {
      graphId,
      work: command ? { command } : { input: body.input ?? null },
      configurable: { ...configurable, ...configurableFrom(call.headers) },
      checkpointId: checkpoint_id,
      webhook,
      metadata,
      multitaskStrategy: String(multitask_strategy),
      streamModes: streamModes.map(String),
      resumable: stream_resumable === true,
      subgraphs: stream_subgraphs === true,
      afterMs: typeof after_seconds === 'number' ? after_seconds * 1000 : 0,
    })
    if (!run) return busy()
    return json(200, renderRun(run), { 'content-location': `/threads/${threadId}/runs/${run.runId}` })
  }

  const cancelRun = (call: Call): HttpResponse => {
    const action = call.query.get('action') ?? 'interrupt'
    if (action !== 'interrupt' && action !== 'rollback') return malformed('action', 'Invalid enum value')
    return onRun(call, (thread, run) => {
      state.cancel(thread, run, action)
      return { status: 202, body: '' }
    })
  }

  const listRuns = (call: Call): HttpResponse =>
    onThread(call, (thread) => {
      const status = call.query.get('status')
      const runs = runsOf(thread).filter((run) => status === null || run.status === status)
      // As on the JS server, oldest first, and `limit` is the end of the page.
      const from = Number(call.query.get('offset') ?? 0)
      return json(200, runs.slice(from, limitOf(call.query.get('limit'))).map(renderRun))
    })

  const history = (call: Call): HttpResponse =>
    onThread(call, (thread) => {
      const { limit, metadata } = isJsonObject(call.body) ? call.body : {}
      const wanted = isJsonObject(metadata) ? Object.entries(metadata) : []
      const found = thread.checkpoints.toReversed().map(renderCheckpoint)
      const matching = found.filter(({ metadata }) => wanted.every(([key, value]) => holds(metadata, { key, value })))
      return json(200, matching.slice(0, limitOf(limit)))
    })

  const updateState = (call: Call): HttpResponse =>
    onThread(call, (thread) => {
      const { values, as_node } = isJsonObject(call.body) ? call.body : {}
      if (!isJsonObject(values)) return malformed('values', 'Expected object')
      const { id } = state.updateState(thread, values, typeof as_node === 'string' ? as_node : undefined)
      return json(200, { checkpoint: placeOf(thread.threadId, id) })
    })

  const search = ({ body }: Call): HttpResponse => {
    const { limit, offset, ids, metadata, select } = isJsonObject(body) ? body : {}
    const isWanted = (field: string) => !Array.isArray(select) || select.includes(field)
    const wanted = isJsonObject(metadata) ? Object.entries(metadata) : []
    const threads = state
      .threads()
      .filter(({ threadId }) => !Array.isArray(ids) || ids.includes(threadId))
      .filter((thread) => wanted.every(([key, value]) => holds(thread.metadata, { key, value })))
    const newest = threads.sort((a, b) => b.createdAtMs - a.createdAtMs)
    const from = typeof offset === 'number' ? offset : 0
    const page = newest.slice(from, from + limitOf(limit)).map(renderThread)
    return json(
      200,
      page.map((thread) => Object.fromEntries(Object.entries(thread).filter(([field]) => isWanted(field)))),
    )
  }

  return [
    route('POST', '/threads', 'start', createThread),
    route('POST', '/threads/search', 'lookup', search),
    route('GET', THREAD, 'lookup', (call) => onThread(call, (thread) => json(200, renderThread(thread)))),
    route('DELETE', THREAD, 'lookup', deleteThread),
    route('GET', `${THREAD}/state`, 'lookup', (call) => onThread(call, (thread) => json(200, renderState(thread)))),
    route('POST', `${THREAD}/state`, 'update', updateState),
    route('POST', `${THREAD}/history`, 'lookup', history),
    route('POST', `${THREAD}/runs`, 'start', startRun),
    route('GET', `${THREAD}/runs`, 'lookup', listRuns),
    route('GET', RUN, 'lookup', (call) => onRun(call, (_thread, run) => json(200, renderRun(run)))),
    route('POST', `${RUN}/cancel`, 'cancel', cancelRun),
  ]
}

/** The route of a request, and the ids in its path. */
export function findRoute(
  routes: readonly Route[],
  { method, pathname }: { method: string; pathname: string },
): { route: Route; ids: { threadId: string; runId: string } } | undefined {
  const route = routes.find((one) => one.method === method && one.path.test(pathname))
  if (!route) return undefined
  const { threadId = '', runId = '' } = route.path.exec(pathname)?.groups ?? {}
  return { route, ids: { threadId, runId } }
}

function malformed(path: string, message = 'Invalid uuid'): HttpResponse {
  const issues = [{ code: 'invalid_string', message, path: path === '' ? [] : [path] }]
  return json(400, { success: false, error: { issues, name: 'ZodError' } })
}

function route(method: Route['method'], path: string, kind: Route['kind'], answer: Route['answer']): Route {
  const name = `${method} ${path.replace(/\(\?<(\w)\w*>[^)]*\)/g, '{$1}')}`
  return { name, method, path: new RegExp(`^${path}$`), kind, answer }
}

function holds(metadata: Json | undefined, { key, value }: { key: string; value: Json }): boolean {
  return isJsonObject(metadata) && JSON.stringify(metadata[key]) === JSON.stringify(value)
}

function limitOf(limit: Json | undefined): number {
  const count = limit === null || limit === undefined ? 10 : Number(limit)
  return Number.isInteger(count) && count > 0 ? count : 10
}

/** Request headers become part of the run's configuration, and so of the callback: never put a secret into one of these. */
function configurableFrom(headers: Call['headers']): JsonObject {
  const kept = Object.entries(headers).filter(
    ([name]) => name === 'user-agent' || (name.startsWith('x-') && name !== 'x-api-key'),
  )
  return Object.fromEntries(kept.map(([name, value]) => [name, String(value)]))
}
