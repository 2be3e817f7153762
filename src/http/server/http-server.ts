import { createServer, type IncomingMessage, METHODS, type RequestListener, type Server } from 'node:http'
import type { Socket } from 'node:net'
import { ApiError } from '../../core/errors.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import { type BrokenConnections, MALFORMED } from './client-error.ts'
import type { Cors } from './cors.ts'
import type { requestIdFrom } from './request-id.ts'
import { SERVER_LIMITS } from './server-limits.ts'

const KNOWN_METHODS: ReadonlySet<string> = new Set(METHODS)
const NO_TUNNEL = new ApiError('method_not_allowed', 'CONNECT is not allowed here', {
  headers: { allow: 'DELETE, GET, HEAD, PATCH, POST' },
})

export interface HttpServerOptions {
  connections: BrokenConnections
  requestId: ReturnType<typeof requestIdFrom>
  cors: Cors
  meter: Meter
}

/** The HTTP server below the framework: it limits every connection, and passes only HTTP requests to the framework. */
export function createHttpServer(handle: RequestListener, options: HttpServerOptions): Server {
  const { connections, requestId, cors, meter } = options
  const { http, requestTimeout, keepAliveTimeout, connectionTimeout, maxHeadersCount } = SERVER_LIMITS
  const server = createServer({ ...http, requestTimeout, keepAliveTimeout })
  server.setTimeout(connectionTimeout)
  server.maxHeadersCount = maxHeadersCount

  server.on('request', (request, response) => {
    if (connections.isRefused(request.socket)) return
    if (KNOWN_METHODS.has(request.method ?? '') && !isRtsp(request)) {
      connections.watch(request, response)
      const isAnswered = cors.handle(request, response, () => requestId(request))
      if (isAnswered) meter.count('http_requests_total', { method: 'OPTIONS', route: 'preflight', status: '204' })
      else handle(request, response)
      return
    }
    // Node's parser reads RTSP as HTTP/1.0. The framework has no hooks for the methods of RTSP, so these requests must not
    // reach it.
    request.resume()
    void connections.refuse(request.socket, MALFORMED, requestId(request))
  })
  // Node would answer an unknown `Expect` header with an empty 417. Like most servers, we ignore the header.
  server.on('checkExpectation', (request, response) => server.emit('request', request, response))
  server.on('connect', (request, tunnel) => {
    const socket = tunnel as Socket
    // Node hands this connection over: the timeouts and the error handler of the server no longer apply to it.
    socket.on('error', () => {}).resume()
    void connections.refuse(socket, NO_TUNNEL, requestId(request)).then(() => socket.destroySoon())
  })
  return server
}

/** The parser's buffer, which Node's types do not list. */
type ParsingSocket = Socket & { parser?: { getCurrentBuffer?: () => Buffer } | null }

/**
 * The parser reports RTSP/1.0 as HTTP/1.0. Only the request line differs, and the parser's buffer still has it when Node
 * reports the request. If the line came in an earlier packet, the header `CSeq` decides: RTSP requires it, and HTTP does
 * not have it.
 */
function isRtsp({ httpVersion, headers, method, url, socket }: IncomingMessage): boolean {
  if (httpVersion !== '1.0') return false
  if (headers.cseq !== undefined) return true
  const arrived = (socket as ParsingSocket).parser?.getCurrentBuffer?.().toString('latin1') ?? ''
  return arrived.split('\n').some((line) => line.startsWith(`${method} ${url} RTSP/`))
}
