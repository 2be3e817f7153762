import type { IncomingHttpHeaders, IncomingMessage, Server, ServerResponse } from 'node:http'
import { constants, type Http2SecureServer, type Http2ServerRequest, Http2ServerResponse } from 'node:http2'
import type { AddressInfo } from 'node:net'
import type { Answer } from './push-provider-answers.ts'

export const LOOPBACK: ReadonlySet<string> = new Set(['127.0.0.1', '::1', 'localhost'])

/** One request and its answer, in whichever protocol the client has chosen, with all the ways of not answering. */
export class WireExchange {
  readonly method: string
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly host: string
  readonly protocol: 'h2' | 'http/1.1'
  readonly #request: IncomingMessage | Http2ServerRequest
  readonly #response: ServerResponse | Http2ServerResponse

  constructor(request: IncomingMessage | Http2ServerRequest, response: ServerResponse | Http2ServerResponse) {
    this.#request = request
    this.#response = response
    this.method = request.method ?? 'GET'
    this.path = (request.url ?? '/').split('?', 1)[0] ?? '/'
    this.headers = request.headers
    this.protocol = request.httpVersionMajor === 2 ? 'h2' : 'http/1.1'
    this.host = String(request.headers[':authority'] ?? request.headers.host ?? '')
    // A client that hangs up is no news here.
    request.on('error', () => {})
    response.on('error', () => {})
  }

  /** Read to the end whatever the size, so that the sender gets an answer; null when it is too much or breaks off. */
  body(maxBytes: number): Promise<string | null> {
    return new Promise((resolve) => {
      const chunks: Buffer[] = []
      let bytes = 0
      this.#request.on('data', (chunk: Buffer) => {
        bytes += chunk.byteLength
        if (bytes <= maxBytes) chunks.push(chunk)
      })
      this.#request.on('end', () => resolve(bytes > maxBytes ? null : Buffer.concat(chunks).toString('utf8')))
      this.#request.on('aborted', () => resolve(null))
      this.#request.on('close', () => resolve(null))
    })
  }

  reply({ status, headers, body }: Answer): void {
    this.#begin(status, { ...headers, 'content-length': String(Buffer.byteLength(body)) })
    this.#response.end(body)
  }

  /** Half of the body, and an end as if it were whole. */
  replyByHalf({ status, headers, body }: Answer): void {
    this.#begin(status, { ...headers })
    this.#response.end(body.slice(0, body.length / 2))
  }

  /** No answer, and no more on this stream; HTTP/1.1 has only the connection to break. */
  reset(): void {
    const response = this.#response
    if (response instanceof Http2ServerResponse) response.stream.close(constants.NGHTTP2_INTERNAL_ERROR)
    else response.destroy()
  }

  /** This request and all after it are not looked at; the ones before it are still answered. */
  goAway(): void {
    const response = this.#response
    if (response instanceof Http2ServerResponse) {
      const { stream } = response
      stream.session?.goaway(constants.NGHTTP2_NO_ERROR, (stream.id ?? 1) - 2)
      stream.close(constants.NGHTTP2_REFUSED_STREAM)
      stream.session?.close()
    } else {
      this.reset()
    }
  }

  #begin(status: number, headers: Record<string, string>): void {
    const response = this.#response
    if (response.headersSent || response.destroyed) return
    const all = { 'content-type': 'application/json; charset=UTF-8', 'x-content-type-options': 'nosniff', ...headers }
    if (response instanceof Http2ServerResponse) response.writeHead(status, all)
    else response.writeHead(status, all)
  }
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
