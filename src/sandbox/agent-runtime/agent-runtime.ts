import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { type Clock, systemClock } from '../../core/clock.ts'
import type { Json } from '../../core/json.ts'
import { type Random, systemRandom } from '../../core/random.ts'
import { readChanges } from '../fault-settings.ts'
import { type HttpResponse, json, text } from '../http-response.ts'
import { authorityOf, isForeign, listenOnLoopback } from '../loopback.ts'
import { type CallbackRecord, CallbackSender, type CallbackStats } from './callbacks.ts'
import { parseExactJson } from './exact-json.ts'
import { NO_RUNTIME_FAULTS, RUNTIME_FAULTS, type RuntimeFaults } from './faults.ts'
import { GRAPH_IDS, planRun } from './graphs.ts'
import { createIdSource } from './ids.ts'
import { renderAgentRuntimePage } from './page.ts'
import type { Run } from './records.ts'
import { findRoute, type Route, runtimeRoutes, START_RUN } from './routes.ts'
import { readStreamPath, STREAM_ENDPOINT, serveRunStream, streamSteps } from './run-streams.ts'
import { RuntimeState } from './state.ts'

const MAX_BODY_BYTES = 11 * 1024 * 1024

interface AgentRuntimeOptions {
  host?: string
  /** Default 0: any free port. */
  port?: number
  /** Take any other port when another program has this one. Default: fail. */
  anyIfTaken?: boolean
  clock?: Clock
  random?: Random
  fetch?: typeof fetch
  /** When given, every request must carry it in `x-api-key`. */
  apiKey?: string
  /** The page links to it. */
  consoleUrl?: string
}

interface RuntimeStats {
  /** Requests by endpoint, answered or not: `GET /threads/{t}/runs/{r}`. */
  calls: Record<string, number>
  callbacks: CallbackStats
}

/**
 * An agent runtime on loopback for development and tests. It speaks the real protocol, has a graph for every kind of end of
 * a run, and injects faults on request.
 */
export async function startAgentRuntime(options: AgentRuntimeOptions = {}): Promise<AgentRuntime> {
  const { host = '127.0.0.1', port = 0, anyIfTaken } = options
  const server = createServer({ requestTimeout: 30_000 })
  await listenOnLoopback(server, { host, port, anyIfTaken })
  return new AgentRuntime(server, host, options)
}

export class AgentRuntime {
  /** The runtime's address. The page with the fault settings has the same address. */
  readonly url: string
  readonly #server: Server
  readonly #clock: Clock
  readonly #random: Random
  readonly #apiKey: string | undefined
  readonly #consoleUrl: string | null
  readonly #state: RuntimeState
  readonly #sender: CallbackSender
  readonly #routes: readonly Route[]
  readonly #closing = new AbortController()
  #resetting = new AbortController()
  #faults: RuntimeFaults = NO_RUNTIME_FAULTS
  #calls: Record<string, number> = {}
  #hung = Promise.withResolvers<void>()

  constructor(server: Server, host: string, options: AgentRuntimeOptions) {
    const { clock = systemClock, random = systemRandom, fetch = globalThis.fetch, apiKey } = options
    this.url = `http://${authorityOf(server, host)}`
    this.#server = server
    this.#clock = clock
    this.#random = random
    this.#apiKey = apiKey
    this.#consoleUrl = options.consoleUrl ?? null
    const faults = () => this.#faults
    const newId = createIdSource(clock, random)
    this.#sender = new CallbackSender({ clock, random, fetch, faults })
    this.#state = new RuntimeState({
      clock,
      newId,
      onEnd: (run) => this.#sender.send(run),
      planner: {
        pendingMs: () => faults().pending_ms,
        plan: planRun,
        defaultRunningMs: () => faults().running_ms,
        stream: (run, work) => streamSteps(run, { ...work, tokenMs: faults().token_ms, clock }),
        onTimeOver: (_run, finish) => {
          if (!faults().zombie) finish()
        },
      },
    })
    this.#routes = runtimeRoutes({ state: this.#state, faults, newId, graphIds: GRAPH_IDS })
    server.on('request', (request, response) => void this.#serve(request, response))
  }

  get faults(): Readonly<RuntimeFaults> {
    return this.#faults
  }

  /** Throws when a value is not allowed. */
  setFaults(changes: Partial<RuntimeFaults>): void {
    const read = readChanges(RUNTIME_FAULTS, changes)
    if ('problems' in read) throw new Error(read.problems.join('; '))
    this.#faults = { ...this.#faults, ...read.changes }
    if (this.#faults.hang_lookups) return
    this.#hung.resolve()
    this.#hung = Promise.withResolvers()
  }

  get stats(): RuntimeStats {
    return { calls: { ...this.#calls }, callbacks: this.#sender.stats }
  }

  /** All runs of all threads. */
  get runs(): readonly Run[] {
    return this.#state.threads().flatMap(({ runs }) => runs)
  }

  /** Newest first. */
  get recentRuns(): readonly Run[] {
    return this.#state.recent
  }

  /** Newest first. */
  get recentCallbacks(): readonly CallbackRecord[] {
    return this.#sender.recent
  }

  /** Resolves once no callback is being sent any more. */
  drainCallbacks(): Promise<void> {
    return this.#sender.drain()
  }

  /** Simulates a killed server: unfinished runs never change again, and no callback is sent. */
  crash(): void {
    this.#state.crash()
  }

  /** Default settings, no threads, no runs, counters at zero. */
  async reset(): Promise<void> {
    this.setFaults(NO_RUNTIME_FAULTS)
    this.#resetting.abort()
    this.#resetting = new AbortController()
    await this.#state.clear()
    await this.#sender.clear()
    this.#calls = {}
  }

  async close(): Promise<void> {
    this.#closing.abort()
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()))
    await this.reset()
    this.#server.closeAllConnections()
    await closed
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (this.#follow(request, response)) return
    let answer: HttpResponse | null
    try {
      answer = await this.#answer(request)
    } catch {
      answer = text(400, 'Malformed JSON in request body')
    }
    if (answer === null || this.#closing.signal.aborted) {
      response.destroy()
      return
    }
    const body = Buffer.from(answer.body)
    const headers = { 'content-type': 'application/json', 'x-content-type-options': 'nosniff', ...answer.headers }
    response.writeHead(answer.status, { ...headers, 'content-length': body.byteLength }).end(body)
  }

  /** Serves a request that joins the stream of a run. False: the request is for another route, or must be refused. */
  #follow({ method = 'GET', url = '/', headers }: IncomingMessage, response: ServerResponse): boolean {
    const ids = readStreamPath(method, new URL(url, this.url).pathname)
    if (ids === null || isForeign(headers) || !this.#accepts(headers)) return false
    this.#calls[STREAM_ENDPOINT] = (this.#calls[STREAM_ENDPOINT] ?? 0) + 1
    if (this.#faults.refuse_streams) return false
    const lastEventId = headers['last-event-id']
    serveRunStream(
      response,
      { state: this.#state, ...ids },
      {
        lastEventId: typeof lastEventId === 'string' ? lastEventId : undefined,
        breaks: () => this.#happens(this.#faults.break_streams),
        freezes: () => this.#happens(this.#faults.freeze_streams),
      },
    )
    return true
  }

  #accepts(headers: IncomingMessage['headers']): boolean {
    return this.#apiKey === undefined || headers['x-api-key'] === this.#apiKey
  }

  /** Null: break the connection without a response. */
  async #answer(request: IncomingMessage): Promise<HttpResponse | null> {
    const { method = 'GET', headers } = request
    const { pathname, searchParams: query } = new URL(request.url ?? '/', this.url)
    if (isForeign(headers)) return text(403, 'The sandbox serves this machine only')
    if (pathname === '/')
      return method === 'GET' ? renderAgentRuntimePage(this.#consoleUrl) : text(404, '404 Not Found')
    if (pathname === '/ok') return json(200, { ok: true })
    if (pathname.startsWith('/sandbox/')) return this.#control(`${method} ${pathname}`, request)
    const found = findRoute(this.#routes, { method, pathname })
    if (!found) return text(404, '404 Not Found')
    const { route, ids } = found
    this.#calls[route.name] = (this.#calls[route.name] ?? 0) + 1
    if (!this.#accepts(headers)) return json(403, { detail: 'Invalid API key' })
    const body = await readJson(request)
    const failed = await this.#injectFault(route)
    if (failed) return failed
    const handle = () => route.answer({ ...ids, query, headers, body })
    const handled = route.name === START_RUN ? this.#handleLate(handle) : handle()
    if (route.name === START_RUN && this.#happens(this.#faults.break_starts)) return null
    const answer = await handled
    return route.kind === 'start' && this.#happens(this.#faults.lose_start_answers) ? null : answer
  }

  /** Null if the runtime is reset or closed before. */
  async #handleLate(handle: () => HttpResponse): Promise<HttpResponse | null> {
    const { late_starts_ms: lateMs } = this.#faults
    const { signal } = this.#resetting
    if (lateMs > 0) await this.#clock.sleep(lateMs, signal)
    return signal.aborted ? null : handle()
  }

  async #injectFault({ kind }: Route): Promise<HttpResponse | undefined> {
    if (kind === 'start') {
      const { start_failure, start_failure_status } = this.#faults
      return this.#happens(start_failure) ? failure(start_failure_status) : undefined
    }
    if (kind !== 'lookup') return undefined
    if (this.#faults.hang_lookups) await this.#hung.promise
    const { lookup_latency_ms: latencyMs } = this.#faults
    if (latencyMs > 0) await this.#clock.sleep(latencyMs, this.#closing.signal)
    const { lookup_failure, lookup_failure_status } = this.#faults
    return this.#happens(lookup_failure) ? failure(lookup_failure_status) : undefined
  }

  async #control(call: string, request: IncomingMessage): Promise<HttpResponse> {
    switch (call) {
      case 'GET /sandbox/faults':
        return json(200, { ...this.#faults })
      case 'POST /sandbox/faults':
      case 'PATCH /sandbox/faults': {
        const read = readChanges(RUNTIME_FAULTS, await readJson(request))
        if ('problems' in read) return json(400, { problems: read.problems })
        this.setFaults(read.changes)
        return json(200, { ...this.#faults })
      }
      case 'GET /sandbox/stats':
        return json(200, { calls: this.#calls, callbacks: { ...this.#sender.stats } })
      case 'GET /sandbox/recent':
        return json(200, {
          runs: this.#state.recent.map(summarise),
          callbacks: this.#sender.recent.map((one) => ({ ...one })),
        })
      case 'POST /sandbox/crash':
        this.crash()
        return json(200, { crashed: true })
      case 'POST /sandbox/reset':
        await this.reset()
        return json(200, { ...this.#faults })
      default:
        return text(404, '404 Not Found')
    }
  }

  #happens(ratio: number): boolean {
    return ratio > 0 && this.#random.fraction() < ratio
  }
}

function failure(status: number): HttpResponse {
  return json(status, { detail: 'A fault setting of the sandbox causes this failure' })
}

function summarise(run: Run): Json {
  const { runId, threadId, graphId, status, metadata } = run
  const jobId = metadata.job_id ?? null
  return {
    run_id: runId,
    thread_id: threadId,
    graph_id: graphId,
    status,
    job_id: jobId,
    created_at: new Date(run.createdAtMs).toISOString(),
  }
}

/** Null for a request without a body. */
async function readJson(request: IncomingMessage): Promise<Json> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of request) {
    bytes += chunk.byteLength
    if (bytes > MAX_BODY_BYTES) throw new Error('The body is too large')
    chunks.push(chunk)
  }
  return bytes === 0 ? null : parseExactJson(Buffer.concat(chunks).toString('utf8'))
}
