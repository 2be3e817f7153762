import { BoundedMap } from '../../core/bounded-map.ts'
import type { Clock } from '../../core/clock.ts'

const REMEMBERED_MS = 5_000
/** Without the oldest ones, a group waits for their locks once more. */
const MAX_OWNERS = 1_000

/**
 * The owners whose usage another transaction had locked a moment ago. A group leaves their callbacks out at once: otherwise
 * each group with one of them would make the other owners wait for the lock again.
 */
export class LockedOwners {
  readonly #clock: Clock
  readonly #untilMs = new BoundedMap<string, number>(MAX_OWNERS)

  constructor(clock: Clock) {
    this.#clock = clock
  }

  add(owner: string): void {
    this.#untilMs.set(owner, this.#clock.now() + REMEMBERED_MS)
  }

  has(owner: string): boolean {
    return (this.#untilMs.get(owner) ?? 0) > this.#clock.now()
  }

  delete(owner: string): void {
    this.#untilMs.delete(owner)
  }
}
