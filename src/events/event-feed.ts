import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import type { Database } from '../db/database.ts'
import { type EventRow, findHead, readEvents } from './event-store.ts'

/**
 * Events delivered in one turn of the event loop: few enough that the buffer of a client that keeps reading never
 * overflows.
 */
const PAGE = 100
/** The longest delay of a stream if all wake-ups are lost. */
const POLL_MS = 2_000
/** Events may wait for an older transaction, whose end causes no wake-up. The log is read again after these pauses. */
const REREAD_AFTER_MS = [10, 50, 200, 500]

export interface Subscriber {
  deliver(event: EventRow): void
}

/** The events that a subscriber gets: those of one subject, of one job, or all. */
export type Interest = { subject: string } | { jobId: string } | 'all'

/**
 * Follows the event log for all streams of this process: one read serves all subscribers. A subscriber gets every event
 * after the position that `subscribe` returns, once and in order.
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
  /** The last delivered position. Null while there is no subscriber and the log is not read. */
  #head: number | null = null
  #starting: Promise<void> | null = null
  #rereads = 0
  #rereadPending = false

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

  /** The last delivered position. Null while the log is not read. */
  get head(): number | null {
    return this.#head
  }

  /**
   * Returns the position after which the subscriber gets events. The subscriber must read earlier events from the log
   * itself.
   */
  async subscribe(interest: Interest, subscriber: Subscriber): Promise<{ from: number; unsubscribe: () => void }> {
    this.#subscribers += 1
    try {
      while (this.#head === null) await this.#start()
    } catch (error) {
      this.#subscribers -= 1
      throw error
    }
    const { add, remove } = this.#groupOf(interest)
    add(subscriber)
    return {
      from: this.#head,
      unsubscribe: () => {
        remove(subscriber)
        this.#subscribers -= 1
      },
    }
  }

  /** A transaction committed events, here or on another node. */
  wake(): void {
    if (this.#subscribers === 0) return
    this.#rereads = 0
    this.#loop.wake()
  }

  close(): Promise<void> {
    return this.#loop.stop()
  }

  /**
   * The first subscriber starts at the newest position. Subscribers that arrive during the start wait for the same result.
   */
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
    // Reset only here: a round in progress must keep the head that it began with.
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
      // Sockets first send their buffered data before they get more.
      else await new Promise(setImmediate)
    }
    if (newest > upTo) this.#rereadSoon(signal)
  }

  #rereadSoon(signal: AbortSignal): void {
    const pauseMs = REREAD_AFTER_MS[this.#rereads]
    if (this.#rereadPending || pauseMs === undefined) return
    this.#rereadPending = true
    this.#rereads += 1
    void this.#clock.sleep(pauseMs, signal).then(() => {
      this.#rereadPending = false
      this.#loop.wake()
    })
  }

  #dispatch(event: EventRow): void {
    this.#meter.observe('event_feed_lag_seconds', Math.max(0, this.#clock.now() - event.created_at) / 1_000)
    for (const subscriber of this.#all) subscriber.deliver(event)
    if (event.subject !== null) for (const one of this.#bySubject.get(event.subject) ?? []) one.deliver(event)
    if (event.job_id !== null) for (const one of this.#byJob.get(event.job_id) ?? []) one.deliver(event)
  }

  #groupOf(interest: Interest): { add: (one: Subscriber) => void; remove: (one: Subscriber) => void } {
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
