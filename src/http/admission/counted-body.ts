import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { principalId } from '../../auth/principal.ts'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import { addressKey } from '../../limits/client-address.ts'
import type { App } from '../app-instance.ts'
import { type BodyBudget, BodyHold, type BodyOwner, type ExceededBodyBound } from './body-budget.ts'
import { whenAnswered } from './request-end.ts'
import { SERVER_LIMITS } from './server-limits.ts'

declare module 'fastify' {
  interface FastifyRequest {
    bodyHold: BodyHold | null
  }
}

/** Methods whose bodies are never read. */
const BODYLESS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'TRACE'])

/**
 * A body of at most this length counts whole from the beginning: counting its bytes would cost more than it saves. The bytes
 * of an unproven caller are always counted, because it may open any number of connections.
 */
const SMALL_BODY = 4 * 1024

/** What a chunk takes in memory besides its bytes (measured: 212). A body may come in chunks of one byte. */
const CHUNK_BYTES = 256

/**
 * Reads a body only while the budget has room for it; otherwise the answer is 503. Bytes count as they arrive, so a
 * connection that only declares a great length takes no room. Add this hook after the gate, which knows whether the
 * caller is authenticated.
 */
export function boundBodies(app: App, { bodyBudget, meter }: { bodyBudget: BodyBudget; meter: Meter }): void {
  const refusal = (bound: ExceededBodyBound): UnavailableError => {
    meter.count('requests_bounded_total', { bound })
    return new UnavailableError('Too many large requests are in progress')
  }
  app.decorateRequest('bodyHold', null)
  app.addHook('preParsing', (request, _reply, payload, done) => {
    const { method, headers, raw } = request
    const isChunked = headers['transfer-encoding'] !== undefined
    const length = Number(headers['content-length'] ?? 0)
    if (BODYLESS.has(method) || (length === 0 && !isChunked)) return done(null, payload)
    // The client disconnected during the gate's check. The parser would wait for ever for the rest of the body.
    if (raw.destroyed) return done(new ApiError('invalid_request', 'The connection was closed'))
    // A body that is too long takes no room: the parser refuses it before it reads it.
    if (length > (request.routeOptions.bodyLimit ?? SERVER_LIMITS.bodyLimit)) return done(null, payload)
    const owner = ownerOf(request)
    // A body that does not fit now is refused before its first byte. Later, the client might not read the answer.
    const bound = bodyBudget.boundFor(length, owner)
    if (bound !== null) return done(refusal(bound))
    const hold = new BodyHold(bodyBudget, owner)
    request.bodyHold = hold
    whenAnswered(request, () => hold.release())
    if (isChunked || length > SMALL_BODY || owner?.kind === 'unproven') {
      return done(null, new CountedBody(payload, { hold, refusal }))
    }
    hold.growTo(length)
    done(null, payload)
  })
}

function ownerOf({ principal, callbackProof, ip }: FastifyRequest): BodyOwner {
  if (principal !== null) return { kind: 'principal', id: principalId(principal) }
  return callbackProof?.authentic === true ? null : { kind: 'unproven', id: addressKey(ip) }
}

/** A body whose bytes are counted as they arrive. A body without room ends with the refusal. */
class CountedBody extends Readable {
  readonly #source: Readable
  readonly #hold: BodyHold
  readonly #refusal: (bound: ExceededBodyBound) => Error
  #isRead = false
  #bytes = 0
  #chunks = 0

  constructor(source: Readable, options: { hold: BodyHold; refusal: (bound: ExceededBodyBound) => Error }) {
    super()
    this.#source = source
    this.#hold = options.hold
    this.#refusal = options.refusal
    // The parser stops listening when it refuses a body. Without a listener, a connection that breaks then ends the process.
    this.on('error', () => {})
  }

  override _read(): void {
    if (!this.#isRead) this.#begin()
    this.#source.resume()
  }

  /** Not earlier: Node discards the rest of a body only if it was never read. */
  #begin(): void {
    this.#isRead = true
    this.#source
      .on('data', (chunk: Buffer) => this.#receive(chunk))
      .on('end', () => this.push(null))
      .on('error', (error) => this.destroy(error))
  }

  #receive(chunk: Buffer): void {
    // The rest of a refused body is discarded, so that the connection stays open for the answer.
    if (this.destroyed) return
    this.#bytes += chunk.length
    this.#chunks += 1
    const bound = this.#hold.growTo(Math.max(this.#bytes, this.#chunks * CHUNK_BYTES))
    if (bound !== null) this.destroy(this.#refusal(bound))
    else if (!this.push(chunk)) this.#source.pause()
  }
}
