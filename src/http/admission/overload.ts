import type { Clock } from '../../core/clock.ts'

/**
 * The order of refusal during overload: changes first, callbacks last. Probes are never refused. Changes wait for the few
 * database connections; a queue of changes must not cause refused reads. Requests that may wait for the agent runtime are
 * counted separately, because a hanging runtime must not cause other requests to be refused.
 */
export type Urgency = 'change' | 'runtime' | 'ordinary' | 'callback'

interface OverloadBound {
  /** The most requests in progress. A request whose body is still arriving is not in progress yet. */
  inFlight: number
  /** One turn of the event loop admits requests for this long. */
  turnMs: number
  /**
   * If this many are in progress, and the oldest for this long, the queue is growing. In a short burst the oldest request
   * is recent.
   */
  queue?: { length: number; forMs: number }
}

/**
 * Measured (docs/reliability.md). The sender may not retry a refused callback, so callbacks wait when other requests are
 * refused. This many callbacks with their bodies still fit into memory.
 */
export const OVERLOAD_BOUNDS: Readonly<Record<Urgency, OverloadBound>> = {
  change: { inFlight: 250, turnMs: 100, queue: { length: 100, forMs: 500 } },
  runtime: { inFlight: 1_000, turnMs: 100 },
  ordinary: { inFlight: 1_000, turnMs: 100 },
  callback: { inFlight: 4_000, turnMs: 1_000 },
}

/** A long turn with at least this many requests is overload. With fewer, it is a cold start or one large request. */
export const BUSY_TURN = 16

/**
 * Detects overload: too many requests in flight, or a turn of the event loop that does not end. Admitting more requests
 * would delay all of them until none is answered in time.
 */
export class Overload {
  readonly #clock: Clock
  readonly #bounds: Readonly<Record<Urgency, OverloadBound>>
  /** When each request in flight began, by its ticket. The first entry is the oldest. */
  readonly #inFlight: Record<Urgency, Map<number, number>> = {
    change: new Map(),
    runtime: new Map(),
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

  get isEmpty(): boolean {
    return Object.values(this.#inFlight).every(({ size }) => size === 0)
  }

  /** Whether one more request may be admitted now. */
  admits(urgency: Urgency): boolean {
    const { inFlight, turnMs } = this.#bounds[urgency]
    const isLate = this.#turnAgeMs() > turnMs && this.#takenInTurn >= BUSY_TURN
    if (isLate || this.inFlight(urgency) >= inFlight || this.#isQueueing(urgency)) return false
    this.#takenInTurn += 1
    return true
  }

  /** Begins work on a request and returns its ticket for `leave`; null when too many are in flight. */
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
   * The time since the first request of this turn. One turn reads all requests that have arrived, so the last of them has
   * waited at least this long. A timer would measure the same, but only after the turn.
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
