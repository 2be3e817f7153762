import { BoundedMap } from '../../core/bounded-map.ts'
import type { Clock } from '../../core/clock.ts'

export const FAILED_CHECKS_PER_SECOND = 200
const SECOND_MS = 1_000
const CAPACITY = 10_000

interface SpentAddress {
  sinceMs: number
  untilMs: number
  secondAtMs: number
  /** Checks of credentials that failed in this second. */
  failed: number
  inProgress: number
}

/**
 * The spent addresses: those that got a 429 in their current window. The service saves work for them: only a bounded number
 * of their credentials may fail a check in a second, and no body is read before its caller is authenticated. An evicted
 * address is added again at its next refusal.
 */
export class SpentAddresses {
  readonly #clock: Clock
  readonly #addresses = new BoundedMap<string, SpentAddress>(CAPACITY)

  constructor(clock: Clock) {
    this.#clock = clock
  }

  note(address: string, resetMs: number): void {
    const sinceMs = this.#clock.now()
    const untilMs = sinceMs + resetMs
    const known = this.#find(address)
    if (known) known.untilMs = untilMs
    else this.#addresses.set(address, { sinceMs, untilMs, secondAtMs: sinceMs, failed: 0, inProgress: 0 })
  }

  isSpent(address: string): boolean {
    return this.#find(address) !== undefined
  }

  /**
   * Begins the check of a credential from this address. Returns the function that ends the check, or null if the address
   * has used up the checks of this second. A check in progress counts until it ends, and after that only if it failed.
   */
  beginCheck(address: string): ((hasFailed: boolean) => void) | null {
    const spent = this.#find(address)
    if (!spent) return () => {}
    const nowMs = this.#clock.now()
    if (nowMs - spent.secondAtMs >= SECOND_MS) {
      spent.secondAtMs = nowMs
      spent.failed = 0
    }
    if (spent.failed + spent.inProgress >= FAILED_CHECKS_PER_SECOND) return null
    spent.inProgress += 1
    return (hasFailed) => {
      spent.inProgress -= 1
      if (hasFailed) spent.failed += 1
    }
  }

  #find(address: string): SpentAddress | undefined {
    const spent = this.#addresses.get(address)
    if (!spent) return undefined
    const nowMs = this.#clock.now()
    // A clock that was set back must not keep an address spent for longer than its window.
    if (nowMs >= spent.sinceMs && nowMs < spent.untilMs) return spent
    this.#addresses.delete(address)
    return undefined
  }
}
