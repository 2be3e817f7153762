import { createServer, METHODS, type RequestListener, type Server } from 'node:http'
import type { Socket } from 'node:net'
import { ApiError } from '../../core/errors.ts'
import { type BrokenConnections, MALFORMED } from './client-error.ts'
import type { requestIdFrom } from './request-id.ts'
import { SERVER_LIMITS } from './server-limits.ts'

const KNOWN_METHODS: ReadonlySet<string> = new Set(METHODS)
const NO_TUNNEL = new ApiError('method_not_allowed', 'CONNECT is not allowed here', {
  headers: { allow: 'DELETE, GET, HEAD, PATCH, POST' },
})

export interface HttpServerOptions {
  connections: BrokenConnections
  requestId: ReturnType<typeof requestIdFrom>
}

/** The HTTP server below the framework: every connection is bounded, and only HTTP requests reach the framework. */
export function createHttpServer(handle: RequestListener, { connections, requestId }: HttpServerOptions): Server {
  const { http, requestTimeout, keepAliveTimeout, connectionTimeout, maxHeadersCount } = SERVER_LIMITS
  const server = createServer({ ...http, requestTimeout, keepAliveTimeout })
  server.setTimeout(connectionTimeout)
  server.maxHeadersCount = maxHeadersCount

  server.on('request', (request, response) => {
    if (connections.isRefused(request.socket)) return
    if (KNOWN_METHODS.has(request.method ?? '')) {
      connections.watch(request, response)
      handle(request, response)
      return
    }
    // The parser takes RTSP for HTTP. The framework has no hooks for RTSP's methods, so none must reach it.
    request.resume()
    void connections.refuse(request.socket, MALFORMED, requestId(request))
  })
  // Node would answer an `Expect` it does not know with a bare 417. Like most servers, we ignore the header.
  server.on('checkExpectation', (request, response) => server.emit('request', request, response))
  server.on('connect', (request, tunnel) => {
    const socket = tunnel as Socket
    // Node leaves the connection to this listener: no timeout and no error handler of the server holds for it any more.
    socket.on('error', () => {}).resume()
    void connections.refuse(socket, NO_TUNNEL, requestId(request)).then(() => socket.destroySoon())
  })
  return server
}
