import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CallbackAuthenticity } from '../../src/auth/callback-authenticity.ts'
import { systemClock } from '../../src/core/clock.ts'
import { IdGenerator } from '../../src/core/ids.ts'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { Node } from '../../src/db/nodes/node.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { createJobServices } from '../../src/jobs/job-services.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { findRefusal } from '../../src/users/user-state-store.ts'
import { hasPushTurnedOff } from '../../src/users/user-store.ts'
import { startPostgres } from '../../test/support/postgres.ts'
import { seedRunningJobs } from './callbacks/seed.ts'
import { startServer } from './server.ts'

const TYPES = toJobTypes({ report: { assistant_id: 'report', output_key: 'report', may_pause: false } })
const GIVE_UP_MS = 120_000
const POLL_MS = 20

export interface SweepRate {
  engine: string
  confirmedPerSecond: number
}

/** How many due jobs a second the sweep of one node confirms with the runtime and ends, on each engine. */
export async function measureSweep(jobs: number): Promise<SweepRate[]> {
  const folder = mkdtempSync(join(tmpdir(), 'bench-sweep-'))
  const postgres = await startPostgres()
  const runtime = await startServer({ script: './servers/slow-runtime.ts', env: { LATENCY_MS: '0' } })
  try {
    const runtimeUrl = `http://127.0.0.1:${runtime.port}`
    const sqlite = await openSqlite({ path: join(folder, 'bench.db') })
    const onSqlite = await measure(sqlite, { jobs, runtimeUrl }).finally(() => sqlite.close())
    const server = await openPostgres({ url: await postgres.createDatabase() })
    const onPostgres = await measure(server, { jobs, runtimeUrl }).finally(() => server.close())
    return [onSqlite, onPostgres]
  } finally {
    await runtime.stop()
    await postgres.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

async function measure(db: Database, { jobs, runtimeUrl }: { jobs: number; runtimeUrl: string }): Promise<SweepRate> {
  await migrate(db)
  await seedRunningJobs(db, { count: 2 * jobs })
  const node = await Node.start({ db, clock: systemClock, random: systemRandom, log: silentLog })
  const services = createJobServices({
    db,
    node,
    clock: node.clock,
    random: systemRandom,
    ids: new IdGenerator(node.clock, systemRandom),
    log: silentLog,
    types: TYPES,
    pushOptOut: hasPushTurnedOff,
    findRefusal,
    fetch,
    runtime: { url: runtimeUrl, apiKey: null, timeoutMs: 3_000 },
    runtimeIdentity: { mode: 'sub', secret: null },
    publicUrl: null,
    usageLimitRuns: null,
    maxUnfinishedJobs: null,
    callbackAuthenticity: new CallbackAuthenticity([], node.clock),
  })
  try {
    // The first half warms up.
    await sweepAll(db, jobs)
    const startedMs = performance.now()
    await sweepAll(db, jobs)
    return { engine: db.engine, confirmedPerSecond: jobs / ((performance.now() - startedMs) / 1_000) }
  } finally {
    await services.close()
    await node.close()
  }
}

/** Makes this many jobs due, and waits until all of them have ended. */
async function sweepAll(db: Database, jobs: number): Promise<void> {
  const deadline = AbortSignal.timeout(GIVE_UP_MS)
  const left = async () =>
    (await db.query<{ jobs: number }>(sql`select count(*) as jobs from job_checks`))[0]?.jobs ?? 0
  const until = (await left()) - jobs
  await db.query(sql`
    update job_checks set due_at = ${Date.now()} where job_id in (select job_id from job_checks limit ${jobs})`)
  while ((await left()) > until) {
    deadline.throwIfAborted()
    await systemClock.sleep(POLL_MS)
  }
}
