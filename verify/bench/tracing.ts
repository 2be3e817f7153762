import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { oursSpec, pageEssence } from './authed-read.ts'
import { compare, type Outcome, type Pace, warmUp } from './comparison.ts'
import type { BenchEnvironment } from './environment.ts'
import { type Server, startServer } from './server.ts'

/** GET /v1/projects by 500 users: the service that traces every request, compared with one that traces nothing. */
export async function compareTracing(
  untraced: Server,
  environment: BenchEnvironment,
  pace: Pace,
): Promise<Outcome<'untraced'>> {
  const collector = createServer((request, response) => {
    request.resume().on('end', () => response.end('{}'))
  })
  collector.listen(0, '127.0.0.1')
  await once(collector, 'listening')
  const { port } = collector.address() as AddressInfo
  const spec = oursSpec(environment)
  const env = { ...spec.env, OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${port}` }
  const requests = environment.distinctPageRequests
  let traced: Server | undefined
  try {
    traced = await startServer({ ...spec, env })
    await warmUp(new Map([traced, untraced].map((server) => [server, requests])), pace)
    const baselines = new Map([['untraced', untraced] as const])
    return await compare({ ours: traced, baselines, requests, essence: pageEssence, pace })
  } finally {
    await traced?.stop()
    collector.closeAllConnections()
    collector.close()
  }
}
