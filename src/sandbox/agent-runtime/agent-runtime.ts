import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Clock, systemClock } from '../../core/clock.ts'
import { type Json, parseForeignJson } from '../../core/json.ts'
import { type Random, systemRandom } from '../../core/random.ts'
import { type CallbackRecord, CallbackSender, type CallbackStats } from './callbacks.ts'
import { type Dials, dialsAtRest, readDialChanges } from './faults.ts'
import { createIdSource } from './ids.ts'
import { renderAgentRuntimePage } from './page.ts'
import type { Run } from './records.ts'
import { type Answer, json, type Route, runtimeRoutes, text } from './routes.ts'
import { RuntimeState } from './state.ts'

const MAX_BODY_BYTES = 11 * 1024 * 1024
const LOOPBACK = new Set(['127.0.0.1', '::1', 'localhost'])

export interface AgentRuntimeOptions {
  host?: string
  /** 0, the default, takes a free one. */
  port?: number
  clock?: Clock
  random?: Random
  fetch?: typeof fetch
  /** Asked for in `x-api-key`, when given. */
  apiKey?: string
}

export interface RuntimeStats {
  /** Requests by endpoint, answered or not: `GET /threads/{t}/runs/{r}`. */
  calls: Record<string, number>
  callbacks: CallbackStats
}

/** An agent runtime on loopback for development and tests: the real wire, graphs for every end, and dials for trouble. */
export async function startAgentRuntime(options: AgentRuntimeOptions = {}): Promise<AgentRuntime> {
  const { host = '127.0.0.1', port = 0 } = options
  if (!LOOPBACK.has(host)) throw new Error(`The sandbox runtime is for loopback only, not for ${host}`)
  const server = createServer({ requestTimeout: 30_000 })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
  return new AgentRuntime(server, host, options)
}

export class AgentRuntime {
  /** The runtime's address, and that of the page with its dials. */
  readonly url: string
  readonly #server: Server
  readonly #clock: Clock
  readonly #random: Random
  readonly #apiKey: string | undefined
  readonly #state: RuntimeState
  readonly #sender: CallbackSender
  readonly #routes: readonly Route[]
  readonly #closing = new AbortController()
  #dials: Dials = dialsAtRest()
  #calls: Record<string, number> = {}
  #hung = Promise.withResolvers<void>()

  constructor(server: Server, host: string, options: AgentRuntimeOptions) {
    const { clock = systemClock, random = systemRandom, fetch = globalThis.fetch, apiKey } = options
    const { port } = server.address() as AddressInfo
    this.url = `http://${host.includes(':') ? `[${host}]` : host}:${port}`
    this.#server = server
    this.#clock = clock
    this.#random = random
    this.#apiKey = apiKey
    const dials = () => this.#dials
    const newId = createIdSource(clock, random)
    this.#sender = new CallbackSender({ clock, random, fetch, dials })
    this.#state = new RuntimeState({ clock, newId, dials, onEnd: (run) => this.#sender.send(run) })
    this.#routes = runtimeRoutes({ state: this.#state, dials, newId })
    server.on('request', (request, response) => void this.#serve(request, response))
  }

  get dials(): Readonly<Dials> {
    return this.#dials
  }

  /** Throws when a value does not fit its dial. */
  turn(changes: Partial<Dials>): void {
    const read = readDialChanges(changes)
    if ('faults' in read) throw new Error(read.faults.join('; '))
    this.#dials = { ...this.#dials, ...read.changes }
    if (this.#dials.hang_lookups) return
    this.#hung.resolve()
    this.#hung = Promise.withResolvers()
  }

  get stats(): RuntimeStats {
    return { calls: { ...this.#calls }, callbacks: this.#sender.stats }
  }

  /** Newest first. */
  get recentRuns(): readonly Run[] {
    return this.#state.recent
  }

  /** Newest first. */
  get recentCallbacks(): readonly CallbackRecord[] {
    return this.#sender.recent
  }

  /** Resolves once all callbacks that were under way have come to an end. */
  drainCallbacks(): Promise<void> {
    return this.#sender.drain()
  }

  /** As if the server had been killed in the middle of its work: what was under way stays so, and nobody is told. */
  crash(): void {
    this.#state.crash()
  }

  /** All dials at rest, no threads, no runs, counters at zero. */
  async reset(): Promise<void> {
    this.turn(dialsAtRest())
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
    let answer: Answer | null
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

  /** Null to break the connection. */
  async #answer(request: IncomingMessage): Promise<Answer | null> {
    const { method = 'GET', headers } = request
    const { pathname, searchParams: query } = new URL(request.url ?? '/', this.url)
    // A page of somebody else's, open in the developer's browser, must not make this process post to their network.
    if (isForeign(request)) return text(403, 'The sandbox answers nobody else')
    if (pathname === '/') return method === 'GET' ? renderAgentRuntimePage() : text(404, '404 Not Found')
    if (pathname === '/ok') return json({ ok: true })
    if (pathname.startsWith('/sandbox/')) return this.#control(`${method} ${pathname}`, request)
    const route = this.#routes.find((one) => one.method === method && one.path.test(pathname))
    if (!route) return text(404, '404 Not Found')
    this.#calls[route.name] = (this.#calls[route.name] ?? 0) + 1
    if (this.#apiKey !== undefined && headers['x-api-key'] !== this.#apiKey) {
      return { ...json({ detail: 'Invalid API key' }), status: 403 }
    }
    const body = await readJson(request)
    const trouble = await this.#trouble(route)
    if (trouble) return trouble
    const { threadId = '', runId = '' } = route.path.exec(pathname)?.groups ?? {}
    const answer = route.answer({ threadId, runId, query, headers, body })
    return route.kind === 'start' && this.#happens(this.#dials.lose_start_answers) ? null : answer
  }

  async #trouble({ kind }: Route): Promise<Answer | undefined> {
    if (kind === 'start') {
      const { start_failure, start_failure_status } = this.#dials
      return this.#happens(start_failure) ? failure(start_failure_status) : undefined
    }
    if (kind !== 'lookup') return undefined
    if (this.#dials.hang_lookups) await this.#hung.promise
    const { lookup_latency_ms: latencyMs } = this.#dials
    if (latencyMs > 0) await this.#clock.sleep(latencyMs, this.#closing.signal)
    const { lookup_failure, lookup_failure_status } = this.#dials
    return this.#happens(lookup_failure) ? failure(lookup_failure_status) : undefined
  }

  async #control(call: string, request: IncomingMessage): Promise<Answer> {
    switch (call) {
      case 'GET /sandbox/dials':
        return json({ ...this.#dials })
      case 'POST /sandbox/dials':
      case 'PATCH /sandbox/dials': {
        const read = readDialChanges(await readJson(request))
        if ('faults' in read) return { ...json({ faults: read.faults }), status: 400 }
        this.turn(read.changes)
        return json({ ...this.#dials })
      }
      case 'GET /sandbox/stats':
        return json({ calls: this.#calls, callbacks: { ...this.#sender.stats } })
      case 'GET /sandbox/recent':
        return json({
          runs: this.#state.recent.map(summarise),
          callbacks: this.#sender.recent.map((one) => ({ ...one })),
        })
      case 'POST /sandbox/crash':
        this.crash()
        return json({ crashed: true })
      case 'POST /sandbox/reset':
        await this.reset()
        return json({ ...this.#dials })
      default:
        return text(404, '404 Not Found')
    }
  }

  #happens(ratio: number): boolean {
    return ratio > 0 && this.#random.fraction() < ratio
  }
}

function failure(status: number): Answer {
  return { ...json({ detail: 'The sandbox was told to fail' }), status }
}

function isForeign({ headers: { origin, host } }: IncomingMessage): boolean {
  const name = URL.parse(`http://${host}`)?.hostname.replace(/^\[|\]$/g, '')
  return name === undefined || !LOOPBACK.has(name) || (origin !== undefined && origin !== `http://${host}`)
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
  return bytes === 0 ? null : parseForeignJson(Buffer.concat(chunks).toString('utf8'))
}
