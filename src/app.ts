import { fileURLToPath } from 'node:url'
import fastify, { type FastifyReply, type FastifyRequest } from 'fastify'
import { auditRoutes } from './audit/audit-routes.ts'
import { eventRoutes } from './events/event-routes.ts'
import { streamResponse } from './events/event-schema.ts'
import type { App } from './http/app-instance.ts'
import { envelopeOf } from './http/envelope.ts'
import { createErrorHandler } from './http/error-handler.ts'
import { boundPrincipals } from './http/gate/bound-principals.ts'
import { createBodyGate, createGate } from './http/gate/gate.ts'
import { readJsonBodies } from './http/json-body.ts'
import { boundBodies } from './http/server/bound-bodies.ts'
import { BrokenConnections } from './http/server/client-error.ts'
import { Cors } from './http/server/cors.ts'
import { limitHandlers } from './http/server/handler-deadline.ts'
import { createHttpServer } from './http/server/http-server.ts'
import { readLateBodies } from './http/server/late-bodies.ts'
import { releaseAtEnd } from './http/server/request-end.ts'
import { faultOfForeignHost, faultOfHead } from './http/server/request-head.ts'
import { requestIdFrom } from './http/server/request-id.ts'
import { SERVER_LIMITS } from './http/server/server-limits.ts'
import { shedLoad } from './http/server/shed-load.ts'
import { traceRequests } from './http/server/trace-requests.ts'
import { KnownRoutes } from './http/unknown-route.ts'
import { compileValidator } from './http/validation.ts'
import { jobRoutes } from './jobs/api/job-routes.ts'
import { JobEvent, jobEventExample } from './jobs/api/job-schema.ts'
import { jobListRoutes } from './jobs/api/list-routes.ts'
import { toJobType } from './jobs/api/present-job.ts'
import { callbackRoutes } from './jobs/callbacks/callback-routes.ts'
import { countUnfinished } from './jobs/uncommon-jobs.ts'
import { trustedProxies } from './limits/client-address.ts'
import { operationRoutes } from './operations/operation-routes.ts'
import { consolePages } from './ops/console-pages.ts'
import { healthRoutes } from './ops/health-routes.ts'
import { metricsRoute } from './ops/metrics/metrics-route.ts'
import { countRequests } from './ops/metrics/request-metrics.ts'
import { ApiDescription, openapiRoute } from './ops/openapi/openapi-route.ts'
import { referencePageRoutes } from './ops/reference-page.ts'
import { logRequests } from './ops/request-log.ts'
import { settingsRoute } from './ops/settings-route.ts'
import { peopleRoutes } from './people/people-routes.ts'
import { projectRoutes } from './projects/project-routes.ts'
import { ProjectEvent } from './projects/project-schema.ts'
import { deliveryRoutes } from './push/delivery-routes.ts'
import { deviceRoutes } from './push/device-routes.ts'
import { notificationRoutes } from './push/notification-routes.ts'
import { serviceAccountRoutes } from './service-accounts/service-account-routes.ts'
import type { Services } from './services.ts'
import { effectiveSettings } from './settings.ts'
import { statsRoute } from './stats/stats-route.ts'
import { usageRoutes } from './usage/usage-routes.ts'
import { blockRoutes } from './users/block-routes.ts'
import { userRoutes } from './users/user-routes.ts'
import { VERSION } from './version.ts'

/** Builds the HTTP application: hooks first, then routes, in the order in which a request passes them. */
export async function buildApp(services: Services): Promise<App> {
  const { config, log, ids, readiness, userActivity, metrics } = services
  const envelope = envelopeOf(config.variant)
  const handleError = createErrorHandler({ envelope, log })
  const cors = new Cors({ origins: config.corsOrigins, allowLoopback: services.loopbackOnly ?? false })
  const connections = new BrokenConnections({ envelope, ids, cors, meter: metrics })
  const requestId = requestIdFrom(ids)
  const app: App = fastify({
    bodyLimit: SERVER_LIMITS.bodyLimit,
    routerOptions: SERVER_LIMITS.routerOptions,
    trustProxy: config.trustProxy.length > 0 ? trustedProxies(config.trustProxy) : false,
    genReqId: requestId,
    serverFactory: (handle) => createHttpServer(handle, { connections, requestId, cors, meter: metrics }),
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
  const description = new ApiDescription({
    envelope,
    version: VERSION,
    rateLimitHeaders: config.rateLimitHeaders,
    jobTypes: [...services.jobContext.types.values()].map(toJobType),
  })
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
  traceRequests(app, services.tracer)
  app.addHook('onRequest', (request, reply, done) => {
    setAnswerHeaders(request, reply)
    done(faultOfHead(request.raw) ?? (services.loopbackOnly ? faultOfForeignHost(request.raw) : undefined))
  })
  const gate = { ...services, blockedUsers: services.userStates, headerStyle: config.rateLimitHeaders, meter: metrics }
  app.addHook('onRequest', createGate(gate))
  boundPrincipals(app, { ...services, meter: metrics })
  boundBodies(app, { ...services, meter: metrics })
  app.addHook('preHandler', createBodyGate(gate))
  app.addHook('onRequest', (request, reply, done) => {
    // Answers are private: shared caches must not store them, and the client's cache must ask again before using them.
    const isRead = request.method === 'GET' || request.method === 'HEAD'
    if (request.principal && isRead) reply.header('cache-control', 'private, no-cache')
    const written = request.principal ? userActivity.record(request.principal) : undefined
    if (written) written.then(() => done(), done)
    else done()
  })
  app.addHook('onRequest', routes.refuseUnknown)
  app.addHook('onSend', (_request, reply, _payload, done) => {
    // Set when the answer is sent, so that a request that arrived before the drain also closes its connection.
    if (readiness.draining) reply.header('connection', 'close')
    done()
  })
  readLateBodies(app, services)
  // Closing waits for open connections, so streams must end first. Their clients reconnect to another node.
  app.addHook('preClose', async () => {
    await services.openStreams.close()
    await services.live.close()
  })
  logRequests(app, log)
  countRequests(app, metrics)

  healthRoutes(app, readiness)
  metrics.gauge('build_info', () => [[{ version: VERSION, variant: config.variant, engine: services.db.engine }, 1]])
  metricsRoute(app, { metrics, isPublic: config.metricsPublic })
  settingsRoute(app, () => effectiveSettings(config))
  openapiRoute(app, description)
  referencePageRoutes(app)
  if (config.console) {
    const { issuerUrl } = config
    const settings = { issuerUrl, ...config.console, dev: services.consoleDev ?? null }
    consolePages(app, { folder: fileURLToPath(new URL('../console/dist', import.meta.url)), settings })
  }
  projectRoutes(app, services)
  jobListRoutes(app, services)
  jobRoutes(app, services)
  await callbackRoutes(app, services)
  const eventsResponse = streamResponse('StreamEvent', [JobEvent, ProjectEvent], jobEventExample)
  eventRoutes(app, { ...services, eventsResponse })
  deviceRoutes(app, services)
  notificationRoutes(app, services)
  const countRunning = (subject: string) => countUnfinished(services.db, subject)
  usageRoutes(app, { ...services, limitRuns: config.usageLimitRuns, countRunning })
  userRoutes(app, services)
  blockRoutes(app, services)
  peopleRoutes(app, services)
  serviceAccountRoutes(app, services)
  auditRoutes(app, services)
  operationRoutes(app, services)
  deliveryRoutes(app, services)
  statsRoute(app, services)
  await app.ready()
  return app
}

function setAnswerHeaders(request: FastifyRequest, reply: FastifyReply): void {
  reply.header('x-request-id', request.id).header('x-content-type-options', 'nosniff')
}
