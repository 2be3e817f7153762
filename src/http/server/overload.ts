import type { Clock } from '../../core/clock.ts'

/**
 * Who is refused first when there is more to do than can be done; probes and the like never ask. Changes queue for the
 * database's few connections, and a queue of them must be no reason to refuse a read.
 */
export type Urgency = 'change' | 'ordinary' | 'callback'

export interface OverloadBound {
  /** Requests being worked on; one whose body is still arriving is not. */
  inFlight: number
  /** For how long one turn of the event loop takes requests in. */
  turnMs: number
  /** So many, of which the first has waited so long, are a queue that grows; a burst is only long. */
  queue?: { length: number; forMs: number }
}

/**
 * By measurement (docs/reliability.md). A sender may not come again with a callback, so it waits where others are sent
 * away; that many, with what they bring, still fit into memory.
 */
export const OVERLOAD_BOUNDS: Readonly<Record<Urgency, OverloadBound>> = {
  change: { inFlight: 250, turnMs: 100, queue: { length: 50, forMs: 500 } },
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
  /** Since when each is in flight, by its ticket: the first is the oldest. */
  readonly #inFlight: Record<Urgency, Map<number, number>> = {
    change: new Map(),
    ordinary: new Map(),
    callback: new Map(),
  }
  #lastTicket = 0
  #turnSinceMs: number | null = null
  #takenInTurn = 0

  constructor(options: { clock: Clock; bounds?: Readonly<Record<Urgency, OverloadBound>> }) {
    this.#clock = options.clock
    this.#bounds = options.bounds ?? OVERLOAD_BOUNDS
  }

  inFlight(urgency: Urgency): number {
    return this.#inFlight[urgency].size
  }

  /** Whether one more may come in now. */
  admits(urgency: Urgency): boolean {
    const { inFlight, turnMs } = this.#bounds[urgency]
    const isLate = this.#turnAgeMs() > turnMs && this.#takenInTurn >= BUSY_TURN
    if (isLate || this.inFlight(urgency) >= inFlight || this.#isQueueing(urgency)) return false
    this.#takenInTurn += 1
    return true
  }

  /** Work on a request begins, under a ticket to leave with; null when there is no room for it. */
  enter(urgency: Urgency): number | null {
    if (this.inFlight(urgency) >= this.#bounds[urgency].inFlight) return null
    this.#lastTicket += 1
    this.#inFlight[urgency].set(this.#lastTicket, this.#clock.now())
    return this.#lastTicket
  }

  leave(urgency: Urgency, ticket: number): void {
    this.#inFlight[urgency].delete(ticket)
  }

  #isQueueing(urgency: Urgency): boolean {
    const { queue } = this.#bounds[urgency]
    if (queue === undefined || this.inFlight(urgency) < queue.length) return false
    const [oldestMs = Number.POSITIVE_INFINITY] = this.#inFlight[urgency].values()
    return this.#clock.now() - oldestMs > queue.forMs
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
