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
import { Records } from '../audit/observed-traffic.ts'
import { Marks } from '../faults/kill-points.ts'
import { type Balancer, startBalancer } from './balancer.ts'
import { startGate, type Watch } from './fault-proxy.ts'
import { NodeProcess } from './node-process.ts'
import { startTcpGate, type TcpGate } from './tcp-fault-proxy.ts'

const JOB_TYPES = fileURLToPath(new URL('../../../job-types.json', import.meta.url))
const READY_TIMEOUT_MS = 60_000
/** Together with the service's own factor and slack this makes a lease of 11 s: what a killed node holds is free then. */
const RUNTIME_TIMEOUT_MS = 1_000
const NO_LIMIT = '1000000000'

export interface TorturedNode {
  process: NodeProcess
  /** Between this node and PostgreSQL; null on the embedded engine. */
  database: TcpGate | null
}

/** What PostgreSQL and Redis are to several nodes; the embedded engine has neither. */
export interface SharedServers {
  postgres: PostgresServer
  databaseUrl: string
  redis: RedisServer
}

export interface World {
  folder: string
  engine: Engine
  shared: SharedServers | null
  /** Where the embedded database lies. */
  databaseFile: string
  identity: IdentityProvider
  runtime: AgentRuntime
  push: SandboxPushProvider
  balancer: Balancer
  nodes: TorturedNode[]
  marks: Marks
  records: Records
  close(): Promise<void>
}

/** Real processes with all they talk to, a gate on every wire: two nodes of both variants on PostgreSQL, or one on SQLite. */
export async function startWorld({ engine, random }: { engine: Engine; random: Prng }): Promise<World> {
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
    const records = new Records()
    const nodes: TorturedNode[] = []
    const marks = new Marks(records, (name) => nodes.find(({ process }) => process.name === name)?.process.kill())
    const identity = await startIdentityProvider()
    keep(identity, () => identity.close())
    const runtime = await startAgentRuntime({ random: random.split('runtime') })
    keep(runtime, () => runtime.close())
    const push = await startPushProvider()
    keep(push, () => push.close())
    const shared = engine === 'postgres' ? await startShared(keep) : null
    const balancer = await startBalancer(marks.atTheFront)
    keep(balancer, () => balancer.close())

    const gate = async (name: string, url: string, watch: Watch) => {
      const opened = await startGate({ choose: () => ({ name, url }), watch })
      return keep(opened, () => opened.close()).url
    }
    const databaseFile = join(folder, 'data', 'project-api.db')
    for (const variant of engine === 'postgres' ? (['A', 'B'] as const) : (['B'] as const)) {
      const name = `node-${variant}`
      const database = shared ? await startTcpGate(Number(new URL(shared.databaseUrl).port)) : null
      if (database) keep(database, () => database.close())
      const settings: Record<string, string> = {
        API_VARIANT: variant,
        PUBLIC_URL: balancer.url,
        ISSUER_URL: identity.issuer,
        JOB_TYPES_FILE: JOB_TYPES,
        WEBHOOK_SECRET: 'the-secret-of-the-torture',
        RUNTIME_URL: await gate(name, runtime.url, marks.atTheRuntime),
        RUNTIME_TIMEOUT_MS: String(RUNTIME_TIMEOUT_MS),
        PUSH_PROJECT_ID: push.credentials.projectId,
        PUSH_CLIENT_EMAIL: push.credentials.clientEmail,
        PUSH_PRIVATE_KEY: push.credentials.privateKey,
        PUSH_API_URL: await gate(name, push.plainUrl, marks.atTheProvider),
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
      // One after the other: the first brings the schema, so that the second need not wait for it.
      await balancer.untilReady(name, READY_TIMEOUT_MS)
    }
    return { folder, engine, shared, databaseFile, identity, runtime, push, balancer, nodes, marks, records, close }
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

function sharedSettings({ databaseUrl, redis }: SharedServers, gate: TcpGate | null): Record<string, string> {
  const url = new URL(databaseUrl)
  if (gate) url.port = String(gate.port)
  return { DATABASE_URL: url.href, REDIS_URL: redis.url }
}
