import { BoundedMap } from '../core/bounded-map.ts'
import type { Clock } from '../core/clock.ts'

export const UNKNOWN_CREDENTIALS_PER_SECOND = 20
const SECOND_MS = 1_000
const CAPACITY = 10_000

interface SpentAddress {
  sinceMs: number
  untilMs: number
  secondAtMs: number
  checked: number
}

/**
 * The spent addresses: those that got a 429 in their current window. The service saves work for them: it checks only a few
 * unknown credentials per second from a spent address, and reads no body before its caller is authenticated. An evicted
 * address is added again at its next refusal.
 */
export class SpentAddresses {
  readonly #clock: Clock
  readonly #addresses = new BoundedMap<string, SpentAddress>(CAPACITY)

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** True most of the time. Then the gate does not need the address of a request. */
  get isEmpty(): boolean {
    return this.#addresses.size === 0
  }

  note(address: string, resetMs: number): void {
    const sinceMs = this.#clock.now()
    const untilMs = sinceMs + resetMs
    const known = this.#find(address)
    if (known) known.untilMs = untilMs
    else this.#addresses.set(address, { sinceMs, untilMs, secondAtMs: sinceMs, checked: 0 })
  }

  isSpent(address: string): boolean {
    return this.#find(address) !== undefined
  }

  /** Whether one more unknown credential from this address may be checked now. A true result counts as a check. */
  admitsUnknown(address: string): boolean {
    const spent = this.#find(address)
    if (!spent) return true
    const nowMs = this.#clock.now()
    if (nowMs - spent.secondAtMs >= SECOND_MS) {
      spent.secondAtMs = nowMs
      spent.checked = 0
    }
    if (spent.checked >= UNKNOWN_CREDENTIALS_PER_SECOND) return false
    spent.checked += 1
    return true
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
