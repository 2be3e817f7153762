import { Agent, type ClientRequest, request as plainRequest, type RequestOptions } from 'node:http'
import { Agent as SecureAgent, request as secureRequest } from 'node:https'
import type { SecureContext } from 'node:tls'
import {
  BodyReader,
  type FcmAnswer,
  type FcmRequest,
  hostOf,
  type TransportState,
  tlsOptions,
  tooLarge,
} from './fcm-transport.ts'

const IDLE_MS = 60_000

export interface FcmHttp1Options {
  url: URL
  /** Null: the certificates that the process trusts. */
  trust: SecureContext | null
  maxSockets: number
  /** Includes requests that wait for a socket. */
  maxRequests: number
}

/** HTTP/1.1 with keep-alive, for the token endpoint and for a provider that does not speak HTTP/2. */
export class FcmHttp1 {
  readonly #options: FcmHttp1Options
  readonly #agent: Agent
  readonly #requests = new Set<ClientRequest>()
  #closed = false
  #inFlight = 0

  constructor(options: FcmHttp1Options) {
    this.#options = options
    const { url, trust, maxSockets } = options
    const pool = { keepAlive: true, maxSockets, timeout: IDLE_MS }
    this.#agent = url.protocol === 'http:' ? new Agent(pool) : new SecureAgent({ ...pool, ...tlsOptions(url, trust) })
  }

  state(): TransportState {
    const { maxSockets } = this.#options
    const inFlight = Math.min(this.#inFlight, maxSockets)
    return { sessions: 0, inFlight, waiting: this.#inFlight - inFlight }
  }

  async post(request: FcmRequest): Promise<FcmAnswer> {
    request.attempt.throwIfStopped()
    if (this.#closed) throw new Error('the sender is closed')
    if (this.#inFlight >= this.#options.maxRequests) throw new Error('too many messages are waiting to be sent')
    this.#inFlight += 1
    try {
      return await this.#exchange(request)
    } finally {
      this.#inFlight -= 1
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    // Also destroys requests that wait for a socket: otherwise they would still get one.
    for (const request of this.#requests) request.destroy(new Error('the sender was closed'))
    this.#agent.destroy()
  }

  #exchange({ path, headers, body, attempt }: FcmRequest): Promise<FcmAnswer> {
    const { url } = this.#options
    const options: RequestOptions = {
      agent: this.#agent,
      host: hostOf(url),
      ...(url.port === '' ? {} : { port: url.port }),
      method: 'POST',
      path,
      headers: { ...headers, 'content-length': Buffer.byteLength(body) },
    }
    return new Promise((resolve, reject) => {
      const request = url.protocol === 'http:' ? plainRequest(options) : secureRequest(options)
      const abort = (error: Error) => {
        reject(error)
        request.destroy()
      }
      this.#requests.add(request)
      attempt.onStop(abort)
      request.on('error', reject)
      request.on('close', () => this.#requests.delete(request))
      request.on('response', (response) => {
        const reader = new BodyReader()
        response.on('error', reject)
        response.on('data', (chunk: Buffer) => {
          if (!reader.add(chunk)) abort(tooLarge())
        })
        response.on('end', () => {
          resolve({ status: response.statusCode ?? 0, headers: response.headers, body: reader.text() })
        })
        response.on('close', () => {
          if (!response.complete) reject(new Error('the connection was closed in the middle of the answer'))
        })
      })
      request.end(body)
    })
  }
}
