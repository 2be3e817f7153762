import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { findPostgres } from '../../test/support/binaries.ts'
import { startPostgres } from '../../test/support/postgres.ts'
import { type Figures, median } from './comparison.ts'
import { applyLoad, type Sample } from './load.ts'
import { installPackages } from './packages.ts'
import { type Server, startServer } from './server.ts'

export interface CallbackOutcome {
  ours: Figures
  express: Figures
  /** A server that only reads and answers: the upper bound for any service on this framework. */
  echo: Figures
  pgbenchPerSecond: number
  pgbenchSettlingPerSecond: number
  vsExpress: number
  vsPgbench: number
  vsPgbenchSettling: number
}

interface Pace {
  rounds: number
  roundMs: number
  warmUpMs: number
}

export const SECRET = 'bench'
const CONNECTIONS = 256
export const USERS = 500
/** More than any server can settle in that time. No callback is sent twice, because a repeated one is cheaper. */
export const JOBS_PER_SECOND = 12_000
const PGBENCH_CLIENTS = 8

/**
 * Durable, settled callbacks per second on PostgreSQL: the service, an Express handler that writes the same rows in one
 * transaction per request, pgbench inserting one callback per commit, and pgbench writing all rows of one settled callback
 * per commit, in turns on one server.
 */
export async function compareCallbacks({ rounds, roundMs, warmUpMs }: Pace): Promise<CallbackOutcome> {
  installPackages('express')
  const postgres = await startPostgres()
  const issuer = await startIdentityProvider()
  const folder = mkdtempSync(join(tmpdir(), 'bench-callbacks-'))
  const jobs = Math.ceil((JOBS_PER_SECOND * (warmUpMs + rounds * roundMs)) / 1000)
  const servers: Server[] = []
  try {
    const [oursUrl, expressUrl, pgbenchUrl] = [
      await seeded(await postgres.createDatabase(), jobs),
      await seeded(await postgres.createDatabase(), jobs),
      await seeded(await postgres.createDatabase(), jobs),
    ]
    const types = join(folder, 'job-types.json')
    writeFileSync(
      types,
      JSON.stringify({ types: { report: { assistant_id: 'report', output_key: 'report', may_pause: false } } }),
    )
    const ours = await startServer({
      script: '../../bin/project-api.js',
      args: ['serve'],
      env: {
        NODE_ENV: 'development',
        DATABASE_URL: oursUrl,
        ISSUER_URL: issuer.issuer,
        WEBHOOK_SECRET: SECRET,
        JOB_TYPES_FILE: types,
      },
    })
    servers.push(ours)
    const env = { NODE_ENV: 'production', DATABASE_URL: expressUrl, WEBHOOK_SECRET: SECRET }
    const express = await startServer({ script: './express/callbacks.js', env })
    servers.push(express)
    const echo = await startServer({ script: './servers/echo-server.ts', env: { NODE_ENV: 'production' } })
    servers.push(echo)

    const requests = Array.from({ length: jobs }, (_, n) => callbackRequest(n))
    const [loadOurs, loadExpress] = [loader(ours, requests), loader(express, requests)]
    const loadEcho = (durationMs: number) =>
      applyLoad({ port: echo.port, requests, connections: CONNECTIONS, durationMs })
    const run = (script: string) => pgbench(pgbenchUrl, { script, folder, roundMs })
    await loadOurs(warmUpMs)
    await loadExpress(warmUpMs)
    await loadEcho(warmUpMs)
    const mine: Sample[] = []
    const theirs: Sample[] = []
    const echoed: Sample[] = []
    const bare: number[] = []
    const settling: number[] = []
    for (let round = 0; round < rounds; round++) {
      mine.push(await loadOurs(roundMs))
      theirs.push(await loadExpress(roundMs))
      echoed.push(await loadEcho(roundMs))
      bare.push(run(INSERT))
      settling.push(run(settleScript(jobs)))
    }
    await checkSettled(oursUrl)
    await checkSettled(expressUrl)
    const ratios = (others: readonly number[]) => median(mine.map((one, n) => one.requestsPerSecond / (others[n] ?? 1)))
    return {
      ours: middle(mine),
      express: middle(theirs),
      echo: middle(echoed),
      pgbenchPerSecond: median(bare),
      pgbenchSettlingPerSecond: median(settling),
      vsExpress: ratios(theirs.map((sample) => sample.requestsPerSecond)),
      vsPgbench: ratios(bare),
      vsPgbenchSettling: ratios(settling),
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

/** Of one of the jobs of `seedRunningJobs`. */
export function callbackRequest(n: number): Buffer {
  const body = JSON.stringify({
    run_id: runOf(n),
    thread_id: `thread-${n}`,
    assistant_id: 'report',
    metadata: { graph_id: 'report', job_id: `job_${n}` },
    status: 'success',
    kwargs: { input: { topic: 'sales', quarter: 3 }, webhook: 'http://127.0.0.1/webhooks/jobs/report?token=secret' },
    created_at: '2026-01-31T12:00:00.000Z',
    run_started_at: '2026-01-31T12:00:00.100Z',
    run_ended_at: '2026-01-31T12:00:09.000Z',
    webhook_sent_at: '2026-01-31T12:00:09.010Z',
    values: { topic: 'sales', report: { title: 'Quarterly report', n, text: 'x'.repeat(200) } },
  })
  return Buffer.from(
    'POST /webhooks/jobs/report HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n' +
      `x-webhook-secret: ${SECRET}\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  )
}

function runOf(n: number): string {
  return `run-${n}`
}

async function seeded(url: string, jobs: number): Promise<string> {
  const db = await openPostgres({ url, queryTimeoutMs: 120_000 })
  try {
    await migrate(db)
    await seedRunningJobs(db, jobs)
    return url
  } finally {
    await db.close()
  }
}

/** Stores jobs with unfinished, known runs, and no check due; on either engine. */
export async function seedRunningJobs(db: Database, jobs: number): Promise<void> {
  const numbers = sql`with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n + 1 < ${jobs})`
  await db.query(sql`
    insert into jobs (id, type, status, input, created_by, thread_id, run_id, run_seq, start_attempts, next_check_at,
      check_attempts, deadline_at, created_at, started_at, updated_at)
    ${numbers}
    select 'job_' || n, 'report', 'generating', '{"topic":"sales"}', 'user-' || (n % ${USERS}), 'thread-' || n,
      'run-' || n, 1, 1, 9000000000000, 0, 9000000000000, 1, 1, 1
    from numbers`)
  await db.query(sql`
    insert into job_runs (run_id, job_id, run_seq, created_at)
    ${numbers} select 'run-' || n, 'job_' || n, 1, 1 from numbers`)
  await db.query(sql`analyze`)
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

const INSERT = `\\set n random(1, 1000000000)
insert into callbacks (id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body)
values ('cbk_' || :client_id || '_' || :n || '_' || clock_timestamp(), '/webhooks/jobs/report', 'report', 'job', 'thread',
  'run', 'success', 'applied', 1, repeat('x', 800));
`

/** The statements of the Express handler. */
function settleScript(jobs: number): string {
  const id = `:client_id || '_' || :n || '_' || clock_timestamp()`
  return `\\set n random(0, ${jobs - 1})
begin;
select jobs.* from jobs join job_runs on job_runs.job_id = jobs.id where job_runs.run_id = 'run-' || :n for update of jobs;
update jobs set status = 'completed', output = repeat('x', 200), settled_by = 'callback', next_check_at = null,
  finished_at = 1, updated_at = 1 where id = 'job_' || :n;
insert into usage_records (job_id, subject, period, type, input_tokens, output_tokens, total_tokens, settled_at)
  values ('job_' || :n, 'user', '2026-01', 'report', 0, 0, 0, 1) on conflict do nothing;
insert into usage_counters (subject, period, type, runs, input_tokens, output_tokens, total_tokens)
  values ('user-' || (:n % ${USERS}), '2026-01', 'report', 1, 0, 0, 0)
  on conflict (subject, period, type) do update set runs = usage_counters.runs + 1;
insert into events (subject, job_id, type, cause, data, created_at)
  values ('user', 'job_' || :n, 'job.completed', ${id}, repeat('x', 120), 1);
insert into job_timeline (id, job_id, at, kind, via, detail, times, last_at)
  values ('t1' || ${id}, 'job_' || :n, 1, 'transition', 'callback', '{}', 1, 1);
${INSERT.slice(INSERT.indexOf('insert'))}insert into job_timeline (id, job_id, at, kind, via, detail, times, last_at)
  values ('t2' || ${id}, 'job_' || :n, 1, 'callback', null, '{}', 1, 1);
commit;
`
}

function pgbench(
  url: string,
  { script: text, folder, roundMs }: { script: string; folder: string; roundMs: number },
): number {
  const script = join(folder, 'pgbench.sql')
  writeFileSync(script, text)
  const seconds = String(Math.max(1, Math.round(roundMs / 1000)))
  const args = ['-n', '-c', String(PGBENCH_CLIENTS), '-j', '1', '-T', seconds, '-f', script, url]
  const output = execFileSync(join(findPostgres() ?? '', 'pgbench'), args, {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  return Number(/tps = ([\d.]+)/.exec(output)?.[1] ?? Number.NaN)
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
