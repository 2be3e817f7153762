import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { buildConsole } from '../../src/cli/startup/build-console.ts'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { startPostgres } from '../../test/support/postgres.ts'
import { startRedis } from '../../test/support/redis.ts'
import { median } from './comparison.ts'
import { type Server, type ServerSpec, serviceSpec, startServer } from './server.ts'

const STARTS = 5
const IDLE_MS = 1_000

/** The time from the spawn of `serve` to its first healthy response, with an existing database and compile cache. */
export async function measureColdStart(): Promise<number> {
  return withEmbeddedService(async (spec) => {
    const readyMs: number[] = []
    for (let start = 0; start < STARTS; start++) {
      const server = await startServer(spec)
      readyMs.push(server.readyMs)
      await server.stop()
    }
    return median(readyMs)
  })
}

/** The resident memory of the process when it is ready and was idle for a second. */
export async function measureIdleMegabytes(): Promise<number> {
  return withEmbeddedService(async (spec) => {
    const server = await startServer(spec)
    try {
      await sleep(IDLE_MS)
      return residentBytes(server) / 1_000_000
    } finally {
      await server.stop()
    }
  })
}

interface StartFigures {
  readyMs: number
  /** Processor time until it was ready; null if the system does not report it. */
  cpuMs: number | null
  idleMegabytes: number
}

/**
 * Starts the build of the service and a bare Fastify in turns, both on PostgreSQL and Redis with compiled code in their
 * cache, and returns the medians of each.
 */
export async function compareStarts(): Promise<{ ours: StartFigures; bare: StartFigures }> {
  const problem = await buildConsole()
  if (problem !== null) throw new Error(problem)
  execFileSync(process.execPath, [fileURLToPath(new URL('../../bundle/build.ts', import.meta.url))])
  const postgres = await startPostgres()
  const redis = await startRedis()
  const issuer = await startIdentityProvider()
  try {
    const shared = { DATABASE_URL: await postgres.createDatabase(), REDIS_URL: redis.url }
    const env = { NODE_ENV: 'development', ISSUER_URL: issuer.issuer, ...shared }
    const ours: ServerSpec = { ...serviceSpec(env), script: '../../dist/bin/project-api.js' }
    const bare: ServerSpec = { ...ours, args: [], script: './servers/bare-start.js' }
    const figures = { ours: [] as StartFigures[], bare: [] as StartFigures[] }
    // The first start of each creates the database, and writes the compile cache when it ends.
    for (const spec of [ours, bare]) await measureStart(spec)
    for (let start = 0; start < STARTS; start++) {
      figures.ours.push(await measureStart(ours))
      figures.bare.push(await measureStart(bare))
    }
    return { ours: medians(figures.ours), bare: medians(figures.bare) }
  } finally {
    await issuer.close()
    await redis.stop()
    await postgres.stop()
  }
}

async function measureStart(spec: ServerSpec): Promise<StartFigures> {
  const server = await startServer(spec)
  const cpuMs = server.cpuMs()
  try {
    await sleep(IDLE_MS)
    return { readyMs: server.readyMs, cpuMs, idleMegabytes: residentBytes(server) / 1_000_000 }
  } finally {
    await server.stop()
  }
}

function medians(starts: readonly StartFigures[]): StartFigures {
  const cpuMs = starts.flatMap((start) => start.cpuMs ?? [])
  return {
    readyMs: median(starts.map((start) => start.readyMs)),
    cpuMs: cpuMs.length > 0 ? median(cpuMs) : null,
    idleMegabytes: median(starts.map((start) => start.idleMegabytes)),
  }
}

async function withEmbeddedService<T>(work: (spec: ServerSpec) => Promise<T>): Promise<T> {
  const dataDir = mkdtempSync(join(tmpdir(), 'bench-data-'))
  const issuer = await startIdentityProvider()
  const env = { NODE_ENV: 'development', ISSUER_URL: issuer.issuer, DATA_DIR: dataDir }
  const spec = serviceSpec(env)
  try {
    // The first start creates the database, and writes the compile cache when it ends.
    await (await startServer(spec)).stop()
    return await work(spec)
  } finally {
    await issuer.close()
    rmSync(dataDir, { recursive: true, force: true })
  }
}

export function residentBytes({ pid }: Server): number {
  const kilobytes =
    process.platform === 'linux'
      ? /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
      : execFileSync('ps', ['-o', 'rss=', '-p', String(pid)], { encoding: 'utf8' })
  return Number(kilobytes) * 1024
}
