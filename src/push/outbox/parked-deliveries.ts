import type { Meter } from '../../core/metrics/meter.ts'
import type { Database, Transaction } from '../../db/database.ts'
import { type DeliveryNote, shelveDueDeliveries, unshelveDeliveries } from './delivery-store.ts'

const BATCH = 1_000
/** Nodes that have no credentials yet may put deliveries aside at any time. */
const LOOK_EVERY_MS = 60_000

export interface ShelfOptions {
  db: Database
  meter: Meter
  onMarked: (tx: Transaction, notes: readonly DeliveryNote[]) => Promise<void>
}

/** Where deliveries wait for credentials: outside the queue, so that they cost nothing, and noted where they belong. */
export class Shelf {
  readonly #options: ShelfOptions
  #lookAtMs = 0

  constructor(options: ShelfOptions) {
    this.#options = options
  }

  /** True when there may be more to put aside. */
  async fill(nowMs: number): Promise<boolean> {
    const { db, meter, onMarked } = this.#options
    const notes = await db.transaction(async (tx) => {
      const rows = await shelveDueDeliveries(tx, { nowMs, limit: BATCH })
      const shelved = rows.map((row) => ({ ...row, state: 'no_credentials' as const, last_error: null, at: nowMs }))
      if (shelved.length > 0) await onMarked(tx, shelved)
      return shelved
    })
    for (const { state } of notes) meter.count('deliveries_total', { state })
    return notes.length === BATCH
  }

  /** With credentials, what was put aside is due. True when there may be more of it. */
  async empty(nowMs: number): Promise<boolean> {
    if (nowMs < this.#lookAtMs) return false
    const isMore = await unshelveDeliveries(this.#options.db, { nowMs, limit: BATCH })
    if (!isMore) this.#lookAtMs = nowMs + LOOK_EVERY_MS
    return isMore
  }
}
