import type { Meter } from '../../core/metrics/meter.ts'
import type { Database, Transaction } from '../../db/database.ts'
import type { DeliveryNote } from './delivery-store.ts'
import { parkDueDeliveries, releaseParkedDeliveries } from './parked-delivery-store.ts'

const BATCH = 1_000
/** Other nodes without credentials may park deliveries at any time. */
const RELEASE_EVERY_MS = 60_000

export interface ParkedDeliveriesOptions {
  db: Database
  meter: Meter
  onMarked: (tx: Transaction, notes: readonly DeliveryNote[]) => Promise<void>
}

/** Deliveries that wait for credentials. They are outside the queue, so that they cost nothing while they wait. */
export class ParkedDeliveries {
  readonly #options: ParkedDeliveriesOptions
  #releaseAtMs = 0

  constructor(options: ParkedDeliveriesOptions) {
    this.#options = options
  }

  /** Parks due deliveries. True if there may be more. */
  async park(nowMs: number): Promise<boolean> {
    const { db, meter, onMarked } = this.#options
    const notes = await db.transaction(async (tx) => {
      const rows = await parkDueDeliveries(tx, { nowMs, limit: BATCH })
      const parked = rows.map((row) => ({ ...row, state: 'no_credentials' as const, last_error: null, at: nowMs }))
      if (parked.length > 0) await onMarked(tx, parked)
      return parked
    })
    for (const { state } of notes) meter.count('deliveries_total', { state })
    return notes.length === BATCH
  }

  /** Makes the parked deliveries that these providers can send due again. True if there may be more. */
  async release(providers: readonly string[], nowMs: number): Promise<boolean> {
    if (nowMs < this.#releaseAtMs) return false
    const isMore = await releaseParkedDeliveries(this.#options.db, { providers, nowMs, limit: BATCH })
    if (!isMore) this.#releaseAtMs = nowMs + RELEASE_EVERY_MS
    return isMore
  }
}
