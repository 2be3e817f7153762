import type { Database, Transaction } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { isAmong, rowsOf } from '../../db/rows.ts'
import { type Sql, sql } from '../../db/sql.ts'
import {
  type DeliveryLease,
  type DeliveryTable,
  isUnleased,
  leaseRows,
  markRows,
  type RowMark,
} from '../../deliveries/delivery-table.ts'
import type { Platform } from '../push-provider.ts'

export const DELIVERY_STATES = ['pending', 'sent', 'failed', 'disabled', 'expired', 'no_credentials'] as const
export type DeliveryState = (typeof DELIVERY_STATES)[number]

/** A delivery that is due, with everything needed to send it. */
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
  /** When the first attempt failed; null if none has failed. */
  retrying_since: number | null
  /** The fields of the device are null when the device was deleted. */
  provider: string | null
  token: string | null
  subject: string | null
  platform: Platform | null
  /** When the device was last seen before this attempt. */
  seen_at: number | null
  disabled_at: number | null
  /** When the provider first reported the device as dead, in a report that is not trusted yet. Null: no such report. */
  called_dead_at: number | null
  /** The span of the notification's cause. */
  trace_context: string | null
}

const KEY = { notification_id: 'text', device_id: 'text' } as const

export const DELIVERIES: DeliveryTable<{ notification_id: string; device_id: string }> = {
  name: sql`deliveries`,
  key: KEY,
  keyList: sql`deliveries.notification_id, deliveries.device_id`,
  isSame: sql`deliveries.notification_id = r.notification_id and deliveries.device_id = r.device_id`,
  keyOf: ({ notification_id, device_id }) => `${notification_id} ${device_id}`,
}

/** Leases due deliveries, longest due first. Concurrent nodes lease different deliveries. */
export async function leaseDueDeliveries(
  db: Database,
  { limit, onlyNew = false }: { limit: number; onlyNew?: boolean },
  lease: DeliveryLease,
): Promise<DueDelivery[]> {
  const wanted = onlyNew ? sql`attempts = 0 and` : sql``
  const due = sql`
    select notification_id, device_id from deliveries
    where ${wanted} next_attempt_at <= ${lease.nowMs} and ${isUnleased(lease.nowMs)}
    order by next_attempt_at limit ${limit} ${forUpdateSkipLocked(db.engine)}`
  const taken = await leaseRows(db, DELIVERIES, { due, lease })
  if (taken.length === 0) return []
  return db.query<DueDelivery>(sql`
    select d.notification_id, d.device_id, d.attempts, d.created_at, d.retrying_since, n.job_id, n.title, n.body,
      n.data, n.link, n.priority, n.ttl_seconds, n.dry_run, v.provider, v.token, v.subject, v.platform,
      v.last_seen_at as seen_at, v.disabled_at, v.called_dead_at, n.trace_context
    from ${rowsOf(db.engine, taken, KEY)} as r
    join deliveries d on d.notification_id = r.notification_id and d.device_id = r.device_id
    join notifications n on n.id = d.notification_id
    left join devices v on v.id = d.device_id
    where d.lease_token = ${lease.token} order by d.next_attempt_at, d.notification_id, d.device_id`)
}

/** The result of one attempt. */
export type DeliveryMark = RowMark & {
  notification_id: string
  device_id: string
  state: DeliveryState
  provider_message_id: string | null
  retrying_since: number | null
  /** Whether to keep or to forget an untrusted report that the device is dead; null: no change. */
  dead_report: 'keep' | 'forget' | null
  /** Why to disable the device; null: no change. */
  disable_reason: string | null
  /** When the device was last seen before the attempt. A device that was seen since then is not disabled. */
  seen_at: number | null
}

/** The result of a delivery, for the job's timeline. */
export type DeliveryNote = Pick<DeliveryMark, 'notification_id' | 'device_id' | 'attempts' | 'state' | 'last_error'> & {
  job_id: string | null
  at: number
}

/** Writes the marks whose lease is still valid, with their effect on the devices, and returns them. */
export async function markDeliveries<Mark extends DeliveryMark>(
  tx: Transaction,
  { marks, atMs }: { marks: readonly Mark[]; atMs: number },
): Promise<Mark[]> {
  const columns = { provider_message_id: 'text', retrying_since: 'bigint' } as const
  const set = sql`provider_message_id = r.provider_message_id, retrying_since = r.retrying_since`
  const marked = await markRows(tx, DELIVERIES, { marks, atMs, columns, set })
  const update = async (set: Sql, those: Mark[]) => {
    if (those.length === 0) return
    // A device that registered again during the attempt is alive, even if the answer says otherwise.
    await tx.query(sql`
      update devices set ${set} from ${rowsOf(tx.engine, those, { device_id: 'text', disable_reason: 'text', seen_at: 'bigint' })} as r
      where devices.id = r.device_id and devices.disabled_at is null and devices.last_seen_at = r.seen_at`)
  }
  await update(
    sql`disabled_at = ${atMs}, disabled_reason = r.disable_reason`,
    marked.filter(({ disable_reason }) => disable_reason !== null),
  )
  await update(
    sql`called_dead_at = coalesce(devices.called_dead_at, ${atMs})`,
    marked.filter(({ dead_report }) => dead_report === 'keep'),
  )
  await update(
    sql`called_dead_at = null`,
    marked.filter(({ dead_report }) => dead_report === 'forget'),
  )
  return marked
}

/** Makes parked deliveries that these providers can send due now, and returns their number. */
export async function releaseParkedDeliveries(
  db: Database,
  { providers, nowMs, limit }: { providers: readonly string[]; nowMs: number; limit: number },
): Promise<number> {
  // Also releases a delivery whose device was deleted, so that it can end.
  const released = await db.query(sql`
    update deliveries set state = 'pending', next_attempt_at = ${nowMs}, updated_at = ${nowMs}
    where (notification_id, device_id) in (
      select d.notification_id, d.device_id from deliveries d left join devices v on v.id = d.device_id
      where d.state = 'no_credentials' and (v.id is null or ${isAmong(db.engine, sql`v.provider`, providers)})
      limit ${limit})
    returning notification_id`)
  return released.length
}
