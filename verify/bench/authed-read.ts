import { compare, type Outcome } from './comparison.ts'
import type { World } from './environment.ts'
import { installExpress } from './express-install.ts'
import type { ServerSpec } from './server.ts'

export const OPPONENTS = ['bare', 'express'] as const

export type Opponent = (typeof OPPONENTS)[number]

/** The servers count every request against a limit, but never refuse one. */
const UNREACHABLE = '1000000000'

/** GET /v1/projects by 500 users through everything `serve` does, against servers that answer the same. */
export function compareAuthedReads(
  world: World,
  { opponents, ...pace }: { opponents: readonly Opponent[]; rounds: number; roundMs: number; warmUpMs: number },
): Promise<Outcome<Opponent>> {
  if (opponents.includes('express')) installExpress()
  const specs: Record<Opponent, ServerSpec> = { bare: bare(world), express: express(world) }
  return compare({
    ours: service(world),
    opponents: new Map(opponents.map((name) => [name, specs[name]])),
    requests: world.listRequests,
    essence: ({ data, has_more }) => ({ data, has_more }),
    ...pace,
  })
}

/** GET /jobs/{id} of a finished job by the same 500 users, each of a job of its own, against a bare server. */
export function compareJobReads(
  world: World,
  pace: { rounds: number; roundMs: number; warmUpMs: number },
): Promise<Outcome<'bare'>> {
  return compare({
    ours: service(world),
    opponents: new Map([['bare', bare(world)]]),
    requests: world.jobRequests,
    essence: (job) => job,
    ...pace,
  })
}

/** The real thing, as anyone starts it; the issuer on loopback is why it is not production. */
function service({ databaseUrl, issuerUrl }: World): ServerSpec {
  return {
    script: '../../bin/project-api.js',
    args: ['serve'],
    env: {
      NODE_ENV: 'development',
      DATABASE_URL: databaseUrl,
      ISSUER_URL: issuerUrl,
      RATE_LIMIT_AUTHENTICATED: UNREACHABLE,
    },
  }
}

function bare({ databaseUrl }: World): ServerSpec {
  return { script: './servers/bare-server.ts', env: { NODE_ENV: 'production', DATABASE_URL: databaseUrl } }
}

function express({ databaseUrl, issuerUrl }: World): ServerSpec {
  const env = {
    NODE_ENV: 'production',
    DATABASE_URL: databaseUrl,
    ISSUER_URL: issuerUrl,
    RATE_LIMIT: UNREACHABLE,
  }
  return { script: './express/server.js', env }
}
