import type { Clock } from '../core/clock.ts'
import type { Hit } from './tiers.ts'

interface MemoryCounterOptions {
  clock: Clock
  windowMs: number
  /** A key with this count is spent (it used up its limit): its window is never evicted before it ends. */
  limit: number
  capacity?: number
}

interface Window {
  count: number
  endsAtMs: number
}

const DEFAULT_CAPACITY = 200_000
/** Each new window removes at most this many expired ones: more than one, so that a backlog shrinks even under load. */
const DROPS_PER_NEW_WINDOW = 2

/**
 * Counts requests per key in a fixed window from the key's first request, in bounded memory and without timers.
 *
 * All windows have the same length, so the map's insertion order is the order of expiry, and expired windows come first.
 * When the map is full of live windows, the oldest unspent one is evicted: a client that rotates through addresses must
 * send as many requests as the map has entries to regain less than one limit. A spent key is never evicted. When only spent
 * keys are left, all new keys share one window.
 */
export class MemoryCounter {
  readonly #clock: Clock
  readonly #windowMs: number
  readonly #limit: number
  readonly #capacity: number
  readonly #windows = new Map<string, Window>()
  // Both iterators keep their position: a new one would step over every deleted entry before the first live one.
  readonly #expiryHand = this.#windows.entries()
  readonly #evictionHand = this.#windows.entries()
  /** The last entry that `#expiryHand` returned; it may have been deleted since. */
  #oldest: [string, Window] | undefined
  #unspent = 0
  #shared: Window = { count: 0, endsAtMs: 0 }

  constructor({ clock, windowMs, limit, capacity = DEFAULT_CAPACITY }: MemoryCounterOptions) {
    this.#clock = clock
    this.#windowMs = windowMs
    this.#limit = limit
    this.#capacity = capacity
  }

  get size(): number {
    return this.#windows.size
  }

  hit(key: string): Hit {
    const now = this.#clock.now()
    const window = this.#windows.get(key)
    if (window === undefined) return this.#begin(key, now)
    if (!this.#isLive(window, now)) {
      this.#remove(key, window)
      return this.#begin(key, now)
    }
    window.count += 1
    if (window.count === this.#limit) this.#unspent -= 1
    return { count: window.count, resetMs: window.endsAtMs - now }
  }

  #begin(key: string, now: number): Hit {
    this.#dropExpired(now)
    if (this.#windows.size >= this.#capacity) {
      if (this.#unspent === 0) return this.#hitShared(now)
      this.#evictOldestUnspent()
    }
    const window = { count: 1, endsAtMs: now + this.#windowMs }
    this.#windows.set(key, window)
    if (!this.#isSpent(window)) this.#unspent += 1
    return { count: 1, resetMs: this.#windowMs }
  }

  #hitShared(now: number): Hit {
    if (!this.#isLive(this.#shared, now)) this.#shared = { count: 0, endsAtMs: now + this.#windowMs }
    this.#shared.count += 1
    return { count: this.#shared.count, resetMs: this.#shared.endsAtMs - now }
  }

  /**
   * A window that begins in the future counts as expired. Otherwise, if the clock is set back an hour, a spent key would be
   * blocked for an hour.
   */
  #isLive(window: Window, now: number): boolean {
    return window.endsAtMs > now && window.endsAtMs - now <= this.#windowMs
  }

  #isSpent(window: Window): boolean {
    return window.count >= this.#limit
  }

  #remove(key: string, window: Window): void {
    this.#windows.delete(key)
    if (!this.#isSpent(window)) this.#unspent -= 1
  }

  #dropExpired(now: number): void {
    for (let dropped = 0; dropped < DROPS_PER_NEW_WINDOW; dropped++) {
      const oldest = this.#peekOldest()
      if (oldest === undefined || this.#isLive(oldest[1], now)) return
      this.#remove(...oldest)
    }
  }

  #peekOldest(): [string, Window] | undefined {
    if (this.#oldest !== undefined && this.#windows.get(this.#oldest[0]) === this.#oldest[1]) return this.#oldest
    // Do not call `next` on an empty map: an iterator that has reached the end stays there for ever.
    this.#oldest = this.#windows.size === 0 ? undefined : this.#expiryHand.next().value
    return this.#oldest
  }

  /** Every window that the iterator has passed was spent, and stays spent. So an unspent window is always ahead. */
  #evictOldestUnspent(): void {
    for (;;) {
      const entry = this.#evictionHand.next().value
      if (entry === undefined) return
      if (this.#isSpent(entry[1])) continue
      this.#remove(...entry)
      return
    }
  }
}
