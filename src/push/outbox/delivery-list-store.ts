import type { Queryable } from '../../db/database.ts'
import { type Sql, sql } from '../../db/sql.ts'
import type { DeliveryState } from './delivery-store.ts'

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

const MAX_COUNTED = 10_000

export type Backlog = {
  depth: number
  /** When the oldest fell due. */
  due_at: number | null
  /** Deliveries that wait for credentials; the depth does not count them. */
  parked: number
}

/** How many deliveries wait; `MAX_COUNTED` + 1 stands for any number above it. */
export async function findBacklog(db: Queryable): Promise<Backlog> {
  const waiting = sql`from deliveries where next_attempt_at is not null`
  const parked = sql`from deliveries where state = 'no_credentials'`
  const count = (some: Sql) => sql`(select count(*) from (select 1 ${some} limit ${MAX_COUNTED + 1}) as counted)`
  const [row] = await db.query<Backlog>(sql`
    select ${count(waiting)} as depth, (select min(next_attempt_at) ${waiting}) as due_at, ${count(parked)} as parked`)
  return row ?? { depth: 0, due_at: null, parked: 0 }
}
