import type { Clock } from '../../core/clock.ts'

/**
 * The database's time on this node, so that all nodes agree about deadlines, leases and expiries even if their own clocks
 * differ. The error is at most the duration of one query. `sleep` uses the node's clock.
 */
export class DatabaseClock implements Clock {
  readonly #node: Clock
  /** The database's time when the node's `elapsed` was 0. */
  #originMs: number

  /** `databaseMs` is the database's time from a query that has just finished. */
  constructor(node: Clock, databaseMs: number) {
    this.#node = node
    this.#originMs = databaseMs - node.elapsed()
  }

  now(): number {
    return Math.floor(this.#originMs + this.#node.elapsed())
  }

  elapsed(): number {
    return this.#node.elapsed()
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return this.#node.sleep(ms, signal)
  }

  /**
   * The database read its clock between the start and the end of the query. If the current time is consistent with that, it
   * is kept, so that the clock does not jump.
   */
  synchronize(databaseMs: number, askedAtElapsedMs: number): void {
    const earliest = databaseMs - this.#node.elapsed()
    const latest = databaseMs - askedAtElapsedMs
    this.#originMs = Math.min(Math.max(this.#originMs, earliest), latest)
  }
}
