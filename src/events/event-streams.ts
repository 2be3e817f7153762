import type { FastifyReply } from 'fastify'
import type { Principal } from '../auth/principal.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import type { Database } from '../db/database.ts'
import type { OpenStreams } from '../http/streams/open-streams.ts'
import type { SseStream } from '../http/streams/sse.ts'
import type { EventFeed, Interest, Subscriber } from './event-feed.ts'
import { type EventFilter, type EventRow, eventText, findHead, findTrimmed, readEvents } from './event-store.ts'

const HISTORY_PAGE = 200
/** The most live events that wait while a stream still sends its history. */
const MAX_HELD_BACK = 1_000

interface StreamRequest {
  principal: Principal
  interest: Interest
  /** The last event the client saw. Null: begin with the next event. `oldest`: begin with the oldest stored one. */
  after: number | 'oldest' | null
}

interface EventStreamsOptions {
  db: Database
  clock: Clock
  meter?: Meter
  feed: EventFeed
  openStreams: OpenStreams
}

/**
 * The open streams of events. A stream that resumes first gets its history from the log and then live events from the feed,
 * without a gap or a repeat. If some of its events are missing from the log, it gets a `reset`.
 */
export class EventStreams {
  readonly #options: EventStreamsOptions
  readonly #interests = new Map<EventStream, Interest>()

  constructor(options: EventStreamsOptions) {
    this.#options = options
  }

  get count(): number {
    return this.#interests.size
  }

  /** The jobs and users that open streams follow. Streams of all users' events add nothing. */
  get interests(): { jobIds: ReadonlySet<string>; subjects: ReadonlySet<string> } {
    const [jobIds, subjects] = [new Set<string>(), new Set<string>()]
    for (const interest of this.#interests.values()) {
      if (interest === 'all') continue
      if ('subject' in interest) subjects.add(interest.subject)
      else jobIds.add(interest.jobId)
    }
    return { jobIds, subjects }
  }

  /** Throws, if at all, before the response begins. */
  async open(reply: FastifyReply, { principal, interest, after }: StreamRequest): Promise<void> {
    const { db, clock, meter = silentMeter, feed, openStreams } = this.#options
    const sse = openStreams.reserve(principal, { onHeartbeat: () => stream.skipTo(feed.head ?? 0) })
    const stream = new EventStream({ sse, clock, position: typeof after === 'number' ? after : 0 })
    this.#interests.set(stream, interest)
    sse.onRelease(() => this.#interests.delete(stream))
    try {
      const { from, unsubscribe } = await feed.subscribe(interest, stream)
      sse.onRelease(unsubscribe)
      const start = await this.#startOf(after === 'oldest' ? await findTrimmed(db) : after, from)
      openStreams.refuseIfClosing()
      sse.begin(reply, 'connected')
      meter.count('streams_opened_total')
      if (start.isLost) stream.reset(start.seq)
      else await this.#replay(stream, { filter: filterOf(interest), after: start.seq, upTo: from })
      await stream.goLive(Math.max(start.seq, from))
    } catch (error) {
      sse.release()
      if (!sse.hasBegun) throw error
      sse.end()
    }
  }

  /**
   * Where the stream begins. The feed may be a moment behind the log: a new client begins at the newest event, and a
   * client that got more from another node continues there. A cursor beyond the newest event belongs to another database.
   */
  async #startOf(after: number | null, from: number): Promise<{ seq: number; isLost: boolean }> {
    if (after !== null && after <= from) return { seq: after, isLost: false }
    const head = await findHead(this.#options.db)
    const isKnown = after !== null && after <= head.newest
    return { seq: isKnown ? after : Math.max(from, head.seq), isLost: after !== null && !isKnown }
  }

  async #replay(stream: EventStream, range: { filter: EventFilter; after: number; upTo: number }): Promise<void> {
    const { db } = this.#options
    const { filter, upTo } = range
    let { after } = range
    while (stream.isOpen && after < upTo) {
      const events = await readEvents(db, { after, upTo, filter, limit: HISTORY_PAGE })
      // Checked after the read: events that were deleted while a slow client caught up are missing from its history.
      if ((await findTrimmed(db)) > after) return stream.reset(upTo)
      await stream.sendAll(events)
      after = events.length < HISTORY_PAGE ? upTo : (events.at(-1)?.seq ?? upTo)
    }
  }
}

/** One client's stream: its position in the log, and the events it must still get. */
class EventStream implements Subscriber {
  readonly #sse: SseStream
  readonly #clock: Clock
  /** The client has received all its events up to here. */
  #position: number
  /** Live events that wait while history is sent. Null once the stream is live. */
  #heldBack: EventRow[] | null = []

  constructor({ sse, clock, position }: { sse: SseStream; clock: Clock; position: number }) {
    this.#sse = sse
    this.#clock = clock
    this.#position = position
  }

  get isOpen(): boolean {
    return this.#sse.isOpen
  }

  deliver(event: EventRow): void {
    if (this.#heldBack === null) return this.#send(event)
    if (this.#heldBack.push(event) <= MAX_HELD_BACK) return
    this.#heldBack = null
    this.#sse.end()
  }

  /** Tells the client that events are missing: it should reload its data and continue from here. */
  reset(at: number): void {
    this.#position = at
    const data = { id: String(at), type: 'reset', created_at: toRfc3339(this.#clock.now()), data: {} }
    this.#sse.send({ id: String(at), event: 'reset', data: JSON.stringify(data) })
  }

  /** Waits for the client whenever its buffer is full. */
  async sendAll(events: readonly EventRow[]): Promise<void> {
    for (const event of events) {
      this.#send(event)
      if (this.#sse.isFull) await this.#sse.drained()
    }
  }

  /** Sends the client its position, so that it misses nothing if the connection ends before its first event. */
  async goLive(at: number): Promise<void> {
    this.#position = Math.max(this.#position, at)
    this.#sse.mark(String(this.#position))
    while (this.#heldBack !== null && this.#heldBack.length > 0) {
      const waiting = this.#heldBack
      this.#heldBack = []
      await this.sendAll(waiting)
    }
    this.#heldBack = null
  }

  /** Moves an idle stream's position to the feed's head, so that it does not fall behind what is deleted from the log. */
  skipTo(head: number): void {
    if (this.#heldBack !== null || head <= this.#position) return
    this.#position = head
    this.#sse.mark(String(head))
  }

  /** Skips events that the client has seen, on this node or on one that was ahead of it. */
  #send(event: EventRow): void {
    if (event.seq <= this.#position) return
    this.#position = event.seq
    this.#sse.send({ id: String(event.seq), event: event.type, data: eventText(event) })
  }
}

function filterOf(interest: Interest): EventFilter {
  if (interest === 'all') return {}
  return 'subject' in interest ? { subject: interest.subject } : { jobId: interest.jobId }
}
