import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buildNextIndex } from '../../../src/db/build-indexes.ts'
import { migrate } from '../../../src/db/migrate.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { sql } from '../../../src/db/sql.ts'
import { startIdentityProvider } from '../../../src/sandbox/identity-provider/identity-provider.ts'
import { psql, startPostgres } from '../../../test/support/postgres.ts'
import { type Figures, median, type Pace } from '../comparison.ts'
import { applyLoad, type Sample } from '../load.ts'
import { installPackages } from '../packages.ts'
import { type Server, serviceSpec, startServer } from '../server.ts'
import { runPgbench, settleScript, USAGE_TABLE } from './pgbench.ts'
import { callbackRequest, JOBS_PER_SECOND, type RunningJobs, SECRET, seedRunningJobs } from './seed.ts'

export interface CallbackOutcome {
  ours: Figures
  express: Figures
  /** A server that only reads and answers: the upper bound for any service on this framework. */
  echo: Figures
  pgbenchSettlingPerSecond: number
  vsExpress: number
  vsEcho: number
  vsPgbenchSettling: number
}

const CONNECTIONS = 256
/** The Express service settles about 600 callbacks a second. Fewer jobs are stored faster. */
const EXPRESS_SHARE = 1 / 4
/** pgbench settles the same jobs again and again. */
const PGBENCH_JOBS = 84_000

/**
 * Durable, settled callbacks per second on PostgreSQL: the service, an Express handler that writes the same rows in one
 * transaction per request, a server that only answers, and pgbench writing all rows of one settled callback per commit, in
 * turns on one server.
 */
export async function compareCallbacks({ warmUpRounds, rounds, roundMs }: Pace): Promise<CallbackOutcome> {
  installPackages('express')
  const postgres = await startPostgres()
  const issuer = await startIdentityProvider()
  const folder = mkdtempSync(join(tmpdir(), 'bench-callbacks-'))
  const count = Math.ceil((JOBS_PER_SECOND * (warmUpRounds + rounds) * roundMs) / 1000)
  const expressCount = Math.ceil(count * EXPRESS_SHARE)
  const servers: Server[] = []
  try {
    const oursUrl = await seeded(await postgres.createDatabase(), { count })
    const expressUrl = await seeded(await postgres.createDatabase(), { count: expressCount })
    const pgbenchUrl = await seeded(await postgres.createDatabase(), { count: PGBENCH_JOBS, runOf: sql`'run-' || n` })
    for (const url of [expressUrl, pgbenchUrl]) await psql(url, USAGE_TABLE)
    const types = join(folder, 'job-types.json')
    writeFileSync(
      types,
      JSON.stringify({ types: { report: { assistant_id: 'report', output_key: 'report', may_pause: false } } }),
    )
    const ours = await startServer(
      serviceSpec({
        NODE_ENV: 'development',
        DATABASE_URL: oursUrl,
        ISSUER_URL: issuer.issuer,
        WEBHOOK_SECRET: SECRET,
        JOB_TYPES_FILE: types,
      }),
    )
    servers.push(ours)
    const env = { NODE_ENV: 'production', DATABASE_URL: expressUrl, WEBHOOK_SECRET: SECRET }
    const express = await startServer({ script: './express/callbacks.js', env })
    servers.push(express)
    const echo = await startServer({ script: './servers/echo-server.ts', env: { NODE_ENV: 'production' } })
    servers.push(echo)

    const requests = Array.from({ length: count }, (_, n) => callbackRequest(n))
    const [loadOurs, loadExpress] = [loader(ours, requests), loader(express, requests.slice(0, expressCount))]
    const loadEcho = (durationMs: number) =>
      applyLoad({ port: echo.port, requests, connections: CONNECTIONS, durationMs })
    const mine: Sample[] = []
    const theirs: Sample[] = []
    const echoed: Sample[] = []
    const settling: number[] = []
    for (let round = 0; round < warmUpRounds; round++) {
      for (const load of [loadOurs, loadExpress, loadEcho]) await load(roundMs)
    }
    const settle = () => runPgbench(pgbenchUrl, { script: settleScript(PGBENCH_JOBS), folder, roundMs })
    settle()
    for (let round = 0; round < rounds; round++) {
      mine.push(await loadOurs(roundMs))
      theirs.push(await loadExpress(roundMs))
      echoed.push(await loadEcho(roundMs))
      settling.push(settle())
    }
    await checkSettled(oursUrl)
    await checkSettled(expressUrl)
    const rates = (samples: readonly Sample[]) => samples.map((sample) => sample.requestsPerSecond)
    const ratioTo = (others: readonly number[]) => median(rates(mine).map((rate, n) => rate / (others[n] ?? 1)))
    return {
      ours: middle(mine),
      express: middle(theirs),
      echo: middle(echoed),
      pgbenchSettlingPerSecond: median(settling),
      vsExpress: ratioTo(rates(theirs)),
      vsEcho: ratioTo(rates(echoed)),
      vsPgbenchSettling: ratioTo(settling),
    }
  } finally {
    for (const server of servers) await server.stop()
    await issuer.close()
    await postgres.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Every round sends new callbacks. */
function loader({ port }: Server, requests: readonly Buffer[]): (durationMs: number) => Promise<Sample> {
  let sent = 0
  return async (durationMs) => {
    const fresh = requests.slice(sent)
    const sample = await applyLoad({ port, requests: fresh, connections: CONNECTIONS, durationMs })
    sent += sample.requests + CONNECTIONS
    if (sent > requests.length) throw new Error('The callbacks ran out: raise JOBS_PER_SECOND')
    return sample
  }
}

/** Migrates a database, builds its indexes and fills it. */
export async function seeded(url: string, ...jobs: readonly RunningJobs[]): Promise<string> {
  const db = await openPostgres({ url, queryTimeoutMs: 120_000 })
  try {
    await migrate(db)
    while ((await buildNextIndex(db)) !== 'done');
    for (const some of jobs) await seedRunningJobs(db, some)
    return url
  } finally {
    await db.close()
  }
}

/** Rejects when the server answered 200 without settling the jobs. */
async function checkSettled(url: string): Promise<void> {
  const db = await openPostgres({ url })
  try {
    const [row] = await db.query<{ settled: number; counted: number; events: number; callbacks: number }>(sql`
      select (select count(*) from jobs where status = 'completed') as settled,
        (select coalesce(sum(runs), 0)::bigint from usage_counters) as counted,
        (select count(*) from events) as events, (select count(*) from callbacks) as callbacks`)
    const { settled = 0, counted, events, callbacks = 0 } = row ?? {}
    if (settled === 0 || counted !== settled || events !== settled || callbacks < settled) {
      throw new Error(`Not everything was written: ${JSON.stringify(row)}`)
    }
  } finally {
    await db.close()
  }
}

function middle(samples: readonly Sample[]): Figures {
  return {
    cpuMicroseconds: null,
    requestsPerSecond: median(samples.map((sample) => sample.requestsPerSecond)),
    p50Ms: median(samples.map((sample) => sample.p50Ms)),
    p99Ms: median(samples.map((sample) => sample.p99Ms)),
    generatorBusy: median(samples.map((sample) => sample.generatorBusy)),
  }
}
