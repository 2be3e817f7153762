import { createServer, type IncomingMessage, METHODS, type RequestListener, type Server } from 'node:http'
import type { Socket } from 'node:net'
import fastify from 'fastify'
import { ApiError } from '../../core/errors.ts'
import type { IdGenerator } from '../../core/ids.ts'
import type { Log } from '../../core/log.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import { trustedProxies } from '../../limits/client-address.ts'
import type { App } from '../app-instance.ts'
import type { Envelope } from '../envelope.ts'
import { createErrorHandler } from '../error-handler.ts'
import { compileValidator } from '../validation.ts'
import { BrokenConnections, MALFORMED } from './client-error.ts'
import { Cors } from './cors.ts'
import { setAnswerHeaders } from './request-head.ts'
import { SERVER_LIMITS } from './server-limits.ts'

const KNOWN_METHODS: ReadonlySet<string> = new Set(METHODS)
const NO_TUNNEL = new ApiError('method_not_allowed', 'CONNECT is not allowed here', {
  headers: { allow: 'DELETE, GET, HEAD, PATCH, POST, PUT' },
})

interface FrameworkOptions {
  envelope: Envelope
  ids: IdGenerator
  log: Log
  meter: Meter
  trustProxy: readonly string[]
  corsOrigins: readonly string[]
  loopbackOnly?: boolean
}

/** The framework on our HTTP server. All errors have the envelope, also those that the framework raises itself. */
export function createFramework(options: FrameworkOptions): App {
  const { envelope, ids, log, meter, trustProxy } = options
  const handleError = createErrorHandler({ envelope, log })
  const cors = new Cors({ origins: options.corsOrigins, allowLoopback: options.loopbackOnly ?? false })
  const connections = new BrokenConnections({ envelope, ids, cors, meter })
  const requestId = requestIdFrom(ids)
  const app: App = fastify({
    bodyLimit: SERVER_LIMITS.bodyLimit,
    routerOptions: SERVER_LIMITS.routerOptions,
    trustProxy: trustProxy.length > 0 ? trustedProxies(trustProxy) : false,
    genReqId: requestId,
    serverFactory: (handle) => createHttpServer(handle, { connections, requestId, cors, meter }),
    // While draining, requests on open connections are still served.
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    clientErrorHandler: connections.onClientError,
    // Fastify raises these errors before any hook runs, so the headers are set here.
    frameworkErrors: (error, request, reply) => {
      meter.count('http_malformed_requests_total', { code: 'invalid_request' })
      setAnswerHeaders(request, reply)
      return handleError(error, request, reply)
    },
  })
  app.setValidatorCompiler(compileValidator)
  app.setErrorHandler(handleError)
  return app
}

interface HttpServerOptions {
  connections: BrokenConnections
  requestId: ReturnType<typeof requestIdFrom>
  cors: Cors
  meter: Meter
}

/** The HTTP server below the framework: it limits every connection, and passes only HTTP requests to the framework. */
function createHttpServer(handle: RequestListener, options: HttpServerOptions): Server {
  const { connections, requestId, cors, meter } = options
  const { http, requestTimeout, keepAliveTimeout, connectionTimeout, maxHeadersCount } = SERVER_LIMITS
  const server = createServer({ ...http, requestTimeout, keepAliveTimeout })
  server.setTimeout(connectionTimeout)
  server.maxHeadersCount = maxHeadersCount

  server.on('request', (request, response) => {
    if (connections.isRefused(request.socket)) return
    if (isHttp(request)) {
      connections.watch(request, response)
      const isAnswered = cors.handle(request, response, () => requestId(request))
      if (isAnswered) meter.count('http_requests_total', { method: 'OPTIONS', route: 'preflight', status: '204' })
      else handle(request, response)
      return
    }
    request.resume()
    void connections.refuse(request.socket, MALFORMED, {
      requestId: requestId(request),
      isHead: request.method === 'HEAD',
    })
  })
  // Node would answer an unknown `Expect` header with an empty 417. Like most servers, we ignore the header.
  server.on('checkExpectation', (request, response) => server.emit('request', request, response))
  server.on('connect', (request, tunnel) => {
    const socket = tunnel as Socket
    // Node hands this connection over: the timeouts and the error handler of the server no longer apply to it.
    socket.on('error', () => {}).resume()
    void connections.refuse(socket, NO_TUNNEL, { requestId: requestId(request) }).then(() => socket.destroySoon())
  })
  return server
}

/**
 * Node's parser reads RTSP as HTTP/1.0. The framework has no hooks for the methods of RTSP, so these requests must not
 * reach it. HTTP/1.0 has no `Transfer-Encoding`: a proxy of that version sees another end of the request, so nothing
 * after its head can be trusted (RFC 9112, 6.1).
 */
function isHttp(request: IncomingMessage): boolean {
  if (!KNOWN_METHODS.has(request.method ?? '') || isRtsp(request)) return false
  return request.httpVersion !== '1.0' || request.headers['transfer-encoding'] === undefined
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

const ACCEPTABLE = /^[A-Za-z0-9._-]{1,128}$/

/**
 * Keeps a well-formed inbound `X-Request-Id`, so that a trace can cross services; replaces any other value with a new id.
 */
function requestIdFrom(ids: IdGenerator): (raw: Pick<IncomingMessage, 'headers'>) => string {
  return (raw) => {
    const given = raw.headers['x-request-id']
    return typeof given === 'string' && ACCEPTABLE.test(given) ? given : ids.next('req')
  }
}
