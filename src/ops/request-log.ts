import { type Principal, principalId } from '../auth/principal.ts'
import type { Log } from '../core/log.ts'
import type { App } from '../http/app-instance.ts'

/**
 * Writes one line per request, except for shed ones, with the caller's `sub` or key id, and with the code of an error. The line has the route's pattern,
 * never the URL, because a query may contain a secret.
 */
export function logRequests(app: App, log: Log): void {
  app.addHook('onResponse', (request, reply, done) => {
    if (request.wasShed) return done()
    log.info(
      {
        requestId: request.id,
        method: request.method,
        route: request.is404 ? null : request.routeOptions.url,
        status: reply.statusCode,
        errorCode: request.errorCode,
        ms: Math.round(reply.elapsedTime * 10) / 10,
        tier: request.chargedTier,
        caller: callerId(request.principal),
      },
      'request.completed',
    )
    done()
  })
}

function callerId(principal: Principal | null): string | null {
  if (principal === null) return null
  return principal.kind === 'service' ? principal.keyId : principalId(principal)
}
