import type { BlockedUsers } from '../auth/blocked-users.ts'
import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { Database } from '../db/database.ts'
import { findStateChanges } from './user-state-store.ts'

const POLL_MS = 2_000
const PAGE = 1_000

/**
 * The blocked users and those being erased, in memory, so that the gate needs no query. Every node reads the changes every
 * two seconds. While the database is unavailable, the last known state stays.
 */
export class UserStates implements BlockedUsers {
  readonly #db: Database
  readonly #log: Log
  readonly #onErased: (sub: string) => void
  readonly #blocked = new Set<string>()
  readonly #loop: Loop
  #version = 0
  #isLoaded = false

  constructor(options: { db: Database; clock: Clock; log: Log; onErased: (sub: string) => void }) {
    this.#db = options.db
    this.#log = options.log
    this.#onErased = options.onErased
    this.#loop = startLoop({
      clock: options.clock,
      everyMs: POLL_MS,
      run: () => this.refresh(),
      onError: (error) => this.#warn(error),
    })
  }

  stateOf(sub: string): 'admitted' | 'blocked' | 'unknown' {
    if (this.#blocked.has(sub)) return 'blocked'
    return this.#isLoaded ? 'admitted' : 'unknown'
  }

  /** The first read, before the service listens. If it fails, users get 503 until a later round succeeds. */
  async load(): Promise<void> {
    await this.refresh().catch((error: unknown) => this.#warn(error))
  }

  /** Reads the changes since the last read. */
  async refresh(): Promise<void> {
    for (;;) {
      const changes = await findStateChanges(this.#db, { after: this.#version, limit: PAGE })
      for (const { sub, blocked_at, erasing, erased_at, version } of changes) {
        // Two reads may overlap: the older one must not undo the newer one.
        if (version <= this.#version) continue
        this.#version = version
        if (blocked_at === null && erasing === null) this.#blocked.delete(sub)
        else this.#blocked.add(sub)
        if (erased_at !== null) this.#onErased(sub)
      }
      if (changes.length < PAGE) break
    }
    this.#isLoaded = true
  }

  close(): Promise<void> {
    return this.#loop.stop()
  }

  #warn(error: unknown): void {
    this.#log.warn({ err: error }, 'users.states_not_read')
  }
}
