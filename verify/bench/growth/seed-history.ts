import type { Database } from '../../../src/db/database.ts'
import { type Sql, sql } from '../../../src/db/sql.ts'

/** Jobs at the end of the list that have not ended. Their number does not grow with the others. */
export const UNFINISHED = 400
/** The last ones of them, this many, are due for a check. */
const DUE = 300
export const JOBS_PER_OWNER = 100
const CHUNK = 50_000

/** Twelve digits of the number, for the end of an id. */
const DIGITS = sql`substr(cast(1000000000000 + n as text), 2)`
const JOB = idAt('job')
const RUN = sql`'00000000-0000-4000-8000-' || ${DIGITS}`
const THREAD = sql`'00000000-0000-4000-9000-' || ${DIGITS}`
/** Disabled, so that the end of a job queues no push. */
const DEVICE = sql`'dev_' || (n / ${JOBS_PER_OWNER})`
const OWNER = sql`'owner-' || (n / ${JOBS_PER_OWNER})`
/**
 * The number of ended jobs of each rare kind. It does not depend on the number of other jobs, so that pages have the same
 * size.
 */
const RARE = 25

/** Sorts like an id created in 2023: the digits are in the time part, so that ids sort by number. */
function idAt(prefix: string, place = '0'): Sql {
  const [start, end] = [`${prefix}_01h`, `000000000000000${place}`]
  return sql`cast(${start} as text) || substr(cast(10000000 + n as text), 2) || cast(${end} as text)`
}

export function jobIdOf(n: number): string {
  return `job_01h${String(n).padStart(7, '0')}${'0'.repeat(16)}`
}

export function runIdOf(n: number): string {
  return `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`
}

export function threadIdOf(n: number): string {
  return `00000000-0000-4000-9000-${String(n).padStart(12, '0')}`
}

/** Fills a migrated database with jobs and everything that belongs to them, by a few statements for each 50,000 jobs. */
export async function seedHistory(db: Database, jobs: number): Promise<void> {
  const ended = jobs - UNFINISHED
  for (let from = 0; from < jobs; from += CHUNK) {
    const numbers = (end: number) => sql`with recursive numbers (n) as (
      select cast(${from} as bigint) union all select n + 1 from numbers where n + 1 < ${Math.min(end, from + CHUNK)})`
    for (const statement of statementsFor(numbers, { jobs, ended, from })) await db.query(statement)
  }
  if (db.engine === 'postgres') await db.query(sql`vacuum analyze`)
  else await db.transaction((tx) => tx.exec('analyze'))
}

function statementsFor(
  numbers: (end: number) => Sql,
  { jobs, ended, from }: { jobs: number; ended: number; from: number },
): Sql[] {
  const isEnded = sql`n < ${ended}`
  const every = Math.floor(ended / RARE)
  const is = (place: number) => sql`(${isEnded} and n % ${every} = ${place})`
  const all = numbers(jobs)
  const past = numbers(ended)
  const statements = [
    sql`insert into jobs (id, retry_of, type, status, input, output, error_code, error_message, project_id, created_by,
        thread_id, run_id, trace_id, settled_by, run_seq, check_attempts, deadline_at,
        created_at, started_at, finished_at, updated_at)
      ${all} select ${JOB}, ${JOB}, case when ${is(5)} then 'rare' else 'report' end,
        case when ${is(1)} then 'failed' when ${is(2)} then 'cancelled' when ${isEnded} then 'completed' else 'generating' end, '{"topic":"sales","quarter":3}',
        case when ${isEnded} then '{"title":"Quarterly report","text":"Numbers for the board"}' end,
        case when ${is(1)} then 'run_failed' end, case when ${is(1)} then 'It failed' end,
        case when ${is(3)} then 'prj_rare' else 'prj_large' end, ${OWNER}, ${THREAD}, ${RUN},
        'trace-' || n,
        case when ${isEnded} then case when ${is(9)} then 'sweep' else 'callback' end end,
        1, 0, 9000000000000, 1700000000000 + n, 1700000000000 + n,
        case when ${isEnded} then 1700000000000 + n end, 1700000000000 + n
      from numbers`,
    sql`insert into job_checks (job_id, owner, due_at, starts, checks)
      ${all} select ${JOB}, ${OWNER}, case when n >= ${jobs - DUE} then 1 else 9000000000000 end, 1, 0
      from numbers where not (${isEnded})`,
    sql`insert into job_runs (run_id, job_id, run_seq, is_extra, created_at)
      ${all} select ${RUN}, ${JOB}, 1, 0, 1700000000000 + n from numbers`,
    sql`insert into events (subject, job_id, type, cause, data, created_at)
      ${all} select ${OWNER}, ${JOB}, 'job.created', ${JOB} || ':created', '{}', 1700000000000 + n from numbers`,
  ]
  const owners = sql`where n % ${JOBS_PER_OWNER} = 0`
  statements.push(
    sql`insert into users (sub, email, push_enabled, version, created_at, updated_at, last_seen_at)
      ${all} select ${OWNER}, 'mail-of-' || ${OWNER} || '@example.com', 1, 1, 1700000000000 + n, 1, 1 from numbers ${owners}`,
    sql`insert into devices (id, subject, token, token_hash, platform, provider, created_at, last_seen_at, disabled_at)
      ${all} select ${DEVICE}, ${OWNER}, ${DEVICE}, ${DEVICE}, 'web', 'fcm', 1, 1, 1 from numbers ${owners}`,
  )
  if (from >= ended) return statements
  return [
    ...statements,
    sql`insert into callbacks (id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body)
      ${past} select ${idAt('cbk')}, '/webhooks/jobs/report',
        case when ${is(5)} then 'rare' else 'report' end, ${JOB}, ${THREAD}, ${RUN}, 'success',
        case when ${is(4)} then 'stale' else 'applied' end,
        1700000000000 + n, '{"status":"success","values":{"report":{"title":"Quarterly report"}}}' from numbers`,
    ...['1', '2', '3'].map(
      (place) => sql`insert into job_timeline (id, job_id, at, kind, via, detail, times, last_at)
        ${past} select ${idAt('tml', place)}, ${JOB}, 1700000000000 + n, 'transition', 'callback', '{}', 1, 1 from numbers`,
    ),
    sql`insert into events (subject, job_id, type, cause, data, created_at)
      ${past} select ${OWNER}, ${JOB}, 'job.completed', ${JOB} || ':1:completed', '{}', 1700000000000 + n from numbers`,
    sql`insert into notifications (id, cause, job_id, title, body, data, priority, ttl_seconds, dry_run, created_at)
      ${past} select ${idAt('ntf')}, ${JOB} || ':1:completed', ${JOB}, 'Done', 'Done', '{}', 'high', 60, 0, 1700000000000 + n
      from numbers`,
    sql`insert into deliveries (notification_id, device_id, state, attempts, created_at, updated_at)
      ${past} select ${idAt('ntf')}, ${DEVICE}, case when ${is(6)} then 'failed' else 'sent' end, 1, 1, 1 from numbers`,
    sql`insert into audit (id, at, actor_kind, actor_id, action, object_kind, object_id)
      ${past} select ${idAt('aud')}, 1700000000000 + n, 'user', case when ${is(7)} then 'rare' else 'root' end,
        case when ${is(8)} then 'user.blocked' else 'job.checked' end, 'job', ${JOB} from numbers`,
  ]
}
