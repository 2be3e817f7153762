import { Type } from 'typebox'
import { OPERATIONS_SCOPE } from '../../auth/scopes.ts'
import type { App } from '../../http/app-instance.ts'
import { publicAccess, scopes } from '../../http/gate/access.ts'
import { METRICS_CONTENT_TYPE } from './metric-text.ts'
import type { Metrics } from './metrics.ts'

const getMetrics = {
  operationId: 'getMetrics',
  tags: ['Operations'],
  summary: 'Metrics for Prometheus',
  description: 'Prometheus’ text format: counters since this process started, and current values.',
  response: {
    200: {
      description: 'The metrics',
      content: { 'text/plain': { schema: Type.String() } },
    },
  },
}

interface MetricsRouteOptions {
  metrics: Metrics
  isPublic: boolean
  /** The labels of `build_info`. */
  build: { version: string; variant: string; engine: string }
}

/** Needs `read:operations`, unless METRICS_PUBLIC is set, because then the network controls the access. */
export function metricsRoute(app: App, { metrics, isPublic, build }: MetricsRouteOptions): void {
  metrics.gauge('build_info', () => [[build, 1]])
  const access = isPublic ? publicAccess('METRICS_PUBLIC is set', { charged: false }) : scopes(OPERATIONS_SCOPE)

  // Never shed: operators need metrics during overload.
  const underOverload = 'never'
  const config = { access, underOverload, refusals: { service_unavailable: 'The request took too long' } } as const

  app.get('/metrics', { config, schema: getMetrics }, async (_request, reply) => {
    reply.type(METRICS_CONTENT_TYPE).header('cache-control', 'no-store')
    return metrics.render()
  })
}
