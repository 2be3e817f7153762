import type { Queryable, Transaction } from '../db/database.ts'
import { rowsOf } from '../db/rows.ts'
import { sql } from '../db/sql.ts'
import type { PageRequest } from '../http/paging.ts'
import { isReachable } from './device-store.ts'
import type { PushOptOut } from './push-opt-out.ts'

export type NotificationRow = {
  id: string
  job_id: string | null
  title: string
  body: string
  data: string
  link: string | null
  priority: 'high' | 'normal'
  ttl_seconds: number
  dry_run: number
  created_by: string | null
  created_at: number
}

const COLUMNS = sql`id, job_id, title, body, data, link, priority, ttl_seconds, dry_run, created_by, created_at`

/**
 * Records a notification and its recipients, and queues one delivery for each reachable device among the targets, unless its
 * user turned push off.
 */
export async function insertNotification(
  tx: Transaction,
  notification: NotificationRow,
  targets: { subjects: readonly string[]; deviceIds: readonly string[]; pushOptOut: PushOptOut },
): Promise<void> {
  const { id, job_id, title, body, data, link, priority, ttl_seconds, dry_run, created_by, created_at } = notification
  await tx.query(sql`
    insert into notifications (cause, ${COLUMNS})
    values (${`api:${id}`}, ${id}, ${job_id}, ${title}, ${body}, ${data}, ${link}, ${priority}, ${ttl_seconds}, ${dry_run},
      ${created_by}, ${created_at})`)
  const subjects = rowsOf(
    tx.engine,
    targets.subjects.map((subject) => ({ subject })),
    { subject: 'text' },
  )
  const devices = rowsOf(
    tx.engine,
    targets.deviceIds.map((device) => ({ device })),
    { device: 'text' },
  )
  // Users without a delivery are recipients too: the text may be about the user. Before the deliveries, so that a device
  // that is deleted meanwhile has no delivery without a recipient.
  await tx.query(sql`
    insert into notification_recipients (notification_id, subject)
    select ${id}, t.subject from (
      select s.subject from ${subjects} as s
      union select d.subject from devices d where d.id in (select device from ${devices} as r)) as t`)
  await tx.query(sql`
    insert into deliveries (notification_id, device_id, state, attempts, next_attempt_at, created_at, updated_at)
    select ${id}, d.id, 'pending', 0, ${created_at}, ${created_at}, ${created_at} from devices d
    where ${isReachable(sql`${created_at}`)}
      and (d.id in (select device from ${devices} as r) or d.subject in (select subject from ${subjects} as s))
      and not ${targets.pushOptOut(sql`d.subject`)}
    on conflict (notification_id, device_id) do nothing`)
  tx.announce('deliveries')
}

/** Whether a notification without a job is addressed to this user. */
export async function isRecipient(db: Queryable, subject: string): Promise<boolean> {
  const rows = await db.query(sql`select 1 as found from notification_recipients where subject = ${subject} limit 1`)
  return rows.length > 0
}

export async function findNotification(db: Queryable, id: string): Promise<NotificationRow | undefined> {
  const [row] = await db.query<NotificationRow>(sql`select ${COLUMNS} from notifications where id = ${id}`)
  return row
}

export function findNotificationPage(db: Queryable, page: PageRequest<readonly [string]>): Promise<NotificationRow[]> {
  const after = page.after === null ? sql`1 = 1` : sql`id < ${page.after[0]}`
  return db.query<NotificationRow>(sql`
    select ${COLUMNS} from notifications where ${after} order by id desc limit ${page.limit + 1}`)
}

/** A page of the texts that were sent to this user and are not about a job. */
export function listNotificationsTo(
  db: Queryable,
  subject: string,
  { limit, after }: PageRequest<readonly [string]>,
): Promise<{ id: string; title: string; body: string }[]> {
  return db.query(sql`
    select n.id, n.title, n.body from notification_recipients r join notifications n on n.id = r.notification_id
    where r.subject = ${subject} and r.notification_id > ${after?.[0] ?? ''} order by r.notification_id limit ${limit + 1}`)
}

/** The texts that were sent about these jobs, read from the unique index of causes. */
export function listNotificationsOf(
  db: Queryable,
  jobIds: readonly string[],
): Promise<{ id: string; job_id: string; title: string; body: string }[]> {
  const jobs = rowsOf(
    db.engine,
    jobIds.map((id) => ({ id })),
    { id: 'text' },
  )
  return db.query(sql`
    select n.id, n.job_id, n.title, n.body from ${jobs} as r
    join notifications n on n.job_id = r.id and n.cause > r.id and n.cause < r.id || 'zzzz' order by n.id`)
}
