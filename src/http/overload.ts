import type { Clock } from '../core/clock.ts'

/** Who is refused first when there is more to do than can be done; probes and the like never ask. */
export type Urgency = 'ordinary' | 'callback'

export interface OverloadBound {
  /** Requests being worked on; one whose body is still arriving is not. */
  inFlight: number
  /** For how long one turn of the event loop takes requests in. */
  turnMs: number
}

/**
 * By measurement (docs/reliability.md). A sender may not come again with a callback, so it waits where others are sent
 * away; that many, with what they bring, still fit into memory.
 */
export const OVERLOAD_BOUNDS: Readonly<Record<Urgency, OverloadBound>> = {
  ordinary: { inFlight: 1_000, turnMs: 100 },
  callback: { inFlight: 4_000, turnMs: 1_000 },
}

/** A turn that took this many in is long because of their number; a shorter one met a cold start, or one large request. */
export const BUSY_TURN = 16

/**
 * Tells when the process has more to do than it can: too many requests in flight, or a turn of the event loop that does
 * not come to its end. What is taken in beyond that would only make everybody wait, until nobody is answered in time.
 */
export class Overload {
  readonly #clock: Clock
  readonly #bounds: Readonly<Record<Urgency, OverloadBound>>
  readonly #inFlight: Record<Urgency, number> = { ordinary: 0, callback: 0 }
  #turnSinceMs: number | null = null
  #takenInTurn = 0

  constructor(options: { clock: Clock; bounds?: Readonly<Record<Urgency, OverloadBound>> }) {
    this.#clock = options.clock
    this.#bounds = options.bounds ?? OVERLOAD_BOUNDS
  }

  inFlight(urgency: Urgency): number {
    return this.#inFlight[urgency]
  }

  /** Whether one more may come in now. */
  admits(urgency: Urgency): boolean {
    const { inFlight, turnMs } = this.#bounds[urgency]
    const isLate = this.#turnAgeMs() > turnMs && this.#takenInTurn >= BUSY_TURN
    if (isLate || this.#inFlight[urgency] >= inFlight) return false
    this.#takenInTurn += 1
    return true
  }

  /** Work on a request begins; false when there is no room for it. */
  enter(urgency: Urgency): boolean {
    if (this.#inFlight[urgency] >= this.#bounds[urgency].inFlight) return false
    this.#inFlight[urgency] += 1
    return true
  }

  leave(urgency: Urgency): void {
    this.#inFlight[urgency] -= 1
  }

  /**
   * Since the first request of this turn. All that lies ready is read in one turn, so the last of it has waited at least
   * that long; a timer would say the same, but only after it.
   */
  #turnAgeMs(): number {
    const nowMs = this.#clock.now()
    if (this.#turnSinceMs === null) {
      this.#turnSinceMs = nowMs
      setImmediate(() => {
        this.#turnSinceMs = null
        this.#takenInTurn = 0
      })
    }
    return nowMs - this.#turnSinceMs
  }
}
