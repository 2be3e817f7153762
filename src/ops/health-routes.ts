import { Type } from 'typebox'
import { toRfc3339 } from '../core/clock.ts'
import type { App } from '../http/app-instance.ts'
import { publicAccess } from '../http/gate/access.ts'
import { nullableTextField, nullableTimeField } from '../http/schemas.ts'
import type { DependencyReport } from './dependency-checks.ts'
import type { Readiness, ReadinessCheck } from './readiness.ts'

const tags = ['Operations']

const healthz = {
  operationId: 'getHealth',
  tags,
  summary: 'Is the process alive?',
  response: {
    200: Type.Object(
      { status: Type.Literal('ok', { description: 'The process runs.' }) },
      { title: 'Health', examples: [{ status: 'ok' }] },
    ),
  },
}

function readinessOf(status: 'ready' | 'not_ready', database: object) {
  const checks = Type.Record(
    Type.String(),
    Type.Object(
      {
        state: Type.Unsafe<DependencyReport['state']>({
          title: 'DependencyState',
          type: 'string',
          enum: ['ok', 'degraded', 'down'],
          description: '`degraded`: the service works without it, with limits.',
        }),
        detail: nullableTextField('The problem, or a description of the dependency.'),
        since: nullableTimeField('When this process first saw the problem; null while the state is `ok`.'),
      },
      { title: 'DependencyReport' },
    ),
    { description: 'Each dependency by its name.' },
  )
  const since = '2026-01-31T12:00:00.000Z'
  const runtime = { state: 'degraded', detail: 'not configured: jobs cannot be started', since }
  return Type.Object(
    { status: Type.Literal(status, { description: 'Whether the service accepts traffic.' }), checks },
    {
      title: status === 'ready' ? 'Readiness' : 'NotReady',
      description:
        status === 'ready' ? 'Ready.' : 'Not ready. Unlike other errors, the body has the same form as a success.',
      examples: [{ status, checks: { database, runtime } }],
    },
  )
}

const readyz = {
  operationId: 'getReadiness',
  tags,
  summary: 'Is the service ready for traffic?',
  description:
    'Reports each dependency; the report is at most a second old. 503 while a required dependency is down, and while the process shuts down.',
  response: {
    200: readinessOf('ready', { state: 'ok', detail: 'postgres', since: null }),
    503: readinessOf('not_ready', {
      state: 'down',
      detail: 'The database is unavailable',
      since: '2026-01-31T12:00:00.000Z',
    }),
  },
}

/** `/healthz` answers while the process runs; `/readyz` only while it can serve requests. */
export function healthRoutes(app: App, readiness: Readiness): void {
  const probe = { access: publicAccess('load balancer probe', { charged: false }), underOverload: 'never' as const }

  app.get('/healthz', { config: probe, schema: healthz }, () => ({ status: 'ok' as const }))

  app.get('/readyz', { config: probe, schema: readyz }, async (_request, reply) => {
    const { ready, checks: found } = await readiness.report()
    const checks = Object.fromEntries(Object.entries(found).map(([name, check]) => [name, toCheck(check)]))
    if (ready) return { status: 'ready' as const, checks }
    return reply.code(503).header('retry-after', '1').send({ status: 'not_ready', checks })
  })
}

function toCheck({ sinceMs, ...report }: ReadinessCheck) {
  return { ...report, since: sinceMs === null ? null : toRfc3339(sinceMs) }
}
