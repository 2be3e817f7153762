import type { Principal } from '../auth/principal.ts'
import { type Loop, startLoop } from '../core/async/loop.ts'
import type { MaybePromise } from '../core/async/maybe-promise.ts'
import { SingleFlight } from '../core/async/single-flight.ts'
import { BoundedMap } from '../core/bounded-map.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { Database } from '../db/database.ts'
import { markSeen, recordSight } from './user-store.ts'

const REMEMBERED_USERS = 50_000
const LAST_SEEN_EVERY_MS = 5 * 60_000
const MARK_BATCH = 500

/**
 * Makes a user's profile on the first request that carries the user's token, and keeps `last_seen_at` true to five
 * minutes. After the first sight a request costs a look into memory; the writes gather and go out in batches.
 */
export class UserSightings {
  readonly #db: Database
  readonly #clock: Clock
  readonly #known = new BoundedMap<string, { email: string | null; writtenAtMs: number }>(REMEMBERED_USERS)
  readonly #first = new SingleFlight<string, void>()
  readonly #seen = new Set<string>()
  readonly #marking: Loop

  constructor(options: { db: Database; clock: Clock; log: Log }) {
    this.#db = options.db
    this.#clock = options.clock
    this.#marking = startLoop({
      clock: options.clock,
      everyMs: LAST_SEEN_EVERY_MS / 5,
      run: () => this.#markSeen(),
      onError: (error) => options.log.warn({ err: error }, 'user.last_seen_not_written'),
    })
  }

  note(principal: Principal): MaybePromise<void> {
    if (principal.kind !== 'user') return
    const known = this.#known.get(principal.sub)
    if (!known || (principal.email !== null && principal.email !== known.email)) {
      return this.#first.run(principal.sub, () => this.#record(principal.sub, principal.email))
    }
    if (this.#clock.now() - known.writtenAtMs >= LAST_SEEN_EVERY_MS) this.#seen.add(principal.sub)
  }

  async close(): Promise<void> {
    await this.#marking.stop()
    await this.#markSeen().catch(() => {})
  }

  async #record(sub: string, email: string | null): Promise<void> {
    const atMs = this.#clock.now()
    await recordSight(this.#db, { sub, email, atMs })
    this.#known.set(sub, { email, writtenAtMs: atMs })
  }

  async #markSeen(): Promise<void> {
    while (this.#seen.size > 0) {
      const batch = [...this.#seen].slice(0, MARK_BATCH)
      const atMs = this.#clock.now()
      await markSeen(this.#db, batch, atMs)
      for (const sub of batch) {
        this.#seen.delete(sub)
        const known = this.#known.get(sub)
        if (known) known.writtenAtMs = atMs
      }
    }
  }
}
