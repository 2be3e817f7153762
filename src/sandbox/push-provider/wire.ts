import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import { constants, type IncomingHttpHeaders as IncomingHttp2Headers, type ServerHttp2Stream } from 'node:http2'
import type { Readable } from 'node:stream'
import type { HttpResponse } from '../http-response.ts'

/** One request and its response over HTTP/1.1 or HTTP/2, including the ways to fail without a response. */
export interface WireExchange {
  readonly method: string
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly host: string
  readonly protocol: 'h2' | 'http/1.1'
  /** Reads the whole body, so that the client gets a response. Null if it is too long or the client disconnects. */
  body(maxBytes: number): Promise<string | null>
  reply(response: HttpResponse): void
  /** Sends half of the body, and ends it as if it were complete. */
  replyTruncated(response: HttpResponse): void
  /** Resets the stream without a response. HTTP/1.1 has no streams: there the connection is closed. */
  reset(): void
  /** Refuses this request and all later ones on this connection; earlier requests still get their response. */
  goAway(): void
}

/** Uses the stream directly: Node's compatibility API for HTTP/2 costs as much as everything else here. */
export class Http2Exchange implements WireExchange {
  readonly method: string
  readonly path: string
  readonly headers: IncomingHttp2Headers
  readonly host: string
  readonly protocol = 'h2'
  readonly #stream: ServerHttp2Stream

  constructor(stream: ServerHttp2Stream, headers: IncomingHttp2Headers) {
    this.#stream = stream
    this.headers = headers
    this.method = headers[':method'] ?? 'GET'
    this.path = pathOf(headers[':path'])
    this.host = String(headers[':authority'] ?? headers.host ?? '')
    // A client that disconnects is not an error here.
    stream.on('error', () => {})
  }

  body(maxBytes: number): Promise<string | null> {
    return readBody(this.#stream, maxBytes)
  }

  reply({ status, headers, body }: HttpResponse): void {
    this.#begin(status, { ...headers, 'content-length': String(Buffer.byteLength(body)) })?.end(body)
  }

  replyTruncated({ status, headers, body }: HttpResponse): void {
    this.#begin(status, { ...headers })?.end(body.slice(0, body.length / 2))
  }

  reset(): void {
    this.#stream.close(constants.NGHTTP2_INTERNAL_ERROR)
  }

  goAway(): void {
    const { session, id = 1 } = this.#stream
    session?.goaway(constants.NGHTTP2_NO_ERROR, id - 2)
    this.#stream.close(constants.NGHTTP2_REFUSED_STREAM)
    session?.close()
  }

  #begin(status: number, headers: Record<string, string>): ServerHttp2Stream | null {
    const stream = this.#stream
    if (stream.headersSent || stream.destroyed || stream.closed) return null
    stream.respond({ ':status': status, ...COMMON_HEADERS, ...headers })
    return stream
  }
}

export class Http1Exchange implements WireExchange {
  readonly method: string
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly host: string
  readonly protocol = 'http/1.1'
  readonly #request: IncomingMessage
  readonly #response: ServerResponse

  constructor(request: IncomingMessage, response: ServerResponse) {
    this.#request = request
    this.#response = response
    this.method = request.method ?? 'GET'
    this.path = pathOf(request.url)
    this.headers = request.headers
    this.host = request.headers.host ?? ''
    request.on('error', () => {})
    response.on('error', () => {})
  }

  body(maxBytes: number): Promise<string | null> {
    return readBody(this.#request, maxBytes)
  }

  reply({ status, headers, body }: HttpResponse): void {
    this.#begin(status, { ...headers, 'content-length': String(Buffer.byteLength(body)) }).end(body)
  }

  replyTruncated({ status, headers, body }: HttpResponse): void {
    this.#begin(status, { ...headers }).end(body.slice(0, body.length / 2))
  }

  reset(): void {
    this.#response.destroy()
  }

  goAway(): void {
    this.reset()
  }

  #begin(status: number, headers: Record<string, string>): ServerResponse {
    const response = this.#response
    if (!response.headersSent && !response.destroyed) response.writeHead(status, { ...COMMON_HEADERS, ...headers })
    return response
  }
}

const COMMON_HEADERS = { 'content-type': 'application/json; charset=UTF-8', 'x-content-type-options': 'nosniff' }

function pathOf(url: string | undefined): string {
  return (url ?? '/').split('?', 1)[0] ?? '/'
}

function readBody(request: Readable, maxBytes: number): Promise<string | null> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = []
    let bytes = 0
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.byteLength
      if (bytes <= maxBytes) chunks.push(chunk)
    })
    request.on('end', () => resolve(bytes > maxBytes ? null : Buffer.concat(chunks).toString('utf8')))
    request.on('aborted', () => resolve(null))
    request.on('close', () => resolve(null))
  })
}
