import { Type } from '../../core/schema.ts'
import type { App } from '../../http/app-instance.ts'
import { open, scopes } from '../../http/gate/access.ts'
import { METRICS_CONTENT_TYPE } from './metric-text.ts'
import type { Metrics } from './metrics.ts'

const getMetrics = {
  operationId: 'getMetrics',
  tags: ['Operations'],
  summary: 'How is it doing?',
  description: 'Prometheus’ text format: what happened since this process began, and how things stand.',
  response: {
    200: {
      description: 'The metrics',
      content: { 'text/plain': { schema: Type.String() } },
    },
  },
}

/** For admins, or for everybody and charged to nobody, where the network decides who gets here. */
export function metricsRoute(app: App, { metrics, isPublic }: { metrics: Metrics; isPublic: boolean }): void {
  const access = isPublic ? open('METRICS_PUBLIC is set', { charged: false }) : scopes('admin:*')

  // Overload is when it is looked at.
  const underOverload = 'never'
  const config = { access, underOverload, refusals: { service_unavailable: 'The request took too long' } } as const

  app.get('/metrics', { config, schema: getMetrics }, async (_request, reply) => {
    reply.type(METRICS_CONTENT_TYPE).header('cache-control', 'no-store')
    return metrics.render()
  })
}
