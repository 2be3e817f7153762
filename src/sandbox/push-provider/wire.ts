import type { IncomingHttpHeaders, IncomingMessage, Server, ServerResponse } from 'node:http'
import {
  constants,
  type Http2SecureServer,
  type IncomingHttpHeaders as IncomingHttp2Headers,
  type ServerHttp2Stream,
} from 'node:http2'
import type { AddressInfo } from 'node:net'
import type { Readable } from 'node:stream'
import type { Answer } from './answers.ts'

export const LOOPBACK: ReadonlySet<string> = new Set(['127.0.0.1', '::1', 'localhost'])

/** One request and its answer, in whichever protocol the client has chosen, with all the ways of not answering. */
export interface WireExchange {
  readonly method: string
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly host: string
  readonly protocol: 'h2' | 'http/1.1'
  /** Read to the end whatever the size, so that the sender gets an answer; null when it is too much or breaks off. */
  body(maxBytes: number): Promise<string | null>
  reply(answer: Answer): void
  /** Half of the body, and an end as if it were whole. */
  replyByHalf(answer: Answer): void
  /** No answer, and no more on this stream; HTTP/1.1 has only the connection to break. */
  reset(): void
  /** This request and all after it are not looked at; the ones before it are still answered. */
  goAway(): void
}

/** On the stream itself: Node's imitation of HTTP/1.1 over HTTP/2 costs as much again as everything else here. */
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
    // A client that hangs up is no news here.
    stream.on('error', () => {})
  }

  body(maxBytes: number): Promise<string | null> {
    return readBody(this.#stream, maxBytes)
  }

  reply({ status, headers, body }: Answer): void {
    this.#begin(status, { ...headers, 'content-length': String(Buffer.byteLength(body)) })?.end(body)
  }

  replyByHalf({ status, headers, body }: Answer): void {
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

  reply({ status, headers, body }: Answer): void {
    this.#begin(status, { ...headers, 'content-length': String(Buffer.byteLength(body)) }).end(body)
  }

  replyByHalf({ status, headers, body }: Answer): void {
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

export function listen(
  server: Server | Http2SecureServer,
  { host, port }: { host: string; port: number },
): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

export function authorityOf(server: Server | Http2SecureServer, host: string): string {
  const { port } = server.address() as AddressInfo
  return `${host.includes(':') ? `[${host}]` : host}:${port}`
}

/** From a page of somebody else's, open in the developer's browser. */
export function isForeign({ host, headers: { origin } }: WireExchange): boolean {
  const name = URL.parse(`http://${host}`)?.hostname.replace(/^\[|\]$/g, '')
  const own = [`http://${host}`, `https://${host}`]
  return name === undefined || !LOOPBACK.has(name) || (origin !== undefined && !own.includes(origin))
}
