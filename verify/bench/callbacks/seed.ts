import type { Database } from '../../../src/db/database.ts'
import { type Sql, sql } from '../../../src/db/sql.ts'

export const SECRET = 'bench'
export const USERS = 500
/** More than any server can settle in that time. No callback is sent twice, because a repeated one is cheaper. */
export const JOBS_PER_SECOND = 12_000

/** Numbers from 0, as a recursive table. */
export function numbersBelow(count: number): Sql {
  return sql`with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n + 1 < ${count})`
}

/** The ids of runs and threads are UUIDs. Twelve digits at their end give the number of the job. */
const RUN = '00000000-0000-4000-8000-'
const THREAD = '00000000-0000-4000-9000-'
const DIGITS = sql`substr(cast(1000000000000 + n as text), 2)`
export const RUN_OF_N = sql`'00000000-0000-4000-8000-' || ${DIGITS}`
const THREAD_OF_N = sql`'00000000-0000-4000-9000-' || ${DIGITS}`

export interface RunningJobs {
  count: number
  type?: string
  /** The number of the first job. */
  from?: number
  /** The id of a run as SQL of `n`. */
  runOf?: Sql
}

/** Stores jobs with unfinished, known runs, and no check due; on either engine. */
export async function seedRunningJobs(
  db: Database,
  { count, type = 'report', from = 0, runOf = RUN_OF_N }: RunningJobs,
): Promise<void> {
  const numbers = sql`with recursive numbers (n) as (
    select cast(${from} as bigint) union all select n + 1 from numbers where n + 1 < ${from + count})`
  await db.query(sql`
    insert into jobs (id, type, status, input, created_by, thread_id, run_id, run_seq,
      check_attempts, deadline_at, created_at, started_at, updated_at)
    ${numbers}
    select 'job_' || n, cast(${type} as text), 'generating', '{"topic":"sales"}', 'user-' || (n % ${USERS}),
      ${THREAD_OF_N}, ${runOf}, 1, 0, 9000000000000, 1, 1, 1
    from numbers`)
  await db.query(sql`
    insert into job_checks (job_id, owner, due_at, starts, checks)
    ${numbers} select 'job_' || n, 'user-' || (n % ${USERS}), 9000000000000, 1, 0 from numbers`)
  await db.query(sql`
    insert into job_runs (run_id, job_id, run_seq, is_extra, created_at)
    ${numbers} select ${runOf}, 'job_' || n, 1, 0, 1 from numbers`)
  if (db.engine === 'postgres') await db.query(sql`analyze`)
  else await db.transaction((tx) => tx.exec('analyze'))
}

/** The callback of one of the jobs of `seedRunningJobs`. */
export function callbackRequest(n: number, type = 'report'): Buffer {
  const digits = String(n).padStart(12, '0')
  const body = JSON.stringify({
    run_id: `${RUN}${digits}`,
    thread_id: `${THREAD}${digits}`,
    assistant_id: type,
    metadata: { graph_id: type, job_id: `job_${n}` },
    status: 'success',
    kwargs: { input: { topic: 'sales', quarter: 3 }, webhook: `http://127.0.0.1/webhooks/jobs/${type}?token=secret` },
    created_at: '2026-01-31T12:00:00.000Z',
    run_started_at: '2026-01-31T12:00:00.100Z',
    run_ended_at: '2026-01-31T12:00:09.000Z',
    webhook_sent_at: '2026-01-31T12:00:09.010Z',
    values: { topic: 'sales', report: { title: 'Quarterly report', n, text: 'x'.repeat(200) } },
  })
  return Buffer.from(
    `POST /webhooks/jobs/${type} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n` +
      `x-webhook-secret: ${SECRET}\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  )
}
