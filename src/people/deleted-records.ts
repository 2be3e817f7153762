import type { Transaction } from '../db/database.ts'
import type { DeletedRecords } from '../jobs/job-context.ts'
import { countDeleted } from '../stats/stats-rollup.ts'
import { deleteDeliveriesOf } from '../webhooks/delivery-store.ts'

/** What follows in other features when records are deleted with their job, in the same transaction. */
export async function onDeleted(tx: Transaction, deleted: DeletedRecords): Promise<void> {
  await countDeleted(tx, deleted)
  await deleteDeliveriesOf(tx, deleted.events ?? [])
}
