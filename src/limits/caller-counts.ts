import type { Clock } from '../core/clock.ts'
import type { Charge } from './limiter.ts'
import type { TierName } from './tiers.ts'

interface CallerCount {
  tier: TierName
  /** A `sub`, the id of a service account, or an address. */
  key: string
  requests: number
  refused: number
}

const SLOT_MS = 5 * 60_000
const SLOTS = 12
/** A flood of new addresses must not fill the memory: callers beyond this number in a slot are not counted. */
const MAX_CALLERS = 2_000

/** What the callers of this node sent in the last hour: requests, and those over the rate limit. */
export class CallerCounts {
  readonly #clock: Clock
  readonly #slots = new Map<number, Map<string, CallerCount>>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  count({ tier, exceeded }: Charge, key: string): void {
    const slot = this.#slotNow()
    const name = `${tier}:${key}`
    let caller = slot.get(name)
    if (!caller) {
      if (slot.size >= MAX_CALLERS) return
      caller = { tier, key, requests: 0, refused: 0 }
      slot.set(name, caller)
    }
    caller.requests += 1
    if (exceeded) caller.refused += 1
  }

  /** The callers with the most requests first. */
  top(limit: number): CallerCount[] {
    this.#slotNow()
    const sums = new Map<string, CallerCount>()
    for (const slot of this.#slots.values()) {
      for (const [name, { requests, refused, ...caller }] of slot) {
        const sum = sums.get(name)
        if (sum) Object.assign(sum, { requests: sum.requests + requests, refused: sum.refused + refused })
        else sums.set(name, { ...caller, requests, refused })
      }
    }
    return [...sums.values()].sort((a, b) => b.requests - a.requests).slice(0, limit)
  }

  #slotNow(): Map<string, CallerCount> {
    const number = Math.floor(this.#clock.now() / SLOT_MS)
    const known = this.#slots.get(number)
    if (known) return known
    for (const old of this.#slots.keys()) if (old <= number - SLOTS) this.#slots.delete(old)
    const slot = new Map<string, CallerCount>()
    this.#slots.set(number, slot)
    return slot
  }
}
