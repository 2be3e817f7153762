import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { migrate } from '../../../src/db/migrate.ts'
import { sql } from '../../../src/db/sql.ts'
import { openSqlite } from '../../../src/db/sqlite/sqlite.ts'
import { startIdentityProvider } from '../../../src/sandbox/identity-provider/identity-provider.ts'
import { callbackRequest, JOBS_PER_SECOND, SECRET, seedRunningJobs, USERS } from '../callbacks/seed.ts'
import { median } from '../comparison.ts'
import { applyLoad, type Sample } from '../load.ts'
import { type Server, serviceSpec, startServer } from '../server.ts'
import { compileSlowSync } from './slow-sync.ts'

export interface SlowDiskOutcome {
  /** The figures for each delay that is added to a sync. */
  disks: ReadonlyMap<number, DiskFigures>
}

export interface DiskFigures {
  /** Relative to the disk without a delay; medians of the rounds' ratios. */
  readRatio: number
  writeRatio: number
  readsPerSecond: number
  readP99Ms: number
  writesPerSecond: number
  writeP50Ms: number
  /** How late the event loop was while reads and callbacks came, by `monitorEventLoopDelay`. */
  loopP99Ms: number
}

interface Pace {
  rounds: number
  roundMs: number
  warmUpMs: number
}

const DELAYS_MS = [0, 5, 20]
const READERS = 64
/** A cold server would shed load that a warm server can handle. */
const WARM_UP_READERS = 8
/** 200 callbacks a second beside the reads: enough that a sync is nearly always under way on the slowest disk. */
const PACED_WRITERS = { connections: 40, everyMs: 200 }
const BUSY_WRITERS = 256

interface Disk {
  server: Server
  dataDir: string
  sent: number
  answered: number
  mixed: { reads: Sample; loopP99Ms: number }[]
  writes: Sample[]
}

/**
 * The service on its embedded database, on disks whose syncs take 0, 5 and 20 ms longer, in turns: reads beside a steady
 * stream of callbacks, and callbacks as fast as they are answered. Linux only.
 */
export async function compareDisks({ rounds, roundMs, warmUpMs }: Pace): Promise<SlowDiskOutcome> {
  const folder = mkdtempSync(join(tmpdir(), 'bench-slow-disk-'))
  const issuer = await startIdentityProvider()
  const disks = new Map<number, Disk>()
  try {
    const callbackCount = Math.ceil((JOBS_PER_SECOND * (warmUpMs + rounds * roundMs)) / 1_000)
    const tokens = Array.from({ length: USERS }, (_, n) =>
      issuer.mint({ sub: `user-${(callbackCount + n) % USERS}`, scopes: ['read:projects'] }),
    )
    const reads = tokens.map((token, n) => readRequest(`job_${callbackCount + n}`, token))
    const callbacks = Array.from({ length: callbackCount }, (_, n) => callbackRequest(n))
    for (const [delayMs, dataDir] of await dataFolders(folder, callbackCount + USERS)) {
      const server = await startService({ folder, dataDir, delayMs, issuerUrl: issuer.issuer })
      disks.set(delayMs, { server, dataDir, sent: 0, answered: 0, mixed: [], writes: [] })
    }
    const settle = async (disk: Disk, load: { connections: number; everyMs?: number; durationMs: number }) => {
      const sample = await applyLoad({ port: disk.server.port, requests: callbacks.slice(disk.sent), ...load })
      disk.sent += sample.requests + load.connections
      disk.answered += sample.requests
      if (disk.sent > callbackCount) throw new Error('The callbacks ran out: raise JOBS_PER_SECOND')
      return sample
    }
    const mix = async (disk: Disk, durationMs: number, connections = READERS) => {
      await loopP99Ms(disk.server)
      const [sample] = await Promise.all([
        applyLoad({ port: disk.server.port, requests: reads, connections, durationMs }),
        settle(disk, { ...PACED_WRITERS, durationMs }),
      ])
      return { reads: sample, loopP99Ms: await loopP99Ms(disk.server) }
    }
    const write = (disk: Disk, durationMs: number) => settle(disk, { connections: BUSY_WRITERS, durationMs })

    for (const disk of disks.values()) await mix(disk, warmUpMs, WARM_UP_READERS)
    for (const disk of disks.values()) await write(disk, warmUpMs)
    for (let round = 0; round < rounds; round++) {
      for (const disk of disks.values()) disk.mixed.push(await mix(disk, roundMs))
      for (const disk of disks.values()) disk.writes.push(await write(disk, roundMs))
    }
    for (const disk of disks.values()) await disk.server.stop()
    for (const disk of disks.values()) await checkSettled(disk)
    return { disks: figuresOf(disks) }
  } finally {
    for (const { server } of disks.values()) await server.stop()
    await issuer.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** The same jobs for each disk: the last ones, one for each user, are read; the others get their callbacks. */
async function dataFolders(folder: string, jobs: number): Promise<Map<number, string>> {
  const folders = new Map(DELAYS_MS.map((delayMs) => [delayMs, join(folder, `data-${delayMs}`)]))
  const [first = '', ...others] = folders.values()
  mkdirSync(first)
  const db = await openSqlite({ path: join(first, DATABASE_FILE) })
  await migrate(db)
  await seedRunningJobs(db, { count: jobs })
  await db.close()
  for (const other of others) cpSync(first, other, { recursive: true })
  return folders
}

const DATABASE_FILE = 'project-api.db'

function startService(from: { folder: string; dataDir: string; delayMs: number; issuerUrl: string }): Promise<Server> {
  const types = join(from.folder, 'job-types.json')
  writeFileSync(
    types,
    JSON.stringify({ types: { report: { assistant_id: 'report', output_key: 'report', may_pause: false } } }),
  )
  return startServer(
    serviceSpec({
      NODE_ENV: 'development',
      ISSUER_URL: from.issuerUrl,
      DATA_DIR: from.dataDir,
      WEBHOOK_SECRET: SECRET,
      JOB_TYPES_FILE: types,
      METRICS_PUBLIC: 'true',
      RATE_LIMIT_AUTHENTICATED: '1000000000',
      LD_PRELOAD: compileSlowSync(from.folder),
      SLOW_SYNC_MS: String(from.delayMs),
    }),
  )
}

function readRequest(jobId: string, token: string): Buffer {
  return Buffer.from(`GET /jobs/${jobId} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer ${token}\r\n\r\n`)
}

/** Since the last call. */
async function loopP99Ms({ port }: Server): Promise<number> {
  const response = await fetch(`http://127.0.0.1:${port}/metrics`, { signal: AbortSignal.timeout(10_000) })
  const seconds = /nodejs_eventloop_lag_seconds\{quantile="0.99"\} (\S+)/.exec(await response.text())?.[1]
  return 1_000 * Number(seconds)
}

/** Rejects unless the jobs are settled: a server that answers 200 without writing would be the fastest. */
async function checkSettled({ dataDir, answered }: Disk): Promise<void> {
  const db = await openSqlite({ path: join(dataDir, DATABASE_FILE) })
  const [row] = await db.query<{ kept: number; settled: number }>(sql`
    select (select count(*) from callbacks) as kept, (select count(*) from jobs where status = 'completed') as settled`)
  await db.close()
  if (!row || row.kept < answered || row.settled < answered) {
    throw new Error(`${answered} callbacks were answered: ${JSON.stringify(row)}`)
  }
}

function figuresOf(disks: ReadonlyMap<number, Disk>): Map<number, DiskFigures> {
  const fast = disks.get(0)
  const rate = (sample: Sample | undefined) => sample?.requestsPerSecond ?? Number.NaN
  return new Map(
    Array.from(disks, ([delayMs, { mixed, writes }]) => [
      delayMs,
      {
        readRatio: median(mixed.map(({ reads }, round) => rate(reads) / rate(fast?.mixed[round]?.reads))),
        writeRatio: median(writes.map((sample, round) => rate(sample) / rate(fast?.writes[round]))),
        readsPerSecond: median(mixed.map(({ reads }) => rate(reads))),
        readP99Ms: median(mixed.map(({ reads }) => reads.p99Ms)),
        writesPerSecond: median(writes.map(rate)),
        writeP50Ms: median(writes.map(({ p50Ms }) => p50Ms)),
        loopP99Ms: median(mixed.map((round) => round.loopP99Ms)),
      },
    ]),
  )
}
