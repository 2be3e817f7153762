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
/** A flood of new addresses must not fill the memory. In a full slot, the half with the fewest requests is dropped. */
const MAX_CALLERS = 2_000

interface Slot {
  callers: Map<string, CallerCount>
  /** Callers were dropped, so each of them may have sent more than is counted. */
  isCut: boolean
}

/** What the callers of this node sent in the last hour: requests, and those over the rate limit. */
export class CallerCounts {
  readonly #clock: Clock
  readonly #slots = new Map<number, Slot>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  count({ tier, exceeded }: Charge, key: string): void {
    const slot = this.#slotNow()
    const name = `${tier}:${key}`
    let caller = slot.callers.get(name)
    if (!caller) {
      if (slot.callers.size >= MAX_CALLERS) dropHalf(slot)
      caller = { tier, key, requests: 0, refused: 0 }
      slot.callers.set(name, caller)
    }
    caller.requests += 1
    if (exceeded) caller.refused += 1
  }

  /** The callers with the most requests first. `isCut`: they may have sent more. */
  top(limit: number): { callers: CallerCount[]; isCut: boolean } {
    this.#slotNow()
    const sums = new Map<string, CallerCount>()
    for (const slot of this.#slots.values()) {
      for (const [name, { requests, refused, ...caller }] of slot.callers) {
        const sum = sums.get(name)
        if (sum) Object.assign(sum, { requests: sum.requests + requests, refused: sum.refused + refused })
        else sums.set(name, { ...caller, requests, refused })
      }
    }
    const callers = [...sums.values()].sort((a, b) => b.requests - a.requests).slice(0, limit)
    return { callers, isCut: this.#slots.values().some(({ isCut }) => isCut) }
  }

  #slotNow(): Slot {
    const number = Math.floor(this.#clock.now() / SLOT_MS)
    const known = this.#slots.get(number)
    if (known) return known
    for (const old of this.#slots.keys()) if (old <= number - SLOTS) this.#slots.delete(old)
    const slot = { callers: new Map(), isCut: false }
    this.#slots.set(number, slot)
    return slot
  }
}

/** Half at once, so that a flood of new callers costs one sort for every thousand of them. */
function dropHalf(slot: Slot): void {
  const most = [...slot.callers].sort(([, a], [, b]) => b.requests - a.requests)
  slot.callers = new Map(most.slice(0, MAX_CALLERS / 2))
  slot.isCut = true
}
