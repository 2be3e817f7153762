import type { Database, Row } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'

/** All stored rows that a settlement writes for one job. */
export interface JobRows {
  job: Row
  /** One row while the runtime is asked about the job. */
  checks: Row[]
  runs: Row[]
  /** What the job adds to the counters of its owner: one row once it has ended. */
  usage: Row[]
  counters: Row[]
  events: Row[]
  notifications: Row[]
  deliveries: Row[]
}

export async function readJobRows(db: Database, jobId: string): Promise<JobRows> {
  const [job] = await db.query(sql`select * from jobs where id = ${jobId}`)
  if (!job) throw new Error(`There is no job ${jobId}`)
  return {
    job,
    checks: await db.query(sql`select job_id from job_checks where job_id = ${jobId}`),
    runs: await db.query(sql`select * from job_runs where job_id = ${jobId} order by run_seq`),
    usage: await db.query(sql`
      select created_by as subject, type, input_tokens, output_tokens, total_tokens from jobs
      where id = ${jobId} and finished_at is not null`),
    counters: await db.query(sql`
      select * from usage_counters where subject = ${job.created_by ?? ''} and type <> '' order by period, type`),
    events: await db.query(
      sql`select subject, job_id, type, cause, data from events where job_id = ${jobId} order by seq`,
    ),
    notifications: await db.query(sql`select * from notifications where job_id = ${jobId} order by cause`),
    deliveries: await db.query(sql`
      select d.* from deliveries d join notifications n on n.id = d.notification_id
      where n.job_id = ${jobId} order by d.device_id`),
  }
}

/** Columns that may differ between two paths to the same end: the first hint, times, the number of checks, and names. */
const HAPPENSTANCE = /_at$|^(?:settled_by|first_hint|check_attempts|last_error|lease_token|lease_until)$/

/** The rows without these columns, so that two jobs can be compared. Ids are replaced by names. */
export function essenceOf(rows: JobRows): unknown {
  const { id, thread_id, run_id, created_by } = rows.job
  const names: [value: unknown, name: string][] = [
    ...rows.notifications.map((row, n): [unknown, string] => [row.id, `<notification ${n}>`]),
    ...rows.deliveries.map((row): [unknown, string] => [row.device_id, '<device>']),
    [id, '<job>'],
    [thread_id, '<thread>'],
    [run_id, '<run>'],
    [created_by, '<owner>'],
  ]
  // If a check saw the run running, there is an event for that. Without such a check there is none.
  const events = rows.events
    .filter(({ type }) => type !== 'job.updated')
    .map((event) => ({ ...event, data: { ...JSON.parse(String(event.data)), settled_by: undefined } }))
  let text = JSON.stringify({ ...rows, events }, (key, value) => (HAPPENSTANCE.test(key) ? undefined : value))
  for (const [value, name] of names) if (typeof value === 'string') text = text.replaceAll(value, name)
  text = text.replaceAll(/\b[0-9a-f]{32}\b/g, '<question>')
  return JSON.parse(text)
}

let devices = 0

/** Inserts a device of this user, as a registration would. */
export async function addDevice(db: Database, subject: string): Promise<void> {
  devices += 1
  const id = `dev_${devices}_${subject}`
  await db.query(sql`
    insert into devices (id, subject, token, token_hash, platform, provider, created_at, last_seen_at)
    values (${id}, ${subject}, ${`token of ${id}`}, ${id}, 'web', 'fcm', 0, 0)`)
}
