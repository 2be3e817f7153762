import fastify, { type FastifyReply, type FastifyRequest } from 'fastify'
import { eventRoutes } from './events/event-routes.ts'
import type { App } from './http/app-instance.ts'
import { envelopeOf } from './http/envelope.ts'
import { createErrorHandler } from './http/error-handler.ts'
import { boundPrincipals } from './http/gate/bound-principals.ts'
import { createBodyGate, createGate } from './http/gate/gate.ts'
import { readJsonBodies } from './http/json-body.ts'
import { boundBodies } from './http/server/bound-bodies.ts'
import { BrokenConnections } from './http/server/client-error.ts'
import { limitHandlers } from './http/server/handler-deadline.ts'
import { createHttpServer } from './http/server/http-server.ts'
import { releaseAtEnd } from './http/server/request-end.ts'
import { faultOfForeignHost, faultOfHead } from './http/server/request-head.ts'
import { requestIdFrom } from './http/server/request-id.ts'
import { SERVER_LIMITS } from './http/server/server-limits.ts'
import { shedLoad } from './http/server/shed-load.ts'
import { KnownRoutes } from './http/unknown-route.ts'
import { compileValidator } from './http/validation.ts'
import { jobRoutes } from './jobs/api/job-routes.ts'
import { jobListRoutes } from './jobs/api/list-routes.ts'
import { callbackRoutes } from './jobs/callbacks/callback-routes.ts'
import { countUnfinished } from './jobs/job-store.ts'
import { trustedProxies } from './limits/client-address.ts'
import { healthRoutes } from './ops/health-routes.ts'
import { metricsRoute } from './ops/metrics/metrics-route.ts'
import { countRequests } from './ops/metrics/request-metrics.ts'
import { ApiDescription, openapiRoute } from './ops/openapi/openapi-route.ts'
import { referencePageRoutes } from './ops/reference-page.ts'
import { logRequests } from './ops/request-log.ts'
import { projectRoutes } from './projects/project-routes.ts'
import { deviceRoutes } from './push/device-routes.ts'
import { notificationRoutes } from './push/notification-routes.ts'
import { serviceAccountRoutes } from './service-accounts/service-account-routes.ts'
import type { Services } from './services.ts'
import { usageRoutes } from './usage/usage-routes.ts'
import { userRoutes } from './users/user-routes.ts'
import { VERSION } from './version.ts'

/** Builds the HTTP application: hooks first, then routes, in the order in which a request passes them. */
export async function buildApp(services: Services): Promise<App> {
  const { config, log, ids, readiness, userActivity, metrics } = services
  const envelope = envelopeOf(config.variant)
  const handleError = createErrorHandler({ envelope, log })
  const connections = new BrokenConnections({ envelope, ids, meter: metrics })
  const requestId = requestIdFrom(ids)
  const app: App = fastify({
    bodyLimit: SERVER_LIMITS.bodyLimit,
    routerOptions: SERVER_LIMITS.routerOptions,
    trustProxy: config.trustProxy.length > 0 ? trustedProxies(config.trustProxy) : false,
    genReqId: requestId,
    serverFactory: (handle) => createHttpServer(handle, { connections, requestId }),
    // While draining, requests on open connections are still served.
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    clientErrorHandler: connections.onClientError,
    // Fastify raises these errors before any hook runs, so the headers are set here.
    frameworkErrors: (error, request, reply) => {
      metrics.count('http_malformed_requests_total', { code: 'invalid_request' })
      setAnswerHeaders(request, reply)
      return handleError(error, request, reply)
    },
  })

  const routes = new KnownRoutes()
  const description = new ApiDescription({ envelope, version: VERSION, rateLimitHeaders: config.rateLimitHeaders })
  app.setValidatorCompiler(compileValidator)
  app.setErrorHandler(handleError)
  app.setNotFoundHandler(routes.handle)
  readJsonBodies(app)

  app.decorateRequest('principal', null)
  app.decorateRequest('chargedTier', null)
  app.decorateRequest('callbackProof', null)
  app.addHook('onRoute', (route) => {
    if (!route.config?.access) throw new Error(`Route ${route.method} ${route.url} declares no access`)
    routes.add(route)
    description.add(route)
  })
  releaseAtEnd(app)
  shedLoad(app, { ...services, envelope, meter: metrics })
  limitHandlers(app, services)
  app.addHook('onRequest', (request, reply, done) => {
    setAnswerHeaders(request, reply)
    done(faultOfHead(request.raw) ?? (services.loopbackOnly ? faultOfForeignHost(request.raw) : undefined))
  })
  const gate = { ...services, headerStyle: config.rateLimitHeaders, meter: metrics }
  app.addHook('onRequest', createGate(gate))
  boundPrincipals(app, services)
  boundBodies(app, services)
  app.addHook('preHandler', createBodyGate(gate))
  app.addHook('onRequest', (request, reply, done) => {
    // What a caller may read is the caller's: no shared cache keeps it, and the caller's own asks before using it again.
    const isRead = request.method === 'GET' || request.method === 'HEAD'
    if (request.principal && isRead) reply.header('cache-control', 'private, no-cache')
    const written = request.principal ? userActivity.record(request.principal) : undefined
    if (written) written.then(() => done(), done)
    else done()
  })
  app.addHook('onSend', (_request, reply, _payload, done) => {
    // Decided when the answer is sent: a request that arrived before the drain must not keep its connection either.
    if (readiness.draining) reply.header('connection', 'close')
    done()
  })
  // Closing waits for open connections, so streams must end first. Their clients reconnect to another node.
  app.addHook('preClose', () => services.streams.close())
  logRequests(app, log)
  countRequests(app, metrics)

  healthRoutes(app, readiness)
  metrics.gauge('build_info', () => [[{ version: VERSION, variant: config.variant, engine: services.db.engine }, 1]])
  metricsRoute(app, { metrics, isPublic: config.metricsPublic })
  openapiRoute(app, description)
  referencePageRoutes(app)
  projectRoutes(app, services)
  jobListRoutes(app, services)
  jobRoutes(app, services)
  await callbackRoutes(app, services)
  eventRoutes(app, services)
  deviceRoutes(app, services)
  notificationRoutes(app, services)
  const countRunning = (subject: string) => countUnfinished(services.db, subject)
  usageRoutes(app, { ...services, limitRuns: config.usageLimitRuns, countRunning })
  userRoutes(app, services)
  serviceAccountRoutes(app, services)
  await app.ready()
  return app
}

function setAnswerHeaders(request: FastifyRequest, reply: FastifyReply): void {
  reply.header('x-request-id', request.id).header('x-content-type-options', 'nosniff')
}
