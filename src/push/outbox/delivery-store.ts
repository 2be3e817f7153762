import type { Database, Queryable, Transaction } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { rowsOf } from '../../db/rows.ts'
import { type Sql, sql } from '../../db/sql.ts'
import type { Platform } from '../push-message.ts'

export const DELIVERY_STATES = ['pending', 'sent', 'failed', 'disabled', 'expired', 'no_credentials'] as const
export type DeliveryState = (typeof DELIVERY_STATES)[number]

/** A delivery that is due, with all it takes to send it. */
export type DueDelivery = {
  notification_id: string
  device_id: string
  attempts: number
  created_at: number
  job_id: string | null
  title: string
  body: string
  data: string
  link: string | null
  priority: 'high' | 'normal'
  ttl_seconds: number
  dry_run: number
  /** Since when the provider fails to take it; null when it does not. */
  retrying_since: number | null
  /** These are null when the device is gone. */
  token: string | null
  subject: string | null
  platform: Platform | null
  /** When the device was last seen, as of now. */
  seen_at: number | null
  disabled_at: number | null
  /** Since when the provider calls it dead without being believed. */
  called_dead_at: number | null
}

/** Takes due deliveries, longest due first; several nodes at once take different ones. */
export async function leaseDueDeliveries(
  db: Database,
  { limit, onlyNew = false }: { limit: number; onlyNew?: boolean },
  lease: { token: string; nowMs: number; untilMs: number },
): Promise<DueDelivery[]> {
  const wanted = onlyNew ? sql`attempts = 0 and` : sql``
  // Materialized: PostgreSQL might otherwise look for due ones again and again, and take more than the limit.
  const taken = await db.query<{ notification_id: string; device_id: string }>(sql`
    with due as materialized (
      select notification_id, device_id from deliveries
      where ${wanted} next_attempt_at <= ${lease.nowMs} and (lease_until is null or lease_until <= ${lease.nowMs})
      order by next_attempt_at limit ${limit} ${forUpdateSkipLocked(db.engine)})
    update deliveries set lease_token = ${lease.token}, lease_until = ${lease.untilMs}, attempts = attempts + 1
    from due where deliveries.notification_id = due.notification_id and deliveries.device_id = due.device_id
    returning deliveries.notification_id, deliveries.device_id`)
  if (taken.length === 0) return []
  return db.query<DueDelivery>(sql`
    select d.notification_id, d.device_id, d.attempts, d.created_at, d.retrying_since, n.job_id, n.title, n.body,
      n.data, n.link, n.priority, n.ttl_seconds, n.dry_run, v.token, v.subject, v.platform,
      v.last_seen_at as seen_at, v.disabled_at, v.called_dead_at
    from ${rowsOf(db.engine, taken, KEY)} as r
    join deliveries d on d.notification_id = r.notification_id and d.device_id = r.device_id
    join notifications n on n.id = d.notification_id
    left join devices v on v.id = d.device_id
    where d.lease_token = ${lease.token} order by d.next_attempt_at, d.notification_id, d.device_id`)
}

/** What became of one attempt. */
export type DeliveryMark = {
  notification_id: string
  device_id: string
  lease_token: string
  state: DeliveryState
  /** Null when there is nothing more to do. */
  next_attempt_at: number | null
  provider_message_id: string | null
  last_error: string | null
  retrying_since: number | null
  at: number
  /** Whether the provider calls the device dead without being believed; null leaves it as it is. */
  doubt: 'raised' | 'cleared' | null
  /** Why the device will get nothing more; null leaves it as it is. */
  disable_reason: string | null
  /** When the device was last seen as the attempt began; seen since, it is not disabled. */
  seen_at: number | null
}

/** What became of a delivery, for whoever keeps a record of it. */
export type DeliveryNote = Pick<DeliveryMark, 'notification_id' | 'device_id' | 'state' | 'last_error' | 'at'> & {
  job_id: string | null
  attempts: number
}

const KEY = { notification_id: 'text', device_id: 'text' } as const

function keyOf({ notification_id, device_id }: { notification_id: string; device_id: string }): string {
  return `${notification_id} ${device_id}`
}

/** A mark whose lease is gone changes nothing: whoever holds it now writes its own. Answers with those that counted. */
export async function markDeliveries<Mark extends DeliveryMark>(
  tx: Transaction,
  marks: readonly Mark[],
): Promise<Mark[]> {
  const columns = {
    ...KEY,
    lease_token: 'text',
    state: 'text',
    next_attempt_at: 'bigint',
    provider_message_id: 'text',
    last_error: 'text',
    retrying_since: 'bigint',
    at: 'bigint',
    disable_reason: 'text',
    seen_at: 'bigint',
  } as const
  const held = await tx.query<{ notification_id: string; device_id: string }>(sql`
    update deliveries set
      state = r.state, next_attempt_at = r.next_attempt_at, updated_at = r.at, lease_token = null, lease_until = null,
      provider_message_id = r.provider_message_id, last_error = r.last_error, retrying_since = r.retrying_since
    from ${rowsOf(tx.engine, marks, columns)} as r
    where deliveries.notification_id = r.notification_id and deliveries.device_id = r.device_id
      and deliveries.lease_token = r.lease_token
    returning deliveries.notification_id, deliveries.device_id`)
  const counted = new Set(held.map(keyOf))
  const marked = marks.filter((mark) => counted.has(keyOf(mark)))
  const update = async (set: Sql, those: Mark[]) => {
    if (those.length === 0) return
    // A device that registered again while the message was under way is alive, whatever the answer says.
    await tx.query(sql`
      update devices set ${set} from ${rowsOf(tx.engine, those, columns)} as r
      where devices.id = r.device_id and devices.disabled_at is null and devices.last_seen_at = r.seen_at`)
  }
  await update(
    sql`disabled_at = r.at, disabled_reason = r.disable_reason`,
    marked.filter(({ disable_reason }) => disable_reason !== null),
  )
  await update(
    sql`called_dead_at = coalesce(devices.called_dead_at, r.at)`,
    marked.filter(({ doubt }) => doubt === 'raised'),
  )
  await update(
    sql`called_dead_at = null`,
    marked.filter(({ doubt }) => doubt === 'cleared'),
  )
  return marked
}

/** When the next one falls due after now; null when none waits. */
export async function nextDueAt(db: Queryable, nowMs: number): Promise<number | null> {
  const [row] = await db.query<{ due: number | null }>(
    sql`select min(next_attempt_at) as due from deliveries where next_attempt_at > ${nowMs}`,
  )
  return row?.due ?? null
}

const MAX_COUNTED = 10_000

export type Backlog = {
  depth: number
  /** Since when the oldest is due. */
  due_at: number | null
  /** What waits for credentials, beside the depth. */
  shelved: number
}

/** How much is to be sent, one more than `MAX_COUNTED` standing for any number above it. */
export async function findBacklog(db: Queryable): Promise<Backlog> {
  const waiting = sql`from deliveries where next_attempt_at is not null`
  const shelved = sql`from deliveries where state = 'no_credentials'`
  const count = (some: Sql) => sql`(select count(*) from (select 1 ${some} limit ${MAX_COUNTED + 1}) as counted)`
  const [row] = await db.query<Backlog>(sql`
    select ${count(waiting)} as depth, (select min(next_attempt_at) ${waiting}) as due_at, ${count(shelved)} as shelved`)
  return row ?? { depth: 0, due_at: null, shelved: 0 }
}

export type ShelvedDelivery = { notification_id: string; device_id: string; attempts: number; job_id: string | null }

/** Without credentials nothing can be sent: what is due waits, outside the queue. */
export async function shelveDueDeliveries(
  tx: Transaction,
  { nowMs, limit }: { nowMs: number; limit: number },
): Promise<ShelvedDelivery[]> {
  return tx.query<ShelvedDelivery>(sql`
    with due as materialized (
      select notification_id, device_id from deliveries
      where next_attempt_at <= ${nowMs} and (lease_until is null or lease_until <= ${nowMs})
      limit ${limit} ${forUpdateSkipLocked(tx.engine)})
    update deliveries set state = 'no_credentials', next_attempt_at = null, retrying_since = null, updated_at = ${nowMs}
    from due where deliveries.notification_id = due.notification_id and deliveries.device_id = due.device_id
    returning deliveries.notification_id, deliveries.device_id, deliveries.attempts,
      (select n.job_id from notifications n where n.id = deliveries.notification_id) as job_id`)
}

/** There are credentials now: what waited for them is due. True when there may be more of it. */
export async function unshelveDeliveries(
  db: Database,
  { nowMs, limit }: { nowMs: number; limit: number },
): Promise<boolean> {
  const unshelved = await db.query(sql`
    update deliveries set state = 'pending', next_attempt_at = ${nowMs}, updated_at = ${nowMs}
    where (notification_id, device_id) in (
      select notification_id, device_id from deliveries where state = 'no_credentials' limit ${limit})
    returning notification_id`)
  return unshelved.length === limit
}

export type DeliveryRow = {
  device_id: string
  state: DeliveryState
  attempts: number
  provider_message_id: string | null
  last_error: string | null
  updated_at: number
}

export function listDeliveries(db: Queryable, notificationId: string, limit: number): Promise<DeliveryRow[]> {
  return db.query<DeliveryRow>(sql`
    select device_id, state, attempts, provider_message_id, last_error, updated_at from deliveries
    where notification_id = ${notificationId} order by device_id limit ${limit}`)
}

export function countDeliveries(
  db: Queryable,
  notificationId: string,
): Promise<{ state: DeliveryState; deliveries: number }[]> {
  return db.query(sql`
    select state, count(*) as deliveries from deliveries where notification_id = ${notificationId} group by state`)
}
