import type { Meter } from '../../core/metrics/meter.ts'
import type { App } from '../../http/app-instance.ts'

/** What routes here listen to; anything else a client may make up counts as one. */
const METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])

/** Counts and times every answer under its route's pattern: however many paths are tried, the series stay few. */
export function countRequests(app: App, meter: Meter): void {
  app.addHook('onResponse', (request, reply, done) => {
    const method = METHODS.has(request.method) ? request.method : 'other'
    // Fastify puts these together anew each time they are asked for.
    const { url = 'unknown', config } = request.routeOptions
    const route = request.is404 ? 'unknown' : url
    const { statusCode } = reply
    meter.count('http_requests_total', { method, route, status: String(statusCode) })
    // A stream lasts as long as somebody listens, which says nothing about how fast it was.
    const streamed = statusCode === 200 && config.streams === true
    if (!streamed) meter.observe('http_request_duration_seconds', reply.elapsedTime / 1_000, { method, route })
    done()
  })
}
