import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { ours } from './authed-read.ts'
import { compare, type Outcome } from './comparison.ts'
import type { BenchEnvironment } from './environment.ts'

/** GET /v1/projects by 500 users: the service that traces every request, compared with one that traces nothing. */
export async function compareTracing(
  environment: BenchEnvironment,
  pace: { rounds: number; roundMs: number; warmUpMs: number },
): Promise<Outcome<'untraced'>> {
  const collector = createServer((request, response) => {
    request.resume().on('end', () => response.end('{}'))
  })
  collector.listen(0, '127.0.0.1')
  await once(collector, 'listening')
  const untraced = ours(environment)
  const { port } = collector.address() as AddressInfo
  const traced = { ...untraced, env: { ...untraced.env, OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${port}` } }
  try {
    return await compare({
      ours: traced,
      baselines: new Map([['untraced' as const, untraced]]),
      requests: environment.distinctPageRequests,
      essence: ({ data, has_more }) => ({ data, has_more }),
      ...pace,
    })
  } finally {
    collector.closeAllConnections()
    collector.close()
  }
}
