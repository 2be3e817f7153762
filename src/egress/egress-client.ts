import * as http from 'node:http'
import * as https from 'node:https'
import { connect } from 'node:net'
import { createSecureContext, getCACertificates } from 'node:tls'
import type { Clock } from '../core/clock.ts'
import type { EgressGuard } from './egress-guard.ts'
import { type EgressAnswer, EgressError, type EgressPoster, type EgressRequest, MAX_PER_HOST } from './egress-port.ts'

const CONNECT_WITHIN_MS = 5_000
const ANSWER_WITHIN_MS = 15_000
const MAX_ANSWER_BYTES = 64 * 1024
const KEPT_ANSWER_BYTES = 1024
const IDLE_SOCKET_MS = 30_000

/**
 * Posts through the guard: no redirect is followed, no proxy of the environment is used, and time, size and connections are
 * bounded. Connections are kept open and used again.
 */
export class EgressClient implements EgressPoster {
  readonly #guard: EgressGuard
  readonly #clock: Clock
  readonly #options: https.AgentOptions
  readonly #agents: Readonly<Record<string, http.Agent>>
  readonly #closing = new AbortController()

  constructor({ guard, clock, ca }: { guard: EgressGuard; clock: Clock; ca?: string | undefined }) {
    this.#guard = guard
    this.#clock = clock
    this.#options = {
      maxSockets: MAX_PER_HOST,
      // With fewer, connections are closed between two batches, and each needs a new TLS handshake.
      maxFreeSockets: MAX_PER_HOST,
      timeout: IDLE_SOCKET_MS,
      // Created once: `ca` would be read again for every connection, and compared for every request.
      ...(ca && { secureContext: createSecureContext({ ca: [...getCACertificates('default'), ca] }) }),
    }
    this.#agents = { 'http:': this.#agentFor('http:', true), 'https:': this.#agentFor('https:', true) }
  }

  #agentFor(protocol: string, keepAlive: boolean): http.Agent {
    const { Agent } = protocol === 'http:' ? http : https
    const agent = new Agent({ ...this.#options, keepAlive })
    guardConnections(agent, this.#guard)
    return agent
  }

  async post(request: EgressRequest): Promise<EgressAnswer> {
    const fault = this.#guard.faultOf(request.url)
    if (fault !== null) throw new EgressError(`the URL ${fault}`)
    const over = new AbortController()
    const late = new AbortController()
    void this.#clock.sleep(ANSWER_WITHIN_MS, over.signal).then(() => {
      if (!over.signal.aborted) late.abort(new EgressError(`no answer within ${ANSWER_WITHIN_MS / 1_000} s`))
    })
    const signal = AbortSignal.any([late.signal, this.#closing.signal])
    try {
      return await this.#exchange(request, signal, true)
    } catch (error) {
      if (!(error instanceof StaleConnection)) throw error
      return await this.#exchange(request, signal, false)
    } finally {
      over.abort()
    }
  }

  close(): void {
    this.#closing.abort(new Error('the service is stopping'))
    for (const agent of Object.values(this.#agents)) agent.destroy()
  }

  #exchange({ url, headers, body }: EgressRequest, signal: AbortSignal, mayReuse: boolean): Promise<EgressAnswer> {
    const connected = new AbortController()
    return new Promise<EgressAnswer>((resolve, reject) => {
      const { protocol } = new URL(url)
      const { request } = protocol === 'http:' ? http : https
      const length = Buffer.byteLength(body)
      const sending = request(url, {
        method: 'POST',
        agent: mayReuse ? this.#agents[protocol] : this.#agentFor(protocol, false),
        headers: { ...headers, 'content-length': length },
      })
      const fail = (error: unknown) => {
        reject(error)
        sending.destroy()
      }
      const onAbort = () => fail(signal.reason)
      if (signal.aborted) return onAbort()
      signal.addEventListener('abort', onAbort, { once: true })
      void this.#clock.sleep(CONNECT_WITHIN_MS, connected.signal).then(() => {
        if (!connected.signal.aborted) fail(new EgressError(`no connection within ${CONNECT_WITHIN_MS / 1_000} s`))
      })
      sending.on('socket', (socket) => {
        if (!socket.connecting && sending.reusedSocket) connected.abort()
        else socket.once(protocol === 'http:' ? 'connect' : 'secureConnect', () => connected.abort())
      })
      sending.on('error', (error: NodeJS.ErrnoException) => {
        reject(sending.reusedSocket && error.code === 'ECONNRESET' ? new StaleConnection() : error)
      })
      sending.on('close', () => {
        signal.removeEventListener('abort', onAbort)
        // Also after an answer that switches protocols, which causes no other event.
        reject(new EgressError('the connection was closed before the whole answer'))
      })
      sending.on('response', (response) => readAnswer(response, resolve, reject))
      sending.end(body)
    }).finally(() => connected.abort())
  }
}

/** The other side closed a kept connection at the moment of its use: the request is repeated on a new connection. */
class StaleConnection extends Error {}

/** TLS begins on a connected socket, so that the guard sees the address before anything is sent. */
function guardConnections(agent: http.Agent, guard: EgressGuard): void {
  const createConnection = agent.createConnection.bind(agent)
  agent.createConnection = (options, callback) => {
    const { host, port } = options as { host: string; port: number }
    const socket = connect({ host, port, lookup: guard.lookup })
    const isSecure = agent instanceof https.Agent
    const secure = isSecure ? createConnection(Object.assign({}, options, { socket }), callback) : null
    guard.watch(socket, (error) => (secure ?? socket).destroy(error))
    return secure ?? socket
  }
}

/** A body that is too long is cut: the status is the answer. */
function readAnswer(
  response: http.IncomingMessage,
  resolve: (answer: EgressAnswer) => void,
  reject: (error: Error) => void,
): void {
  const kept: Buffer[] = []
  let bytes = 0
  const finish = () => {
    const text = Buffer.concat(kept).subarray(0, KEPT_ANSWER_BYTES).toString()
    resolve({ status: response.statusCode ?? 0, retryAfter: response.headers['retry-after'], text })
  }
  response.on('data', (chunk: Buffer) => {
    if (bytes < KEPT_ANSWER_BYTES) kept.push(chunk)
    bytes += chunk.length
    if (bytes <= MAX_ANSWER_BYTES) return
    finish()
    response.destroy()
  })
  response.on('end', finish)
  response.on('error', reject)
}
