import { principalId } from '../../auth/principal.ts'
import { ApiError } from '../../core/errors.ts'
import type { UnderWay } from '../../limits/under-way.ts'
import type { App } from '../app-instance.ts'
import { whenAnswered } from '../server/request-end.ts'

/**
 * Refuses a principal that has too many requests under way with 429, before the body is read. Streams have a bound of their
 * own. To be added after the gate.
 */
export function boundPrincipals(app: App, { underWay }: { underWay: UnderWay }): void {
  app.addHook('onRequest', (request, _reply, done) => {
    const { principal, method } = request
    if (principal === null || request.routeOptions.config.streams) return done()
    const kind = method === 'GET' || method === 'HEAD' ? 'read' : 'change'
    const leave = underWay.enter(`${principal.kind}:${principalId(principal)}`, kind)
    if (leave === null) {
      return done(new ApiError('rate_limit_exceeded', 'Too many requests', { headers: { 'retry-after': '1' } }))
    }
    whenAnswered(request, leave)
    done()
  })
}
