import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Engine } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { startPostgres } from '../../test/support/postgres.ts'
import { freePort } from '../../test/support/server-process.ts'
import { nextMessageOf, startChild, startServe, stopChild } from './child-process.ts'
import { type LoadPlan, RUN_PREFIX, runId, THREAD_PREFIX } from './load-requests.ts'
import type { LoadResult, Phase } from './load-result.ts'

const USERS = 200
const PROJECTS = 200
const WEBHOOK_SECRET = 'the-secret-of-the-load'
const NO_LIMIT = '1000000000'
const FAR_FUTURE_MS = 9_000_000_000_000

export interface OverloadEnvironment {
  url: string
  token: string
  /** The token of a user who sends nothing else. */
  mint(sub: string): string
  /** The process of the service. */
  pid: number
  /** Runs one phase of load in the generator's process. */
  send(phase: Phase): Promise<LoadResult>
  /** How many of these runs have no stored callback. */
  countMissing(runs: readonly number[]): Promise<number>
  close(): Promise<void>
}

/**
 * One `serve`, its PostgreSQL, the sandbox's runtime and the load generator, each in its own process. On SQLite nothing is
 * stored beforehand, so the load must have no callbacks.
 */
export async function startOverloadEnvironment({
  runs,
  mix,
  engine = 'postgres',
}: Pick<LoadPlan, 'runs' | 'mix'> & { engine?: Engine }): Promise<OverloadEnvironment> {
  const closers: (() => Promise<unknown>)[] = []
  const close = async () => {
    for (const one of closers.splice(0).reverse()) await one()
  }
  try {
    const issuer = await startIdentityProvider()
    closers.push(() => issuer.close())
    const runtime = startChild('./runtime.ts')
    closers.push(() => stopChild(runtime))
    const { runtimeUrl } = await nextMessageOf<{ runtimeUrl: string }>(runtime)
    let databaseUrl = ''
    const database: Record<string, string> = {}
    if (engine === 'postgres') {
      const postgres = await startPostgres()
      closers.push(() => postgres.stop())
      databaseUrl = await postgres.createDatabase()
      await seed(databaseUrl, runs)
      database.DATABASE_URL = databaseUrl
    } else {
      const folder = await mkdtemp(join(tmpdir(), 'overload-'))
      closers.push(() => rm(folder, { recursive: true, force: true }))
      database.DATA_DIR = folder
    }
    const port = await freePort()
    const url = `http://127.0.0.1:${port}`
    const server = await startServe(url, {
      NODE_ENV: 'development',
      PORT: String(port),
      PUBLIC_URL: url,
      ...database,
      ISSUER_URL: issuer.issuer,
      RUNTIME_URL: runtimeUrl,
      WEBHOOK_SECRET,
      METRICS_PUBLIC: 'true',
      JOB_TYPES_FILE: fileURLToPath(new URL('../../job-types.json', import.meta.url)),
      RATE_LIMIT_AUTHENTICATED: NO_LIMIT,
      RATE_LIMIT_UNAUTHENTICATED: NO_LIMIT,
    })
    closers.push(() => stopChild(server))
    const generator = startChild('./generator.ts')
    closers.push(() => stopChild(generator))
    const tokens = Array.from({ length: USERS }, (_, n) => issuer.mint({ sub: `user-${n}`, scopes: ['read:projects'] }))
    const plan: LoadPlan = { port, tokens, webhookSecret: WEBHOOK_SECRET, runs, mix }
    generator.send({ plan })
    return {
      url,
      token: tokens[0] ?? '',
      mint: (sub) => issuer.mint({ sub, scopes: ['read:projects', 'write:projects'] }),
      pid: server.pid ?? 0,
      send: async (phase) => {
        generator.send({ phase })
        const answer = await nextMessageOf<{ result: LoadResult } | { failed: string }>(generator)
        if ('failed' in answer) throw new Error(answer.failed)
        return answer.result
      },
      countMissing: (accepted) => countMissing(databaseUrl, accepted),
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}

/** Stores projects to read, and jobs with unfinished runs: each callback settles one of them. */
async function seed(url: string, runs: number): Promise<void> {
  const db = await openPostgres({ url, queryTimeoutMs: 120_000 })
  try {
    await migrate(db)
    await db.query(sql`
      insert into projects (id, name, description, metadata, created_by, created_at, updated_at, version)
      select 'prj_' || lpad(n::text, 8, '0'), 'Quarterly report ' || n, 'Numbers for the board', '{"team":"finance"}',
        'user-' || (n % ${USERS}::int), 1, 1, 1
      from generate_series(1, ${PROJECTS}::int) as n`)
    await db.query(sql`
      insert into jobs (id, type, status, input, created_by, thread_id, run_id, run_seq,
        check_attempts, deadline_at, created_at, started_at, updated_at)
      select 'job_' || n, 'report', 'generating', '{"topic":"sales"}', 'user-' || (n % ${USERS}::int),
        ${THREAD_PREFIX}::text || lpad(n::text, 8, '0'), ${RUN_PREFIX}::text || lpad(n::text, 8, '0'), 1, 0,
        ${FAR_FUTURE_MS}, 1, 1, 1
      from generate_series(0, ${runs}::int - 1) as n`)
    await db.query(sql`
      insert into job_checks (job_id, owner, due_at, starts, checks)
      select 'job_' || n, 'user-' || (n % ${USERS}::int), ${FAR_FUTURE_MS}, 1, 0
      from generate_series(0, ${runs}::int - 1) as n`)
    await db.query(sql`
      insert into job_runs (run_id, job_id, run_seq, is_extra, created_at)
      select ${RUN_PREFIX}::text || lpad(n::text, 8, '0'), 'job_' || n, 1, 0, 1 from generate_series(0, ${runs}::int - 1) as n`)
    await db.query(sql`analyze`)
  } finally {
    await db.close()
  }
}

async function countMissing(url: string, accepted: readonly number[]): Promise<number> {
  const db = await openPostgres({ url, queryTimeoutMs: 120_000 })
  try {
    const rows = await db.query<{ run_id: string }>(sql`
      select c.run_id from callbacks c join jobs j on j.id = c.job_id
      where c.run_id like ${`${RUN_PREFIX}%`} and j.status = 'completed'`)
    const stored = new Set(rows.map((row) => row.run_id))
    return accepted.filter((run) => !stored.has(runId(run))).length
  } finally {
    await db.close()
  }
}
