import type { Meter } from '../../core/metrics/meter.ts'
import type { App } from '../../http/app-instance.ts'

/** The methods that get their own label. All others share one, so that clients cannot create new series. */
const METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])

/**
 * Counts and times every answer by its route's pattern, so that the number of series does not depend on the requested
 * paths.
 */
export function countRequests(app: App, meter: Meter): void {
  app.addHook('onResponse', (request, reply, done) => {
    const method = METHODS.has(request.method) ? request.method : 'other'
    // Read once: Fastify builds this object again on each access.
    const { url = 'unknown', config } = request.routeOptions
    const route = request.is404 ? 'unknown' : url
    const { statusCode } = reply
    meter.count('http_requests_total', { method, route, status: String(statusCode) })
    // A stream lasts until its client disconnects, so its duration says nothing about speed.
    const streamed = statusCode === 200 && config.streams === true
    if (!streamed) meter.observe('http_request_duration_seconds', reply.elapsedTime / 1_000, { method, route })
    done()
  })
}
