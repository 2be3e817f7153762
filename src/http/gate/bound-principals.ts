import { principalId } from '../../auth/principal.ts'
import { ApiError } from '../../core/errors.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import type { UnderWay } from '../../limits/under-way.ts'
import type { App } from '../app-instance.ts'
import { whenAnswered } from '../server/request-end.ts'

/**
 * Answers 429, before the body is read, if the principal has too many requests in progress. Streams have a separate limit.
 * Add this hook after the gate.
 */
export function boundPrincipals(app: App, { underWay, meter }: { underWay: UnderWay; meter: Meter }): void {
  app.addHook('onRequest', (request, _reply, done) => {
    const { principal, method } = request
    if (principal === null || request.routeOptions.config.streams) return done()
    const kind = method === 'GET' || method === 'HEAD' ? 'read' : 'change'
    const leave = underWay.enter(`${principal.kind}:${principalId(principal)}`, kind)
    if (leave === null) {
      meter.count('requests_bounded_total', { bound: 'principal' })
      return done(new ApiError('rate_limit_exceeded', 'Too many requests', { headers: { 'retry-after': '1' } }))
    }
    whenAnswered(request, leave)
    done()
  })
}
