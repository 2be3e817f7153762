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
  summary: 'May it get traffic?',
  description: 'Names each dependency. 503 while one that is needed is down, and while the process drains.',
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
              database: { state: 'ok', detail: null },
              runtime: { state: 'degraded', detail: 'RUNTIME_URL is not set' },
            },
          },
        ],
      },
    ),
  },
}

export function healthRoutes(app: App, readiness: Readiness): void {
  const probe = { access: open('load balancer probe', { charged: false }), underOverload: 'never' as const }

  // A compiled serializer would make the very first answer wait, and save nothing on one so small.
  const serializerCompiler = () => JSON.stringify

  app.get('/healthz', { config: probe, schema: healthz, serializerCompiler }, () => ({ status: 'ok' as const }))

  const telling = { ...probe, refusals: { service_unavailable: 'Not ready: database down' } }
  app.get('/readyz', { config: telling, schema: readyz, serializerCompiler }, async () => {
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
