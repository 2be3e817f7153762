import type { Log } from '../core/log.ts'
import type { Database } from '../db/database.ts'
import { deleteOldDeliveries } from './delivery-store.ts'
import { addMissed, countByEndpoint } from './endpoint-store.ts'

/**
 * Deletes a bounded number of old deliveries; true if there may be more. Those that waited for a disabled endpoint count
 * as missed events of this endpoint.
 */
export async function trimWebhooks(
  { db, log }: { db: Database; log: Log },
  bound: { beforeMs: number; limit: number },
): Promise<boolean> {
  const { deleted, missed } = await db.transaction(async (tx) => {
    const deleted = await deleteOldDeliveries(tx, bound)
    const waiting = deleted.filter(({ next_attempt_at }) => next_attempt_at !== null)
    return { deleted, missed: await addMissed(tx, countByEndpoint(waiting)) }
  })
  for (const { id, count } of missed) log.error({ endpointId: id, count }, 'webhooks.events_missing')
  return deleted.length > 0
}
