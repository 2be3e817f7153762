import type { Database, Row } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'

/** Everything that settling writes of one job, as it is stored. */
export interface JobRows {
  job: Row
  runs: Row[]
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
    runs: await db.query(sql`select * from job_runs where job_id = ${jobId} order by run_seq`),
    usage: await db.query(sql`select * from usage_records where job_id = ${jobId}`),
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

/** What may differ between two ways to the same end: who noticed, when, how often it was looked at, and names. */
const HAPPENSTANCE = /_at$|^(?:settled_by|first_hint|check_attempts|last_error|lease_token|lease_until|start_attempts)$/

/** The rows without it, so that two jobs can be compared; ids become the names of what they stand for. */
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
  // A look that saw it running tells its followers so; a run that ended unseen has no such moment.
  const events = rows.events
    .filter(({ type }) => type !== 'job.updated')
    .map((event) => ({ ...event, data: { ...JSON.parse(String(event.data)), settled_by: undefined } }))
  let text = JSON.stringify({ ...rows, events }, (key, value) => (HAPPENSTANCE.test(key) ? undefined : value))
  for (const [value, name] of names) if (typeof value === 'string') text = text.replaceAll(value, name)
  text = text.replaceAll(/\b[0-9a-f]{32}\b/g, '<question>')
  return JSON.parse(text)
}

let devices = 0

/** A device of this user's, as registering it would write it. */
export async function addDevice(db: Database, subject: string): Promise<void> {
  devices += 1
  const id = `dev_${devices}_${subject}`
  await db.query(sql`
    insert into devices (id, subject, token, token_hash, platform, created_at, last_seen_at)
    values (${id}, ${subject}, ${`token of ${id}`}, ${id}, 'web', 0, 0)`)
}
