import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import type { Database } from '../db/database.ts'
import { type EventRow, findHead, readEvents } from './event-store.ts'

/** What is handed out in one turn of the event loop: a reader that reads must never have too much unread by that alone. */
const PAGE = 100
/** How long a stream waits at most when every wake-up was lost. */
const POLL_MS = 2_000
/** What an older transaction holds back may be let go without a wake-up: look again soon, then leave it to the poll. */
const LOOK_AGAIN_MS = [10, 50, 200, 500]

export interface Subscriber {
  deliver(event: EventRow): void
}

/** Which events a subscriber gets: one subject's, one job's, or all. */
export type Interest = { subject: string } | { jobId: string } | 'all'

/**
 * Follows the event log for all streams of this process at once: one read, however many listen. Whoever subscribes gets
 * every event after the place named at that moment, once and in order.
 */
export class EventFeed {
  readonly #db: Database
  readonly #clock: Clock
  readonly #meter: Meter
  readonly #bySubject = new Map<string, Set<Subscriber>>()
  readonly #byJob = new Map<string, Set<Subscriber>>()
  readonly #all = new Set<Subscriber>()
  readonly #loop: Loop
  #subscribers = 0
  /** Everything up to here was handed out; null while nobody listens and the log is not read. */
  #head: number | null = null
  #starting: Promise<void> | null = null
  #looks = 0
  #looksAgain = false

  constructor(options: { db: Database; clock: Clock; log: Log; meter?: Meter }) {
    this.#db = options.db
    this.#clock = options.clock
    this.#meter = options.meter ?? silentMeter
    this.#loop = startLoop({
      clock: options.clock,
      everyMs: POLL_MS,
      run: (signal) => this.#follow(signal),
      onError: (error) => options.log.warn({ err: error }, 'events.not_read'),
    })
  }

  get subscribers(): number {
    return this.#subscribers
  }

  /** Subscribers were given everything up to here; null while the log is not read. */
  get head(): number | null {
    return this.#head
  }

  /** The place in the log from which on the subscriber is served; what came before is history for it to read. */
  async subscribe(interest: Interest, subscriber: Subscriber): Promise<{ from: number; unsubscribe: () => void }> {
    this.#subscribers += 1
    try {
      while (this.#head === null) await this.#start()
    } catch (error) {
      this.#subscribers -= 1
      throw error
    }
    const { add, remove } = this.#placeOf(interest)
    add(subscriber)
    return {
      from: this.#head,
      unsubscribe: () => {
        remove(subscriber)
        this.#subscribers -= 1
      },
    }
  }

  /** Something was committed, here or on another node. */
  wake(): void {
    if (this.#subscribers === 0) return
    this.#looks = 0
    this.#loop.wake()
  }

  close(): Promise<void> {
    return this.#loop.stop()
  }

  /** The first to come starts at the newest place; whoever comes meanwhile waits for the same answer. */
  #start(): Promise<void> {
    this.#starting ??= findHead(this.#db)
      .then(({ seq }) => {
        this.#head = seq
        this.#loop.wake()
      })
      .finally(() => {
        this.#starting = null
      })
    return this.#starting
  }

  async #follow(signal: AbortSignal): Promise<void> {
    // Forgotten here alone: a round that is still reading must not find another head than the one it began with.
    if (this.#subscribers === 0) this.#head = null
    if (this.#head === null) return
    const { seq: upTo, newest } = await findHead(this.#db)
    while (this.#head < upTo && !signal.aborted) {
      const events = await readEvents(this.#db, { after: this.#head, upTo, filter: {}, limit: PAGE })
      for (const event of events) {
        this.#head = event.seq
        this.#dispatch(event)
      }
      if (events.length < PAGE) this.#head = upTo
      // Sockets get to send what they were given before they are given more.
      else await new Promise(setImmediate)
    }
    if (newest > upTo) this.#lookAgain(signal)
  }

  #lookAgain(signal: AbortSignal): void {
    const pauseMs = LOOK_AGAIN_MS[this.#looks]
    if (this.#looksAgain || pauseMs === undefined) return
    this.#looksAgain = true
    this.#looks += 1
    void this.#clock.sleep(pauseMs, signal).then(() => {
      this.#looksAgain = false
      this.#loop.wake()
    })
  }

  #dispatch(event: EventRow): void {
    this.#meter.observe('event_feed_lag_seconds', Math.max(0, this.#clock.now() - event.created_at) / 1_000)
    for (const subscriber of this.#all) subscriber.deliver(event)
    if (event.subject !== null) for (const one of this.#bySubject.get(event.subject) ?? []) one.deliver(event)
    if (event.job_id !== null) for (const one of this.#byJob.get(event.job_id) ?? []) one.deliver(event)
  }

  #placeOf(interest: Interest): { add: (one: Subscriber) => void; remove: (one: Subscriber) => void } {
    if (interest === 'all') return { add: (one) => this.#all.add(one), remove: (one) => this.#all.delete(one) }
    const [map, key] = 'subject' in interest ? [this.#bySubject, interest.subject] : [this.#byJob, interest.jobId]
    return {
      add: (one) => {
        const set = map.get(key) ?? new Set()
        map.set(key, set.add(one))
      },
      remove: (one) => {
        const set = map.get(key)
        set?.delete(one)
        if (set?.size === 0) map.delete(key)
      },
    }
  }
}
