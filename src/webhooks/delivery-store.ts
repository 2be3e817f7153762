import type { Database, Queryable, Transaction } from '../db/database.ts'
import { forUpdate, forUpdateSkipLocked } from '../db/locking.ts'
import { isAmong, rowsOf } from '../db/rows.ts'
import { join, sql } from '../db/sql.ts'
import {
  countSome,
  type DeliveryLease,
  type DeliveryTable,
  isUnleased,
  leaseRows,
  markRows,
  type RowMark,
} from '../deliveries/delivery-table.ts'
import { type EventType, findOldest } from '../events/event-store.ts'
import type { PageRequest } from '../http/paging.ts'

/** `expired`: its event was deleted before the delivery succeeded. */
export const WEBHOOK_STATES = ['pending', 'sent', 'failed', 'expired'] as const
export type WebhookState = (typeof WEBHOOK_STATES)[number]

type DeliveryKey = { event_seq: number; endpoint_id: string }
const KEY = { event_seq: 'bigint', endpoint_id: 'text' } as const

const WEBHOOK_DELIVERIES: DeliveryTable<DeliveryKey> = {
  name: sql`webhook_deliveries`,
  key: KEY,
  keyList: sql`webhook_deliveries.event_seq, webhook_deliveries.endpoint_id`,
  isSame: sql`webhook_deliveries.event_seq = r.event_seq and webhook_deliveries.endpoint_id = r.endpoint_id`,
  keyOf: ({ event_seq, endpoint_id }) => `${event_seq} ${endpoint_id}`,
}

const ID = /^whd_([0-9a-z]{26})(\d{1,15})$/

/** A delivery has no id column: its id is made of the ids of its endpoint and its event. */
export function webhookDeliveryId({ endpoint_id, event_seq }: DeliveryKey): string {
  return `whd_${endpoint_id.slice('whe_'.length)}${event_seq}`
}

export function readWebhookDeliveryId(id: string): DeliveryKey | undefined {
  const [, endpoint, seq] = ID.exec(id) ?? []
  return endpoint === undefined ? undefined : { endpoint_id: `whe_${endpoint}`, event_seq: Number(seq) }
}

export type NewDelivery = DeliveryKey & { event_type: EventType }

/**
 * Writes one delivery for each event and endpoint, due now. One that exists stays as it is; with `again`, one that failed
 * becomes due again.
 */
export async function insertDeliveries(
  tx: Transaction,
  wanted: { deliveries: readonly NewDelivery[]; atMs: number; again?: boolean },
): Promise<void> {
  const { deliveries, atMs, again = false } = wanted
  if (deliveries.length === 0) return
  const onConflict = again
    ? sql`update set state = 'pending', attempts = 0, next_attempt_at = ${atMs}, last_error = null, updated_at = ${atMs}
        where webhook_deliveries.state in ('failed', 'expired')`
    : sql`nothing`
  await tx.query(sql`
    insert into webhook_deliveries (event_seq, endpoint_id, event_type, state, attempts, next_attempt_at, attempt_log,
      created_at, updated_at)
    select r.event_seq, r.endpoint_id, r.event_type, 'pending', 0, ${atMs}, '[]', ${atMs}, ${atMs}
    from ${rowsOf(tx.engine, deliveries, { ...KEY, event_type: 'text' })} as r where true
    on conflict (event_seq, endpoint_id) do ${onConflict}`)
  tx.announce('webhooks')
}

/** The endpoints that are not disabled, and whether a delivery is due: 1 or 0. */
export function findActiveEndpoints(db: Queryable, nowMs: number): Promise<{ id: string; url: string; due: number }[]> {
  return db.query(sql`
    select id, url, case when exists (
      select 1 from webhook_deliveries d
      where d.endpoint_id = e.id and d.next_attempt_at <= ${nowMs} and ${isUnleased(nowMs)}) then 1 else 0 end as due
    from webhook_endpoints e where disabled_at is null order by id`)
}

/** A leased delivery with what its endpoint needs. */
export type DueWebhook = DeliveryKey & {
  event_type: EventType
  attempts: number
  attempt_log: string
  url: string
  secret: string
  old_secret: string | null
  old_secret_until: number | null
}

/** Leases due deliveries of each endpoint, up to its share, longest due first. */
export async function leaseShares(
  db: Database,
  shares: readonly { id: string; limit: number }[],
  lease: DeliveryLease,
): Promise<DueWebhook[]> {
  const selects = shares.map(
    ({ id, limit }) => sql`select event_seq, endpoint_id from (
      select event_seq, endpoint_id from webhook_deliveries
      where endpoint_id = ${id} and next_attempt_at <= ${lease.nowMs} and ${isUnleased(lease.nowMs)}
      order by next_attempt_at limit ${limit} ${forUpdateSkipLocked(db.engine)}) as share`,
  )
  const taken = await leaseRows(db, WEBHOOK_DELIVERIES, { due: join(selects, ' union all '), lease })
  if (taken.length === 0) return []
  // An endpoint that was disabled or deleted meanwhile gets nothing: the lease of its delivery expires.
  return db.query<DueWebhook>(sql`
    select d.event_seq, d.endpoint_id, d.event_type, d.attempts, d.attempt_log, e.url, e.secret, e.old_secret,
      e.old_secret_until
    from ${rowsOf(db.engine, taken, KEY)} as r
    join webhook_deliveries d on d.event_seq = r.event_seq and d.endpoint_id = r.endpoint_id
    join webhook_endpoints e on e.id = d.endpoint_id and e.disabled_at is null
    where d.lease_token = ${lease.token} order by d.next_attempt_at, d.event_seq`)
}

/** Releases the deliveries of a lease that were not sent: the attempt does not count. */
export async function releaseShares(
  db: Queryable,
  shares: readonly { id: string }[],
  { token, nowMs }: DeliveryLease,
): Promise<void> {
  const ids = isAmong(
    db.engine,
    sql`endpoint_id`,
    shares.map(({ id }) => id),
  )
  await db.query(sql`
    update webhook_deliveries set attempts = attempts - 1, lease_token = null, lease_node = null, lease_until = null
    where ${ids} and next_attempt_at <= ${nowMs} and lease_token = ${token}`)
}

export type WebhookMark = DeliveryKey & RowMark & { state: WebhookState; attempt_log: string }

export function markWebhooks<Mark extends WebhookMark>(
  tx: Transaction,
  { marks, atMs }: { marks: readonly Mark[]; atMs: number },
): Promise<Mark[]> {
  const set = sql`attempt_log = r.attempt_log`
  return markRows(tx, WEBHOOK_DELIVERIES, { marks, atMs, columns: { attempt_log: 'text' }, set })
}

/** When the next delivery to an endpoint that is not disabled becomes due; null if there is none. */
export async function nextWebhookDueAt(db: Queryable, nowMs: number): Promise<number | null> {
  const [row] = await db.query<{ due: number | null }>(sql`
    select min((select min(d.next_attempt_at) from webhook_deliveries d
      where d.endpoint_id = e.id and d.next_attempt_at > ${nowMs})) as due
    from webhook_endpoints e where e.disabled_at is null`)
  return row?.due ?? null
}

/** How many deliveries wait for endpoints that are not disabled; 10,001 stands for any number above 10,000. */
export async function findWebhookBacklog(db: Queryable): Promise<{ depth: number; due_at: number | null }> {
  const waiting = sql`from webhook_deliveries d join webhook_endpoints e on e.id = d.endpoint_id and e.disabled_at is null
    where d.next_attempt_at is not null`
  const [row] = await db.query<{ depth: number; due_at: number | null }>(sql`
    select ${countSome(waiting)} as depth, (
      select min((select min(d.next_attempt_at) from webhook_deliveries d
        where d.endpoint_id = e.id and d.next_attempt_at is not null))
      from webhook_endpoints e where e.disabled_at is null) as due_at`)
  return row ?? { depth: 0, due_at: null }
}

export type ListedWebhook = DeliveryKey & {
  event_type: EventType
  state: WebhookState
  attempts: number
  next_attempt_at: number | null
  last_error: string | null
  attempt_log: string
  created_at: number
  updated_at: number
}

const LISTED = sql`event_seq, endpoint_id, event_type, state, attempts, next_attempt_at, last_error, attempt_log,
  created_at, updated_at`

/** A page of an endpoint's deliveries, newest event first. */
export function findWebhookPage(
  db: Queryable,
  wanted: { endpointId: string; state: 'failed' | 'expired' | undefined; eventSeq: number | undefined },
  { after, limit }: PageRequest<readonly [number]>,
): Promise<ListedWebhook[]> {
  const { endpointId, state, eventSeq } = wanted
  const isBefore = after === null ? sql`1 = 1` : sql`event_seq < ${after[0]}`
  const isOfEvent = eventSeq === undefined ? sql`1 = 1` : sql`event_seq = ${eventSeq}`
  // Repeats the condition of the partial index: without it, neither engine uses the index.
  const isInState = state === undefined ? sql`1 = 1` : sql`state = ${state} and state not in ('sent', 'pending')`
  return db.query<ListedWebhook>(sql`
    select ${LISTED} from webhook_deliveries where endpoint_id = ${endpointId} and ${isInState} and ${isBefore}
      and ${isOfEvent}
    order by event_seq desc limit ${limit + 1}`)
}

/** `leased` is 1 while a worker sends it. */
export async function lockWebhook(
  tx: Transaction,
  key: DeliveryKey,
  nowMs: number,
): Promise<(ListedWebhook & { leased: number }) | undefined> {
  const [row] = await tx.query<ListedWebhook & { leased: number }>(sql`
    select ${LISTED}, case when ${isUnleased(nowMs)} then 0 else 1 end as leased from webhook_deliveries
    where event_seq = ${key.event_seq} and endpoint_id = ${key.endpoint_id} ${forUpdate(tx.engine)}`)
  return row
}

/** Makes a delivery due now, with all its attempts. */
export async function requeueWebhook(tx: Transaction, delivery: ListedWebhook, atMs: number): Promise<ListedWebhook> {
  const { event_seq, endpoint_id } = delivery
  await tx.query(sql`
    update webhook_deliveries set state = 'pending', attempts = 0, next_attempt_at = ${atMs}, last_error = null,
      updated_at = ${atMs}
    where event_seq = ${event_seq} and endpoint_id = ${endpoint_id}`)
  tx.announce('webhooks')
  return { ...delivery, state: 'pending', attempts: 0, next_attempt_at: atMs, last_error: null, updated_at: atMs }
}

/** Deletes the deliveries of events that this transaction deletes. */
export async function deleteDeliveriesOf(tx: Transaction, events: readonly { seq: number }[]): Promise<void> {
  if (events.length === 0) return
  const seqs = rowsOf(
    tx.engine,
    events.map(({ seq }) => ({ seq })),
    { seq: 'bigint' },
  )
  await tx.query(sql`delete from webhook_deliveries where event_seq in (select r.seq from ${seqs} as r)`)
}

/**
 * Deletes a bounded number of old deliveries, among those whose event was trimmed, and returns them. Those that wait for
 * an enabled endpoint stay: their next attempt makes them `expired`.
 */
export async function deleteOldDeliveries(
  tx: Transaction,
  { beforeMs, limit }: { beforeMs: number; limit: number },
): Promise<{ endpoint_id: string; next_attempt_at: number | null }[]> {
  return tx.query(sql`
    delete from webhook_deliveries where (event_seq, endpoint_id) in (
      select event_seq, endpoint_id from webhook_deliveries d
      where event_seq <= ${await findOldest(tx)} and created_at < ${beforeMs} and (next_attempt_at is null
        or not exists (select 1 from webhook_endpoints e where e.id = d.endpoint_id and e.disabled_at is null))
      order by event_seq, endpoint_id limit ${limit})
    returning endpoint_id, next_attempt_at`)
}

/** The position up to which deliveries were written; undefined while another node writes some. */
export async function lockWebhookCursor(tx: Transaction): Promise<number | undefined> {
  const [row] = await tx.query<{ position: number }>(
    sql`select position from webhook_cursor where id = 1 ${forUpdateSkipLocked(tx.engine)}`,
  )
  return row?.position
}

export async function moveWebhookCursor(tx: Transaction, position: number): Promise<void> {
  await tx.query(sql`update webhook_cursor set position = ${position} where id = 1`)
}

/**
 * After a restore, the numbers of new events begin at `to`. If every event up to `from` was read for the endpoints, the
 * cursor moves there, so that the numbers in between do not count as missing. Otherwise the unread events are read first.
 */
export async function skipWebhookCursor(tx: Transaction, { from, to }: { from: number; to: number }): Promise<void> {
  await tx.query(sql`
    update webhook_cursor set position = ${to} where id = 1 and (position >= ${from} or ${from} <=
      (select coalesce(min(after_seq), ${to}) from webhook_endpoints where disabled_at is null))`)
}
