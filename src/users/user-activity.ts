import type { Principal } from '../auth/principal.ts'
import { type Loop, startLoop } from '../core/async/loop.ts'
import type { MaybePromise } from '../core/async/maybe-promise.ts'
import { SingleFlight } from '../core/async/single-flight.ts'
import { BoundedMap } from '../core/bounded-map.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { updateLastSeen, upsertUser } from './user-store.ts'

const CACHED_USERS = 50_000
const LAST_SEEN_EVERY_MS = 5 * 60_000
const LAST_SEEN_BATCH = 500

/** Records the activity of each caller, after the gate has found it. */
export function recordActivity(app: App, { userActivity }: { userActivity: UserActivity }): void {
  app.addHook('onRequest', (request, _reply, done) => {
    const written = request.principal ? userActivity.record(request.principal) : undefined
    if (written) written.then(() => done(), done)
    else done()
  })
}

/**
 * Creates a user's profile on the first request with the user's token, and keeps `last_seen_at` accurate to five
 * minutes. Later requests only read a cache in memory; writes of `last_seen_at` are collected and sent in batches.
 */
export class UserActivity {
  readonly #db: Database
  readonly #clock: Clock
  readonly #known = new BoundedMap<string, { email: string | null; writtenAtMs: number }>(CACHED_USERS)
  readonly #firstWrites = new SingleFlight<string, void>()
  readonly #seen = new Set<string>()
  readonly #lastSeenLoop: Loop

  constructor(options: { db: Database; clock: Clock; log: Log }) {
    this.#db = options.db
    this.#clock = options.clock
    this.#lastSeenLoop = startLoop({
      clock: options.clock,
      everyMs: LAST_SEEN_EVERY_MS / 5,
      run: () => this.#writeLastSeen(),
      onError: (error) => options.log.warn({ err: error }, 'user.last_seen_not_written'),
    })
  }

  record(principal: Principal): MaybePromise<void> {
    if (principal.kind !== 'user') return
    const known = this.#known.get(principal.sub)
    if (!known || (principal.email !== null && principal.email !== known.email)) {
      return this.#firstWrites.run(principal.sub, () => this.#writeProfile(principal.sub, principal.email))
    }
    if (this.#clock.now() - known.writtenAtMs >= LAST_SEEN_EVERY_MS) this.#seen.add(principal.sub)
  }

  /** The profile was erased. The user's next request creates a fresh one. */
  forget(sub: string): void {
    this.#known.delete(sub)
    this.#seen.delete(sub)
  }

  async close(): Promise<void> {
    await this.#lastSeenLoop.stop()
    await this.#writeLastSeen().catch(() => {})
  }

  async #writeProfile(sub: string, email: string | null): Promise<void> {
    const atMs = this.#clock.now()
    await upsertUser(this.#db, { sub, email, atMs })
    this.#known.set(sub, { email, writtenAtMs: atMs })
  }

  async #writeLastSeen(): Promise<void> {
    while (this.#seen.size > 0) {
      const batch = [...this.#seen].slice(0, LAST_SEEN_BATCH)
      const atMs = this.#clock.now()
      await updateLastSeen(this.#db, batch, atMs)
      for (const sub of batch) {
        this.#seen.delete(sub)
        const known = this.#known.get(sub)
        if (known) known.writtenAtMs = atMs
      }
    }
  }
}
