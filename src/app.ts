import { auditRoutes } from './audit/audit-routes.ts'
import { isCognitoIssuer } from './auth/issuer/cognito.ts'
import { type Config, effectiveSettings, requiredAudiences } from './config.ts'
import { eventRoutes } from './events/event-routes.ts'
import { admitRequests } from './http/admission/admit-requests.ts'
import type { App } from './http/app-instance.ts'
import { type Envelope, envelopeOf } from './http/envelope.ts'
import { forbidSharedCaching } from './http/etag.ts'
import { guardRequests } from './http/gate/gate.ts'
import { readJsonBodies } from './http/json-body.ts'
import { createFramework } from './http/server/http-server.ts'
import { checkHeads } from './http/server/request-head.ts'
import { traceRequests } from './http/server/trace-requests.ts'
import { refuseUnknownRoutes } from './http/unknown-route.ts'
import { conversationRoutes } from './jobs/api/conversation-routes.ts'
import { jobRoutes } from './jobs/api/job-routes.ts'
import { JobEvent, jobEventExample } from './jobs/api/job-schema.ts'
import { jobListRoutes } from './jobs/api/list-routes.ts'
import { toJobType } from './jobs/api/present-job.ts'
import { callbackRoutes } from './jobs/callbacks/callback-routes.ts'
import { countUnfinished } from './jobs/uncommon-jobs.ts'
import { operationRoutes } from './operations/operation-routes.ts'
import { recoverRoute } from './operations/recover-webhooks.ts'
import { healthRoutes } from './ops/health-routes.ts'
import { metricsRoute } from './ops/metrics/metrics-route.ts'
import { countRequests } from './ops/metrics/request-metrics.ts'
import { ApiDescription, openapiRoute } from './ops/openapi/openapi-route.ts'
import { consolePages } from './ops/pages/console-pages.ts'
import { findSignIn } from './ops/pages/console-sign-in.ts'
import { referencePageRoutes } from './ops/pages/reference-page.ts'
import { rootPage } from './ops/pages/root-page.ts'
import { closeWhileDraining } from './ops/readiness.ts'
import { logRequests } from './ops/request-log.ts'
import { settingsRoute } from './ops/settings-route.ts'
import { peopleRoutes } from './people/people-routes.ts'
import { projectRoutes } from './projects/project-routes.ts'
import { ProjectEvent } from './projects/project-schema.ts'
import { deliveryRoutes } from './push/api/delivery-routes.ts'
import { deviceRoutes } from './push/api/device-routes.ts'
import { notificationRoutes } from './push/api/notification-routes.ts'
import { serviceAccountRoutes } from './service-accounts/service-account-routes.ts'
import type { Services } from './services.ts'
import { callersRoute } from './stats/callers-route.ts'
import { statsRoute } from './stats/stats-route.ts'
import { usageRoutes } from './usage/usage-routes.ts'
import { blockRoutes } from './users/block-routes.ts'
import { limitRoutes, UsageEvent } from './users/limit-routes.ts'
import { recordActivity } from './users/user-activity.ts'
import { userRoutes } from './users/user-routes.ts'
import { VERSION } from './version.ts'
import { webhookDeliveryRoutes } from './webhooks/api/delivery-routes.ts'
import { webhookEndpointRoutes } from './webhooks/api/endpoint-routes.ts'
import { WebhookEvent } from './webhooks/api/endpoint-schema.ts'

const EVENT_KINDS = [JobEvent, ProjectEvent, UsageEvent, WebhookEvent]

/** Builds the HTTP application: hooks first, then routes, in the order in which a request passes them. */
export async function buildApp(services: Services): Promise<App> {
  const { config, metrics } = services
  const build = { version: VERSION, variant: config.variant, engine: services.db.engine }
  const shared = { ...services, envelope: envelopeOf(config.variant), meter: metrics }
  const app = createFramework({ ...shared, trustProxy: config.trustProxy, corsOrigins: config.corsOrigins })
  const description = describeApi(app, shared)

  readJsonBodies(app)
  admitRequests(app, shared)
  traceRequests(app, services.tracer)
  checkHeads(app, shared)
  guardRequests(app, { ...shared, blockedUsers: services.userStates, headerStyle: config.rateLimitHeaders })
  forbidSharedCaching(app)
  recordActivity(app, shared)
  refuseUnknownRoutes(app)
  closeWhileDraining(app, shared)
  endStreamsBeforeClose(app, services)
  logRequests(app, services.log)
  countRequests(app, metrics)

  healthRoutes(app, services.readiness)
  metricsRoute(app, { metrics, isPublic: config.metricsPublic, build })
  settingsRoute(app, () => effectiveSettings(config))
  openapiRoute(app, description)
  rootPage(app, { hasConsole: config.console !== null })
  referencePageRoutes(app)
  if (config.console) addConsole(app, services, config.console)
  projectRoutes(app, { ...services, maxProjects: config.maxProjects })
  jobListRoutes(app, services)
  jobRoutes(app, services)
  conversationRoutes(app, services)
  await callbackRoutes(app, services)
  eventRoutes(app, { ...services, events: { kinds: EVENT_KINDS, example: jobEventExample } })
  deviceRoutes(app, services)
  notificationRoutes(app, services)
  usageRoutes(app, { ...services, limitRuns: config.usageLimitRuns, countRunning: countUnfinished })
  userRoutes(app, services)
  blockRoutes(app, services)
  const typeNames = [...services.jobContext.types.keys()]
  limitRoutes(app, { ...services, limitRuns: config.usageLimitRuns, typeNames })
  peopleRoutes(app, services)
  serviceAccountRoutes(app, services)
  auditRoutes(app, services)
  operationRoutes(app, services)
  deliveryRoutes(app, services)
  webhookEndpointRoutes(app, { ...services, log: services.jobContext.log, typeNames })
  webhookDeliveryRoutes(app, services)
  recoverRoute(app, services)
  statsRoute(app, services)
  callersRoute(app, services)
  await app.ready()
  return app
}

function addConsole(app: App, services: Services, { authUrl, ...client }: NonNullable<Config['console']>): void {
  const { config, discovery, consoleDev: dev = null } = services
  const { issuerUrl } = config
  // Auth0 issues a token for an API only if the sign-in names it. Cognito has no such parameter.
  const audience = isCognitoIssuer(issuerUrl) ? null : (requiredAudiences(config)?.[0] ?? null)
  const findAddresses = () => findSignIn({ issuerUrl, authUrl, discovery })
  consolePages(app, { settings: { issuerUrl, ...client, audience, dev }, findAddresses })
}

function describeApi(app: App, { envelope, config, jobContext }: Services & { envelope: Envelope }): ApiDescription {
  const jobTypes = [...jobContext.types.values()].map(toJobType)
  return new ApiDescription(app, { envelope, version: VERSION, rateLimitHeaders: config.rateLimitHeaders, jobTypes })
}

/** Closing waits for open connections, so streams must end first. Their clients reconnect to another node. */
function endStreamsBeforeClose(app: App, { openStreams, live }: Services): void {
  app.addHook('preClose', async () => {
    await openStreams.close()
    await live.close()
  })
}
