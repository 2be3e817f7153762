import type { Queryable } from '../../db/database.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import { countSome } from '../../deliveries/delivery-table.ts'
import type { DeliveryState } from './delivery-store.ts'

type DeliveryRow = {
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

/** How many deliveries of each of these notifications are in which state. */
export function countDeliveriesOf(
  db: Queryable,
  notificationIds: readonly string[],
): Promise<{ notification_id: string; state: DeliveryState; deliveries: number }[]> {
  return db.query(sql`
    select notification_id, state, count(*) as deliveries from deliveries
    where ${isAmong(db.engine, sql`notification_id`, notificationIds)} group by notification_id, state`)
}

/** How many deliveries reached a state in each minute between two times. */
export function countMarks(
  db: Queryable,
  { fromMs, toMs }: { fromMs: number; toMs: number },
): Promise<{ minute: number; state: DeliveryState; count: number }[]> {
  return db.query(sql`
    select updated_at / 60000 as minute, state, count(*) as count from deliveries
    where state <> 'pending' and updated_at >= ${fromMs} and updated_at < ${toMs} group by 1, 2`)
}

/** The time of the first change that `countMarks` finds from this time on; infinite when there is none. */
export async function findNextMarkMs(db: Queryable, fromMs: number): Promise<number> {
  const [row] = await db.query<{ updated_at: number }>(sql`
    select updated_at from deliveries where state <> 'pending' and updated_at >= ${fromMs} order by updated_at limit 1`)
  return row?.updated_at ?? Number.POSITIVE_INFINITY
}

type Backlog = {
  depth: number
  /** When the oldest delivery became due. */
  due_at: number | null
  /** Deliveries that wait for credentials; the depth does not count them. */
  parked: number
}

/** How many deliveries wait; 10,001 stands for any number above 10,000. */
export async function findBacklog(db: Queryable): Promise<Backlog> {
  const waiting = sql`from deliveries where next_attempt_at is not null`
  const parked = sql`from deliveries where state = 'no_credentials'`
  const [row] = await db.query<Backlog>(sql`
    select ${countSome(waiting)} as depth, (select min(next_attempt_at) ${waiting}) as due_at,
      ${countSome(parked)} as parked`)
  return row ?? { depth: 0, due_at: null, parked: 0 }
}
