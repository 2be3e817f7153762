import type { Database, Transaction } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import { isUnleased } from './delivery-store.ts'

export type ParkedDelivery = { notification_id: string; device_id: string; attempts: number; job_id: string | null }

/** Moves due deliveries out of the queue until there are credentials. */
export function parkDueDeliveries(
  tx: Transaction,
  { nowMs, limit }: { nowMs: number; limit: number },
): Promise<ParkedDelivery[]> {
  return tx.query<ParkedDelivery>(sql`
    with due as materialized (
      select notification_id, device_id from deliveries
      where next_attempt_at <= ${nowMs} and ${isUnleased(nowMs)}
      limit ${limit} ${forUpdateSkipLocked(tx.engine)})
    update deliveries set state = 'no_credentials', next_attempt_at = null, retrying_since = null, updated_at = ${nowMs}
    from due where deliveries.notification_id = due.notification_id and deliveries.device_id = due.device_id
    returning deliveries.notification_id, deliveries.device_id, deliveries.attempts,
      (select n.job_id from notifications n where n.id = deliveries.notification_id) as job_id`)
}

/** Makes the parked deliveries that these providers can send due now. True if there may be more. */
export async function releaseParkedDeliveries(
  db: Database,
  { providers, nowMs, limit }: { providers: readonly string[]; nowMs: number; limit: number },
): Promise<boolean> {
  // Also releases a delivery whose device was deleted, so that it can end.
  const released = await db.query(sql`
    update deliveries set state = 'pending', next_attempt_at = ${nowMs}, updated_at = ${nowMs}
    where (notification_id, device_id) in (
      select d.notification_id, d.device_id from deliveries d left join devices v on v.id = d.device_id
      where d.state = 'no_credentials' and (v.id is null or ${isAmong(db.engine, sql`v.provider`, providers)})
      limit ${limit})
    returning notification_id`)
  return released.length === limit
}
