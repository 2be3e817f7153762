import type { Log } from '../core/log.ts'
import type { App } from '../http/app-instance.ts'

/** Writes one line per request, except for shed ones. It has the route's pattern, never the URL: a query may carry a secret. */
export function logRequests(app: App, log: Log): void {
  app.addHook('onResponse', (request, reply, done) => {
    if (request.wasShed) return done()
    log.info(
      {
        requestId: request.id,
        method: request.method,
        route: request.is404 ? null : request.routeOptions.url,
        status: reply.statusCode,
        ms: Math.round(reply.elapsedTime * 10) / 10,
        tier: request.chargedTier,
      },
      'request.completed',
    )
    done()
  })
}
