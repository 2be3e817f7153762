import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
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
