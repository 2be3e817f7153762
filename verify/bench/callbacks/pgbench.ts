import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findPostgres } from '../../../test/support/binaries.ts'
import { USERS } from './seed.ts'

const CLIENTS = 8

/** The table that `settleScript` and the Express handler write beside those of the service. */
export const USAGE_TABLE = `create table usage_records (job_id text primary key, subject text, period text not null,
  type text not null, input_tokens bigint not null, output_tokens bigint not null, total_tokens bigint not null,
  settled_at bigint not null)`

/**
 * The statements of a handler that settles one callback per transaction. Frozen: it still writes the rows of the day on
 * which the figure was introduced, even if the service now writes less. Its runs are named `run-0`, `run-1`, …
 */
export function settleScript(jobs: number): string {
  const id = `:client_id || '_' || :n || '_' || clock_timestamp()`
  return `\\set n random(0, ${jobs - 1})
begin;
select jobs.* from jobs join job_runs on job_runs.job_id = jobs.id where job_runs.run_id = 'run-' || :n for update of jobs;
update jobs set status = 'completed', output = repeat('x', 200), settled_by = 'callback',
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
insert into callbacks (id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body)
values ('cbk_' || :client_id || '_' || :n || '_' || clock_timestamp(), '/webhooks/jobs/report', 'report', 'job', 'thread',
  'run', 'success', 'applied', 1, repeat('x', 800));
insert into job_timeline (id, job_id, at, kind, via, detail, times, last_at)
  values ('t2' || ${id}, 'job_' || :n, 1, 'callback', null, '{}', 1, 1);
commit;
`
}

/** Commits per second. */
export function runPgbench(
  url: string,
  { script: text, folder, roundMs }: { script: string; folder: string; roundMs: number },
): number {
  const script = join(folder, 'pgbench.sql')
  writeFileSync(script, text)
  const seconds = String(Math.max(1, Math.round(roundMs / 1000)))
  const args = ['-n', '-c', String(CLIENTS), '-j', '1', '-T', seconds, '-f', script, url]
  const output = execFileSync(join(findPostgres() ?? '', 'pgbench'), args, {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  return Number(/tps = ([\d.]+)/.exec(output)?.[1] ?? Number.NaN)
}
