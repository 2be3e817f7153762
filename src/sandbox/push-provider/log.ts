import { BoundedMap } from '../../core/bounded-map.ts'
import type { JsonObject } from '../../core/json.ts'

const MAX_ARRIVALS = 20_000
const MAX_SHOWN = 100_000

/** One message that arrived, with its outcome. */
export interface Arrival {
  at: string
  token: string
  /** The tag for Android; null when there is none. */
  tag: string | null
  outcome: string
  /** The status of the response; null when there was none. */
  status: number | null
  /** A device got it. */
  delivered: boolean
  /** A message with this tag was delivered to this device before: the device shows only this one. */
  repeated: boolean
  validate_only: boolean
  protocol: 'h2' | 'http/1.1'
  message_id: string | null
  message: JsonObject
}

export interface PushStats {
  sends: number
  delivered: number
  repeated: number
  validated: number
  outcomes: Record<string, number>
  /** Requests that were refused before their message was read, by status. */
  refused: Record<string, number>
  exchanges: number
  /** HTTP/2 connections since the last reset, and those that are open. */
  sessions: number
  open_sessions: number
}

/** The messages that arrived, oldest first, and the counters. */
export class ArrivalLog {
  #arrivals: Arrival[] = []
  #shown = new BoundedMap<string, true>(MAX_SHOWN)
  #waiters: { sends: number; resolve: () => void }[] = []
  #stats = atZero()

  get arrivals(): readonly Arrival[] {
    return this.#arrivals
  }

  get stats(): Omit<PushStats, 'sessions' | 'open_sessions'> {
    return structuredClone(this.#stats)
  }

  add(given: Omit<Arrival, 'repeated'>): void {
    const shown = JSON.stringify([given.token, given.tag])
    const repeated = given.delivered && given.tag !== null && this.#shown.get(shown) === true
    if (given.delivered && given.tag !== null) this.#shown.set(shown, true)
    this.#arrivals.push({ ...given, repeated })
    // Drops half of the list at once: dropping one by one would copy it for every message.
    if (this.#arrivals.length > MAX_ARRIVALS) this.#arrivals = this.#arrivals.slice(-MAX_ARRIVALS / 2)
    const stats = this.#stats
    stats.sends += 1
    stats.delivered += given.delivered ? 1 : 0
    stats.repeated += repeated ? 1 : 0
    stats.validated += given.validate_only ? 1 : 0
    stats.outcomes[given.outcome] = (stats.outcomes[given.outcome] ?? 0) + 1
    this.#notify()
  }

  refused(status: number): void {
    this.#stats.refused[status] = (this.#stats.refused[status] ?? 0) + 1
  }

  exchanged(): void {
    this.#stats.exchanges += 1
  }

  /** Resolves once this many messages have arrived since the last reset. */
  untilSends(sends: number): Promise<void> {
    return new Promise((resolve) => {
      this.#waiters.push({ sends, resolve })
      this.#notify()
    })
  }

  clear(): void {
    this.#arrivals = []
    this.#shown = new BoundedMap(MAX_SHOWN)
    this.#stats = atZero()
  }

  #notify(): void {
    if (this.#waiters.length === 0) return
    const { sends } = this.#stats
    for (const waiter of this.#waiters) if (waiter.sends <= sends) waiter.resolve()
    this.#waiters = this.#waiters.filter((waiter) => waiter.sends > sends)
  }
}

function atZero(): Omit<PushStats, 'sessions' | 'open_sessions'> {
  return { sends: 0, delivered: 0, repeated: 0, validated: 0, outcomes: {}, refused: {}, exchanges: 0 }
}
