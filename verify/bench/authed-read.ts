import { compare, type Outcome } from './comparison.ts'
import type { BenchEnvironment } from './environment.ts'
import { installPackages } from './packages.ts'
import { type ServerSpec, serviceSpec } from './server.ts'

export const BASELINES = ['bare', 'express'] as const

export type Baseline = (typeof BASELINES)[number]

/** The servers count every request against this limit, but never reach it. */
const UNREACHABLE = '1000000000'

/** GET /v1/projects by 500 users who read the same page: the service compared with servers that give the same response. */
export function compareSharedReads(
  environment: BenchEnvironment,
  { baselines, ...pace }: { baselines: readonly Baseline[]; rounds: number; roundMs: number; warmUpMs: number },
): Promise<Outcome<Baseline>> {
  if (baselines.includes('express')) installPackages('express')
  const specs: Record<Baseline, ServerSpec> = { bare: bare(environment), express: express(environment) }
  return compare({
    ours: ours(environment),
    baselines: new Map(baselines.map((name) => [name, specs[name]])),
    requests: environment.sharedPageRequests,
    essence: ({ data, has_more }) => ({ data, has_more }),
    ...pace,
  })
}

/** GET /v1/projects by the same 500 users, each a page that no other user reads, compared with a bare server. */
export function compareDistinctReads(
  environment: BenchEnvironment,
  pace: { rounds: number; roundMs: number; warmUpMs: number },
): Promise<Outcome<'bare'>> {
  return compare({
    ours: ours(environment),
    baselines: new Map([['bare', bare(environment)]]),
    requests: environment.distinctPageRequests,
    essence: ({ data, has_more }) => ({ data, has_more }),
    ...pace,
  })
}

/** GET /jobs/{id} of a finished job by the same 500 users, each of their own job, compared with a bare server. */
export function compareJobReads(
  environment: BenchEnvironment,
  pace: { rounds: number; roundMs: number; warmUpMs: number },
): Promise<Outcome<'bare'>> {
  return compare({
    ours: ours(environment),
    baselines: new Map([['bare', bare(environment)]]),
    requests: environment.jobRequests,
    essence: (job) => job,
    ...pace,
  })
}

/** Production mode would refuse the issuer on loopback. */
export function ours({ databaseUrl, issuerUrl }: BenchEnvironment): ServerSpec {
  return serviceSpec({
    NODE_ENV: 'development',
    DATABASE_URL: databaseUrl,
    ISSUER_URL: issuerUrl,
    RATE_LIMIT_AUTHENTICATED: UNREACHABLE,
  })
}

function bare({ databaseUrl }: BenchEnvironment): ServerSpec {
  return { script: './servers/bare-server.ts', env: { NODE_ENV: 'production', DATABASE_URL: databaseUrl } }
}

function express({ databaseUrl, issuerUrl }: BenchEnvironment): ServerSpec {
  const env = {
    NODE_ENV: 'production',
    DATABASE_URL: databaseUrl,
    ISSUER_URL: issuerUrl,
    RATE_LIMIT: UNREACHABLE,
  }
  return { script: './express/server.js', env }
}
