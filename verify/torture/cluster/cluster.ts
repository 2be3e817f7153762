import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Engine } from '../../../src/db/database.ts'
import { type AgentRuntime, startAgentRuntime } from '../../../src/sandbox/agent-runtime/agent-runtime.ts'
import {
  type IdentityProvider,
  startIdentityProvider,
} from '../../../src/sandbox/identity-provider/identity-provider.ts'
import { type SandboxPushProvider, startPushProvider } from '../../../src/sandbox/push-provider/push-provider.ts'
import { type PostgresServer, startPostgres } from '../../../test/support/postgres.ts'
import { type RedisServer, startRedis } from '../../../test/support/redis.ts'
import type { Prng } from '../../sim/time/prng.ts'
import { ObservedTraffic } from '../audit/observed-traffic.ts'
import { KillPoints } from '../faults/kill-points.ts'
import { type Balancer, startBalancer } from './balancer.ts'
import { type FaultProxyOptions, startFaultProxy, type Target } from './fault-proxy.ts'
import { NodeProcess } from './node-process.ts'
import { startTcpFaultProxy, type TcpFaultProxy } from './tcp-fault-proxy.ts'

const JOB_TYPES = fileURLToPath(new URL('../../../job-types.json', import.meta.url))
const READY_TIMEOUT_MS = 60_000
/** Makes a lease of 11 s (six times this plus 5 s): then the jobs of a killed node are free. */
const RUNTIME_TIMEOUT_MS = 1_000
const NO_LIMIT = '1000000000'

export interface ClusterNode {
  process: NodeProcess
  /** Between this node and PostgreSQL; null on the embedded engine. */
  database: TcpFaultProxy | null
}

/** The servers that all nodes share; with SQLite there are none. */
export interface SharedServers {
  postgres: PostgresServer
  databaseUrl: string
  redis: RedisServer
}

export interface TortureCluster {
  folder: string
  engine: Engine
  shared: SharedServers | null
  /** The file of the embedded database. */
  databaseFile: string
  identity: IdentityProvider
  runtime: AgentRuntime
  push: SandboxPushProvider
  balancer: Balancer
  nodes: ClusterNode[]
  killPoints: KillPoints
  observed: ObservedTraffic
  close(): Promise<void>
}

/**
 * Real processes and everything they talk to, with a fault proxy on every connection: one node of each variant on
 * PostgreSQL, or one node on SQLite.
 */
export async function startCluster({ engine, random }: { engine: Engine; random: Prng }): Promise<TortureCluster> {
  const folder = mkdtempSync(join(tmpdir(), 'torture-'))
  const closers: (() => Promise<unknown>)[] = []
  const keep = <T>(thing: T, close: () => Promise<unknown>): T => {
    closers.push(close)
    return thing
  }
  const close = async () => {
    for (const one of closers.splice(0).reverse()) await one()
  }
  try {
    const observed = new ObservedTraffic()
    const nodes: ClusterNode[] = []
    const killPoints = new KillPoints(observed, (name) =>
      nodes.find(({ process }) => process.name === name)?.process.kill(),
    )
    const identity = await startIdentityProvider()
    keep(identity, () => identity.close())
    const runtime = await startAgentRuntime({ random: random.split('runtime') })
    keep(runtime, () => runtime.close())
    const push = await startPushProvider()
    keep(push, () => push.close())
    const shared = engine === 'postgres' ? await startShared(keep) : null
    const balancer = await startBalancer(killPoints.atBalancer)
    keep(balancer, () => balancer.close())

    const proxy = async (target: Target, options: Omit<FaultProxyOptions, 'choose'>) => {
      const opened = await startFaultProxy({ choose: () => target, ...options })
      return keep(opened, () => opened.close()).url
    }
    const databaseFile = join(folder, 'data', 'project-api.db')
    for (const variant of engine === 'postgres' ? (['A', 'B'] as const) : (['B'] as const)) {
      const name = `node-${variant}`
      const database = shared ? await startTcpFaultProxy(Number(new URL(shared.databaseUrl).port)) : null
      if (database) keep(database, () => database.close())
      const settings: Record<string, string> = {
        API_VARIANT: variant,
        PUBLIC_URL: balancer.url,
        ISSUER_URL: identity.issuer,
        JOB_TYPES_FILE: JOB_TYPES,
        WEBHOOK_SECRET: 'the-secret-of-the-torture',
        RUNTIME_URL: await proxy({ name, url: runtime.url }, { hooks: killPoints.atRuntime }),
        RUNTIME_TIMEOUT_MS: String(RUNTIME_TIMEOUT_MS),
        PUSH_PROJECT_ID: push.credentials.projectId,
        PUSH_CLIENT_EMAIL: push.credentials.clientEmail,
        PUSH_PRIVATE_KEY: push.credentials.privateKey,
        PUSH_API_URL: await proxy({ name, url: push.plainUrl }, { hooks: killPoints.atPushProvider, http2: true }),
        PUSH_TOKEN_URL: `${push.plainUrl}/token`,
        RATE_LIMIT_AUTHENTICATED: NO_LIMIT,
        RATE_LIMIT_UNAUTHENTICATED: NO_LIMIT,
        SHUTDOWN_TIMEOUT_MS: '4000',
        ...(shared ? sharedSettings(shared, database) : { DATA_DIR: join(folder, 'data') }),
      }
      const process = new NodeProcess(name, { settings, folder })
      nodes.push({ process, database })
      keep(process, async () => {
        process.kill()
        await process.gone()
      })
      await process.start()
      balancer.add(process)
      // One after the other: the first one migrates the database, and the second need not wait for that.
      await balancer.untilReady(name, READY_TIMEOUT_MS)
    }
    return {
      folder,
      engine,
      shared,
      databaseFile,
      identity,
      runtime,
      push,
      balancer,
      nodes,
      killPoints,
      observed,
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}

type Keep = <T>(thing: T, close: () => Promise<unknown>) => T

async function startShared(keep: Keep): Promise<SharedServers> {
  const postgres = await startPostgres()
  keep(postgres, () => postgres.stop())
  const redis = await startRedis()
  keep(redis, () => redis.stop())
  return { postgres, redis, databaseUrl: await postgres.createDatabase() }
}

function sharedSettings({ databaseUrl, redis }: SharedServers, proxy: TcpFaultProxy | null): Record<string, string> {
  const url = new URL(databaseUrl)
  if (proxy) url.port = String(proxy.port)
  return { DATABASE_URL: url.href, REDIS_URL: redis.url }
}
