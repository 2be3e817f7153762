import type { IncomingMessage, ServerResponse } from 'node:http'
import { isLoopbackHost } from '../../core/loopback.ts'

interface CorsOptions {
  /** Origins as browsers send them; `*` means every origin. */
  origins: readonly string[]
  /** Every origin on this machine is allowed too. */
  allowLoopback: boolean
}

/** Headers of our answers that a script may read. Without this list a browser hides them. */
const EXPOSED = [
  'ETag',
  'Location',
  'Retry-After',
  'RateLimit',
  'RateLimit-Policy',
  'RateLimit-Limit',
  'RateLimit-Remaining',
  'RateLimit-Reset',
  'X-Request-Id',
  'Idempotency-Replayed',
]

/** Headers of a request that a script may set. The last ones come from libraries for streams and traces. */
const ACCEPTED = [
  'Authorization',
  'Content-Type',
  'X-API-Key',
  'X-Request-Id',
  'Idempotency-Key',
  'If-Match',
  'If-None-Match',
  'Last-Event-ID',
  'Cache-Control',
  'traceparent',
  'tracestate',
  'baggage',
]

/** The longest time that any browser keeps the answer to a preflight. */
const MAX_AGE_SECONDS = 2 * 3600
const PREFLIGHT_HEADERS = {
  'access-control-allow-methods': 'GET, HEAD, POST, PUT, PATCH, DELETE',
  'access-control-allow-headers': ACCEPTED.join(', '),
  'access-control-max-age': String(MAX_AGE_SECONDS),
}

/**
 * Lets scripts of the allowed origins read every answer, also refusals before the gate. An origin that is not allowed gets
 * no CORS headers; its requests are handled like all others. Cookies are not used: there is no credentials mode.
 */
export class Cors {
  readonly #origins: ReadonlySet<string>
  readonly #allowsAny: boolean
  readonly #allowsLoopback: boolean

  constructor({ origins, allowLoopback }: CorsOptions) {
    this.#origins = new Set(origins)
    this.#allowsAny = this.#origins.has('*')
    this.#allowsLoopback = allowLoopback
  }

  /** The headers for every answer to a request from this origin. Empty if no origin is configured. */
  headersFor(origin: string | undefined): Record<string, string> {
    if (this.#origins.size === 0 && !this.#allowsLoopback) return {}
    // Also for requests without an origin: a cache must not give their answers to a browser that sends an origin.
    if (origin === undefined || !this.#allows(origin)) return { vary: 'Origin' }
    return {
      vary: 'Origin',
      'access-control-allow-origin': origin,
      'access-control-expose-headers': EXPOSED.join(', '),
    }
  }

  /**
   * Sets the headers of the answer before any other code writes it. Answers a preflight and returns true. A preflight
   * carries no credential, so it neither passes the gate nor is charged to a tier.
   */
  handle({ method, headers }: IncomingMessage, response: ServerResponse, requestId: () => string): boolean {
    const { origin } = headers
    const own = this.headersFor(origin)
    for (const name in own) response.setHeader(name, own[name] ?? '')
    if (method !== 'OPTIONS' || origin === undefined) return false
    if (headers['access-control-request-method'] === undefined) return false
    const isAllowed = 'access-control-allow-origin' in own
    response.writeHead(204, { 'x-request-id': requestId(), ...(isAllowed && PREFLIGHT_HEADERS) }).end()
    return true
  }

  #allows(origin: string): boolean {
    if (this.#allowsAny || this.#origins.has(origin)) return true
    if (!this.#allowsLoopback) return false
    const url = URL.parse(origin)
    return url !== null && url.origin === origin && isLoopbackHost(url.hostname)
  }
}
