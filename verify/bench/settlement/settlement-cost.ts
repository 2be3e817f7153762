import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { systemClock } from '../../../src/core/clock.ts'
import { IdGenerator } from '../../../src/core/ids.ts'
import { silentLog } from '../../../src/core/log.ts'
import { systemRandom } from '../../../src/core/random.ts'
import { buildNextIndex } from '../../../src/db/build-indexes.ts'
import type { Database } from '../../../src/db/database.ts'
import { migrate } from '../../../src/db/migrate.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { sql } from '../../../src/db/sql.ts'
import { openSqlite } from '../../../src/db/sqlite/sqlite.ts'
import { CallbackIntake } from '../../../src/jobs/callbacks/callback-intake.ts'
import type { JobContext } from '../../../src/jobs/job-context.ts'
import { newJob } from '../../../src/jobs/job-row.ts'
import { insertJob, insertJobRuns } from '../../../src/jobs/job-store.ts'
import { type JobType, toJobTypes } from '../../../src/jobs/job-types.ts'
import { JobWorker } from '../../../src/jobs/worker/job-worker.ts'
import { parseCallback } from '../../../src/runtime/callback-payload.ts'
import { findRefusal } from '../../../src/users/user-state-store.ts'
import { hasPushTurnedOff } from '../../../src/users/user-store.ts'
import { startPostgres } from '../../../test/support/postgres.ts'
import { WatchedDatabase } from '../../../test/support/watched-database.ts'
import { type Cost, type Probe, postgresProbe, sqliteProbe } from './write-probe.ts'

const CALLBACKS = 2_000
const OWNERS = 500
/** Callbacks that arrive together. They commit as one group. */
const GROUP = 100
const TYPES = toJobTypes({ report: { assistant_id: 'report', output_key: 'report', may_pause: false } })
const REPORT = TYPES.get('report') as JobType
const TEXT = 'Numbers for the board. '.repeat(10)

export interface SettlementCost extends Cost {
  engine: string
  statements: number
}

/**
 * Measures the writes of one settled callback on each engine: job, callback, event, usage, timeline, notification and one
 * delivery.
 */
export async function measureSettlementCost(): Promise<SettlementCost[]> {
  const folder = mkdtempSync(join(tmpdir(), 'bench-settlement-'))
  const postgres = await startPostgres({
    settings: { checkpoint_timeout: '1h', max_wal_size: '4GB', autovacuum: 'off' },
  })
  try {
    const path = join(folder, 'bench.db')
    const sqlite = await openSqlite({ path, maxLogPages: 1_000_000 })
    const onSqlite = await measure(sqlite, sqliteProbe(sqlite, path)).finally(() => sqlite.close())
    const server = await openPostgres({ url: await postgres.createDatabase() })
    const onPostgres = await measure(server, postgresProbe(server)).finally(() => server.close())
    return [onPostgres, onSqlite]
  } finally {
    await postgres.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

async function measure(db: Database, probe: Probe): Promise<SettlementCost> {
  await migrate(db)
  while ((await buildNextIndex(db)) !== 'done');
  const watched = new WatchedDatabase(db)
  const context = contextOn(watched.db)
  const worker = new JobWorker(context, {
    node: { id: 'node', isAlive: true, holdsLeaseOf: () => true },
    runtimeTimeoutMs: 1,
  })
  await worker.close()
  const intake = new CallbackIntake(context, worker)
  await addDevices(db)
  // The first round warms up: counters exist, statements are prepared, PostgreSQL has logged each page as a whole once.
  await settle(intake, await startJobs(context, CALLBACKS))
  const jobs = await startJobs(context, CALLBACKS)
  await probe.begin()
  watched.forget()
  await settle(intake, jobs)
  const statements = watched.count(/./) / CALLBACKS
  const total = await probe.end()
  await checkSettled(db)
  const cost = Object.fromEntries(Object.entries(total).map(([name, value]) => [name, value / CALLBACKS]))
  return { engine: db.engine, statements, ...(cost as unknown as Cost) }
}

function contextOn(db: Database): JobContext {
  return {
    db,
    clock: systemClock,
    random: systemRandom,
    ids: new IdGenerator(systemClock, systemRandom),
    log: silentLog,
    types: TYPES,
    pushOptOut: hasPushTurnedOff,
    findRefusal,
    usageLimitRuns: null,
    runtime: null,
    identify: null,
    callbackUrl: () => null,
  }
}

async function addDevices(db: Database): Promise<void> {
  for (let n = 0; n < OWNERS; n++) {
    await db.query(sql`
      insert into devices (id, subject, token, token_hash, platform, provider, created_at, last_seen_at)
      values (${`dev_${n}`}, ${`owner-${n}`}, ${`token-${n}`}, ${`hash-${n}`}, 'web', 'fcm', 0, ${systemClock.now()})`)
  }
}

interface StartedJob {
  id: string
  threadId: string
  runId: string
}

async function startJobs({ db, ids }: JobContext, count: number): Promise<StartedJob[]> {
  const jobs = Array.from({ length: count }, () => ({
    id: ids.next('job'),
    threadId: randomUUID(),
    runId: randomUUID(),
  }))
  await db.transaction(async (tx) => {
    for (const [n, { id, threadId, runId }] of jobs.entries()) {
      const given = {
        id,
        input: '{"topic":"sales","quarter":3}',
        project_id: null,
        created_by: `owner-${n % OWNERS}`,
        thread_id: threadId,
        run_id: runId,
      }
      await insertJob(tx, { ...newJob(REPORT, given, systemClock.now()), status: 'generating', next_check_at: null })
      await insertJobRuns(tx, [{ run_id: runId, job_id: id, run_seq: 1, is_extra: 0, created_at: 1 }])
    }
  })
  return jobs
}

async function settle(intake: CallbackIntake, jobs: readonly StartedJob[]): Promise<void> {
  for (let from = 0; from < jobs.length; from += GROUP) {
    await Promise.all(
      inAnotherOrder(jobs)
        .slice(from, from + GROUP)
        .map(async (job) => {
          const { outcome } = await intake.receive({
            payload: await parseCallback(bodyOf(job), REPORT.wantedValues),
            type: REPORT,
            path: '/webhooks/jobs/report',
            jobId: job.id,
            receivedAtMs: systemClock.now(),
          })
          if (outcome !== 'applied') throw new Error(`A callback was not applied: ${outcome}`)
        }),
    )
  }
}

/** Jobs end in another order than they started, so jobs of one table page seldom end in the same transaction. */
function inAnotherOrder(jobs: readonly StartedJob[]): StartedJob[] {
  const stride = jobs.length / GROUP
  return Array.from(jobs, (_, n) => jobs[(n % GROUP) * stride + Math.floor(n / GROUP)] as StartedJob)
}

function bodyOf({ id, threadId, runId }: StartedJob): string {
  return JSON.stringify({
    run_id: runId,
    thread_id: threadId,
    assistant_id: 'report',
    metadata: { graph_id: 'report', job_id: id },
    status: 'success',
    kwargs: { input: { topic: 'sales', quarter: 3 } },
    values: { topic: 'sales', report: { title: 'Quarterly report', text: TEXT } },
  })
}

async function checkSettled(db: Database): Promise<void> {
  const [row] = await db.query<Record<string, number>>(sql`
    select (select count(*) from jobs where status = 'completed') as jobs, (select count(*) from callbacks) as callbacks,
      (select count(*) from events) as events, (select cast(sum(runs) as bigint) from usage_counters) as usage,
      (select count(*) from deliveries) as deliveries`)
  if (row === undefined || Object.values(row).some((count) => count !== 2 * CALLBACKS)) {
    throw new Error(`Not everything was written: ${JSON.stringify(row)}`)
  }
}
