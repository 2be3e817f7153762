import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import type { Socket } from 'node:net'
import { ApiError } from '../../core/errors.ts'
import type { IdGenerator } from '../../core/ids.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import type { Envelope } from '../envelope.ts'
import type { Cors } from './cors.ts'

const REFUSALS: Record<string, ApiError> = {
  ERR_HTTP_REQUEST_TIMEOUT: new ApiError('request_timeout', 'The request took too long to arrive'),
  HPE_HEADER_OVERFLOW: new ApiError('headers_too_large', 'The headers are too large'),
}
export const MALFORMED = new ApiError('invalid_request', 'The request is not valid HTTP')
/**
 * How much is still read after a refusal. If the connection were closed while the client still sends, the client's system
 * would discard the answer.
 */
const MAX_IGNORED_BYTES = 1024 * 1024

interface BrokenConnectionsOptions {
  envelope: Envelope
  ids: IdGenerator
  cors: Cors
  meter?: Meter
}

/**
 * Answers bytes that are not a valid request (broken HTTP, headers too large, too slow) with one envelope, after the
 * answers to earlier requests of the connection. Then closes the connection.
 */
export class BrokenConnections {
  readonly #envelope: Envelope
  readonly #ids: IdGenerator
  readonly #cors: Cors
  readonly #meter: Meter
  /** The two newest responses of a connection: only the newest request can still be arriving. */
  readonly #newest = new WeakMap<Socket, { last: ServerResponse; before: ServerResponse | undefined }>()
  /** The number of bytes read from a connection before it was refused. */
  readonly #refusedAtByte = new WeakMap<Socket, number>()

  constructor(options: BrokenConnectionsOptions) {
    this.#envelope = options.envelope
    this.#ids = options.ids
    this.#cors = options.cors
    this.#meter = options.meter ?? silentMeter
  }

  /** Call it with every request, before its handler. */
  watch({ socket }: IncomingMessage, response: ServerResponse): void {
    const last = this.#newest.get(socket)?.last
    this.#newest.set(socket, { last: response, before: last?.closed ? undefined : last })
  }

  /** If true, no later request of the connection is executed. */
  isRefused(socket: Socket): boolean {
    return this.#refusedAtByte.has(socket)
  }

  readonly onClientError = (error: Error & { code?: string; rawPacket?: unknown }, socket: Socket): void => {
    if (error.code === 'ECONNRESET') {
      socket.destroy()
      return
    }
    // The parser reports the same fault again whenever more bytes arrive.
    const refusedAtByte = this.#refusedAtByte.get(socket)
    const { rawPacket } = error
    const isHead = Buffer.isBuffer(rawPacket) && rawPacket.subarray(0, 5).toString('latin1') === 'HEAD '
    if (refusedAtByte === undefined) void this.refuse(socket, REFUSALS[error.code ?? ''] ?? MALFORMED, { isHead })
    else if (socket.bytesRead - refusedAtByte > MAX_IGNORED_BYTES) socket.destroy()
  }

  /** Refuses all further requests of the connection. */
  async refuse(
    socket: Socket,
    refusal: ApiError,
    { requestId = this.#ids.next('req'), isHead = false }: { requestId?: string; isHead?: boolean } = {},
  ): Promise<void> {
    this.#meter.count('http_malformed_requests_total', { code: refusal.code })
    this.#refusedAtByte.set(socket, socket.bytesRead)
    const { last, before } = this.#newest.get(socket) ?? {}
    // The fault belongs to the request that is still arriving. If there is none, it belongs to a request that has not
    // begun.
    const arriving = last?.req.complete === false ? last : undefined
    const earlier = arriving === undefined ? last : before
    if (earlier !== undefined) await untilAnswered(earlier)
    // A request may be refused before its body has arrived: then its answer was already sent.
    if (isStreaming(earlier) || arriving?.headersSent) socket.destroySoon()
    else if (socket.writable) {
      socket.end(this.#render(refusal, { requestId, origin: arriving?.req.headers.origin, isHead }))
    } else socket.destroy()
  }

  /** The answer to `HEAD` has no body. */
  #render(
    refusal: ApiError,
    { requestId, origin, isHead }: { requestId: string; origin: string | undefined; isHead: boolean },
  ): string {
    const { code, message } = refusal
    const body = JSON.stringify(this.#envelope.render({ code, message, requestId }))
    const headers = {
      'content-type': 'application/json; charset=utf-8',
      'content-length': Buffer.byteLength(body),
      'x-request-id': requestId,
      'x-content-type-options': 'nosniff',
      ...this.#cors.headersFor(origin),
      ...refusal.headers,
      connection: 'close',
    }
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
    return [`HTTP/1.1 ${refusal.status} ${STATUS_CODES[refusal.status]}`, ...lines, '', isHead ? '' : body].join('\r\n')
  }
}

/** Do not wait for an event stream: it does not end. */
function isStreaming(response: ServerResponse | undefined): boolean {
  return response?.headersSent === true && !response.writableEnded
}

async function untilAnswered(response: ServerResponse): Promise<void> {
  if (response.closed || isStreaming(response)) return
  await new Promise<void>((resolve) => response.once('close', () => resolve()))
}
