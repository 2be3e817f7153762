import { UnavailableError } from '../core/errors.ts'
import { Type } from '../core/schema.ts'
import type { App } from '../http/app-instance.ts'
import { open } from '../http/gate/access.ts'
import type { DependencyReport } from './dependency-checks.ts'
import type { Readiness } from './readiness.ts'

const tags = ['Operations']

const healthz = {
  operationId: 'getHealth',
  tags,
  summary: 'Is the process alive?',
  response: { 200: Type.Object({ status: Type.Literal('ok') }, { title: 'Health', examples: [{ status: 'ok' }] }) },
}

const readyz = {
  operationId: 'getReadiness',
  tags,
  summary: 'Is the service ready for traffic?',
  description: 'Reports each dependency. 503 while a required one is down, and while the process shuts down.',
  response: {
    200: Type.Object(
      {
        status: Type.Literal('ready'),
        checks: Type.Record(
          Type.String(),
          Type.Object({
            state: Type.Unsafe<string>({ type: 'string', enum: ['ok', 'degraded', 'down'] }),
            detail: Type.Unsafe<string | null>({ type: ['string', 'null'] }),
          }),
        ),
      },
      {
        title: 'Readiness',
        examples: [
          {
            status: 'ready',
            checks: {
              database: { state: 'ok', detail: 'postgres' },
              runtime: { state: 'degraded', detail: 'not configured: jobs cannot be started' },
            },
          },
        ],
      },
    ),
  },
}

/** `/healthz` answers while the process runs; `/readyz` only while it can serve requests. */
export function healthRoutes(app: App, readiness: Readiness): void {
  const probe = { access: open('load balancer probe', { charged: false }), underOverload: 'never' as const }

  // Compiling a serializer would delay the first answer, and saves nothing on such a small one.
  const serializerCompiler = () => JSON.stringify

  app.get('/healthz', { config: probe, schema: healthz, serializerCompiler }, () => ({ status: 'ok' as const }))

  const readinessProbe = { ...probe, refusals: { service_unavailable: 'Not ready: database down' } }
  app.get('/readyz', { config: readinessProbe, schema: readyz, serializerCompiler }, async () => {
    if (readiness.draining) throw new UnavailableError('Not ready: shutting down')
    const checks = await readiness.report()
    if (Object.values(checks).some((check) => check.state === 'down')) {
      throw new UnavailableError(`Not ready: ${Object.entries(checks).map(describe).join(', ')}`)
    }
    return { status: 'ready' as const, checks }
  })
}

function describe([name, { state, detail }]: [string, DependencyReport]): string {
  return detail === null ? `${name} ${state}` : `${name} ${state} (${detail})`
}
