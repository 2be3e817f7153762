import type { IdGenerator } from '../../core/ids.ts'
import type { Transaction } from '../../db/database.ts'
import type { DeliveryNote } from '../../push/outbox/delivery-store.ts'
import { appendTimeline } from './timeline-store.ts'

/** Adds the state of each push delivery to its job's timeline, in the transaction that changes the delivery. */
export async function noteDeliveries(
  tx: Transaction,
  { marks, ids }: { marks: readonly DeliveryNote[]; ids: IdGenerator },
): Promise<void> {
  const entries = marks.flatMap(({ job_id, at, notification_id, device_id, state, attempts, last_error }) => {
    if (job_id === null) return []
    const detail = JSON.stringify({ notification_id, device_id, state, attempts, error: last_error })
    return [{ id: ids.next('tml'), job_id, at, kind: 'delivery' as const, via: null, detail }]
  })
  await appendTimeline(tx, entries)
}
