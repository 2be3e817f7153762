import { type AgentRuntime, startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import type { MintRequest } from '../../src/sandbox/identity-provider/token-mint.ts'
import { type SandboxPushProvider, startPushProvider } from '../../src/sandbox/push-provider/push-provider.ts'
import { type Balancer, startBalancer } from '../../verify/torture/cluster/balancer.ts'
import type { Target } from '../../verify/torture/cluster/fault-proxy.ts'
import type { ProgramOptions, Settings } from './program.ts'
import { type Served, sharedIssuer, startServe } from './served.ts'
import { sharedPostgresDatabase, sharedRedis } from './services.ts'
import { until } from './until.ts'

const JOB_TYPES_FILE = new URL('../../job-types.json', import.meta.url).pathname

/** One of the two nodes: its address behind the balancer stays the same when its process is replaced. */
export class NodePlace implements Target {
  readonly name: 'A' | 'B'
  readonly #settings: Settings
  #served: Served

  constructor(name: 'A' | 'B', { settings, served }: { settings: Settings; served: Served }) {
    this.name = name
    this.#settings = settings
    this.#served = served
  }

  get served(): Served {
    return this.#served
  }

  get url(): string {
    return this.#served.url
  }

  /** Starts a process with the same settings, of this checkout unless `main` is given. The old process must have ended. */
  async startAgain(release: Pick<ProgramOptions, 'main'> = {}): Promise<void> {
    this.#served = await startServe({ settings: this.#settings, ...release })
  }
}

export interface TwoNodes {
  a: NodePlace
  b: NodePlace
  /** Distributes requests and callbacks to both nodes. */
  balancer: Balancer
  runtime: AgentRuntime
  push: SandboxPushProvider
  /** The address of their database. */
  databaseUrl: string
  token(request: MintRequest): string
  close(): Promise<void>
}

/** Variant A and variant B as two processes on one PostgreSQL and one Redis, ready, behind one balancer. */
export async function startTwoNodes(settings: Settings = {}): Promise<TwoNodes> {
  const [issuer, redis, database, runtime, push, balancer] = await Promise.all([
    sharedIssuer(),
    sharedRedis(),
    sharedPostgresDatabase(),
    startAgentRuntime(),
    startPushProvider(),
    startBalancer(),
  ])
  const common: Settings = {
    DATABASE_URL: database.url,
    REDIS_URL: redis.url,
    PUBLIC_URL: balancer.url,
    RUNTIME_URL: runtime.url,
    JOB_TYPES_FILE,
    WEBHOOK_SECRET: 'a-secret-of-the-runtime',
    PUSH_PROJECT_ID: push.credentials.projectId,
    PUSH_CLIENT_EMAIL: push.credentials.clientEmail,
    PUSH_PRIVATE_KEY: push.credentials.privateKey,
    PUSH_API_URL: push.plainUrl,
    PUSH_TOKEN_URL: `${push.plainUrl}/token`,
    ...settings,
  }
  const start = async (name: 'A' | 'B') => {
    const own = { ...common, API_VARIANT: name }
    const place = new NodePlace(name, { settings: own, served: await startServe({ settings: own }) })
    balancer.add(place)
    await until(() => balancer.isReady(name))
    await until(() => countsTogether(place.served))
    return place
  }
  const a = await start('A')
  const b = await start('B')
  return {
    a,
    b,
    balancer,
    runtime,
    push,
    databaseUrl: database.url,
    token: (request) => issuer.mint(request),
    close: async () => {
      await Promise.all([a.served.program.kill(), b.served.program.kill()])
      await balancer.close()
      await runtime.close()
      await push.close()
      await database.drop()
    },
  }
}

async function countsTogether(served: Served): Promise<boolean> {
  const { body } = await served.request<{ checks?: { rate_limits: { state: string } } }>('GET', '/readyz')
  return body.checks?.rate_limits.state === 'ok'
}
