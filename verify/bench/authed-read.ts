import { compare, type Outcome, type Pace, warmUp } from './comparison.ts'
import type { BenchEnvironment } from './environment.ts'
import { installPackages } from './packages.ts'
import { type Server, type ServerSpec, serviceSpec, startServer } from './server.ts'

export const BASELINES = ['bare', 'express'] as const

export type Baseline = (typeof BASELINES)[number]

/** The servers count every request against this limit, but never reach it. */
const UNREACHABLE = '1000000000'

/** Started and warmed up once, for all comparisons of reads. */
export interface ReadServers {
  ours: Server
  bare: Server
  /** Null if no comparison wants it. */
  express: Server | null
  stop(): Promise<void>
}

export async function startReadServers(
  environment: BenchEnvironment,
  { withExpress, pace }: { withExpress: boolean; pace: Pace },
): Promise<ReadServers> {
  if (withExpress) installPackages('express')
  const started: Server[] = []
  const start = async (spec: ServerSpec): Promise<Server> => {
    const server = await startServer(spec)
    started.push(server)
    return server
  }
  const stop = async () => {
    for (const server of started) await server.stop()
  }
  try {
    const servers = {
      ours: await start(oursSpec(environment)),
      bare: await start(bareSpec(environment)),
      express: withExpress ? await start(expressSpec(environment)) : null,
    }
    const { sharedPageRequests, distinctPageRequests, jobRequests } = environment
    const pages = [...sharedPageRequests, ...distinctPageRequests]
    // The Express service has no jobs.
    await warmUp(
      new Map(started.map((server) => [server, server === servers.express ? pages : [...pages, ...jobRequests]])),
      pace,
    )
    return { ...servers, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** GET /v1/projects by 500 users who read the same page: the service compared with servers that give the same response. */
export function compareSharedReads(
  servers: ReadServers,
  { sharedPageRequests: requests }: BenchEnvironment,
  { wanted, pace }: { wanted: readonly Baseline[]; pace: Pace },
): Promise<Outcome<Baseline>> {
  const baselines = new Map<Baseline, Server>()
  for (const name of wanted) {
    const server = servers[name]
    if (server) baselines.set(name, server)
  }
  return compare({ ours: servers.ours, baselines, requests, essence: pageEssence, pace })
}

/** GET /v1/projects by the same 500 users, each a page that no other user reads, compared with a bare server. */
export function compareDistinctReads(
  { ours, bare }: ReadServers,
  { distinctPageRequests: requests }: BenchEnvironment,
  pace: Pace,
): Promise<Outcome<'bare'>> {
  return compare({ ours, baselines: new Map([['bare', bare]]), requests, essence: pageEssence, pace })
}

/** GET /jobs/{id} of a finished job by the same 500 users, each of their own job, compared with a bare server. */
export function compareJobReads(
  { ours, bare }: ReadServers,
  { jobRequests: requests }: BenchEnvironment,
  pace: Pace,
): Promise<Outcome<'bare'>> {
  return compare({ ours, baselines: new Map([['bare', bare]]), requests, essence: (job) => job, pace })
}

export function pageEssence({ data, has_more }: Readonly<Record<string, unknown>>): unknown {
  return { data, has_more }
}

/** Production mode would refuse the issuer on loopback. */
export function oursSpec({ databaseUrl, issuerUrl }: BenchEnvironment): ServerSpec {
  return serviceSpec({
    NODE_ENV: 'development',
    DATABASE_URL: databaseUrl,
    ISSUER_URL: issuerUrl,
    RATE_LIMIT_AUTHENTICATED: UNREACHABLE,
  })
}

function bareSpec({ databaseUrl }: BenchEnvironment): ServerSpec {
  return { script: './servers/bare-server.ts', env: { NODE_ENV: 'production', DATABASE_URL: databaseUrl } }
}

function expressSpec({ databaseUrl, issuerUrl }: BenchEnvironment): ServerSpec {
  const env = {
    NODE_ENV: 'production',
    DATABASE_URL: databaseUrl,
    ISSUER_URL: issuerUrl,
    RATE_LIMIT: UNREACHABLE,
  }
  return { script: './express/server.js', env }
}
