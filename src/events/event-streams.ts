import type { FastifyReply } from 'fastify'
import type { BlockedUsers } from '../auth/blocked-users.ts'
import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import { UnavailableError } from '../core/errors.ts'
import type { Log } from '../core/log.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import type { Random } from '../core/random.ts'
import type { Database } from '../db/database.ts'
import type { EventFeed, Interest } from './event-feed.ts'
import { type EventFilter, findHead, findTrimmed, readEvents } from './event-store.ts'
import { isBlockedCaller, OpenStream, type StreamRequest } from './open-stream.ts'
import type { StreamSlots } from './stream-slots.ts'

const TICK_MS = 1_000
const HISTORY_PAGE = 200

/**
 * All open streams of this process. A stream that resumes first gets its history from the log and then live events from
 * the feed, without a gap or a repeat. If some of its events are missing from the log, it gets a `reset`.
 */
export class EventStreams {
  readonly #db: Database
  readonly #clock: Clock
  readonly #random: Random
  readonly #feed: EventFeed
  readonly #meter: Meter
  readonly #slots: StreamSlots
  readonly #open = new Map<OpenStream, () => void>()
  readonly #blockedUsers: BlockedUsers
  readonly #ticking: Loop
  #closing = false

  constructor(options: {
    db: Database
    clock: Clock
    random: Random
    log: Log
    meter?: Meter
    feed: EventFeed
    slots: StreamSlots
    blockedUsers: BlockedUsers
  }) {
    this.#blockedUsers = options.blockedUsers
    this.#meter = options.meter ?? silentMeter
    this.#db = options.db
    this.#clock = options.clock
    this.#random = options.random
    this.#feed = options.feed
    this.#slots = options.slots
    this.#ticking = startLoop({
      clock: options.clock,
      everyMs: TICK_MS,
      run: async () => this.#tick(),
      onError: (error) => options.log.warn({ err: error }, 'streams.tick_failed'),
    })
  }

  get count(): number {
    return this.#open.size
  }

  /** The jobs and users that open streams follow. Streams of all users' events add nothing. */
  get interests(): { jobIds: ReadonlySet<string>; subjects: ReadonlySet<string> } {
    const [jobIds, subjects] = [new Set<string>(), new Set<string>()]
    for (const { request } of this.#open.keys()) {
      if (request.interest === 'all') continue
      if ('subject' in request.interest) subjects.add(request.interest.subject)
      else jobIds.add(request.interest.jobId)
    }
    return { jobIds, subjects }
  }

  /** Throws, if at all, before the response begins. */
  async open(reply: FastifyReply, request: StreamRequest): Promise<void> {
    if (this.#closing) throw new UnavailableError('Shutting down')
    const release = this.#slots.take(request.caller)
    const stream = new OpenStream(request, { clock: this.#clock, random: this.#random })
    this.#open.set(stream, release)
    const forget = () => this.#forget(stream)
    try {
      const { from, unsubscribe } = await this.#feed.subscribe(request.interest, stream)
      stream.unsubscribe = unsubscribe
      const { after } = request
      const position = await this.#positionOf(after === 'oldest' ? await findTrimmed(this.#db) : after, from)
      if (this.#closing) throw new UnavailableError('Shutting down')
      stream.begin(reply, forget)
      this.#meter.count('streams_opened_total')
      if (position.isLost) stream.reset(position.seq)
      else await this.#replay(stream, { after: position.seq, upTo: from })
      await stream.goLive(Math.max(position.seq, from))
    } catch (error) {
      forget()
      if (!stream.begun) throw error
      stream.end()
    }
  }

  /** Ends every stream. The clients reconnect, to another node if there is one. */
  async close(): Promise<void> {
    this.#closing = true
    await this.#ticking.stop()
    for (const stream of this.#open.keys()) stream.end()
  }

  /**
   * Where the stream begins. The feed may be a moment behind the log: a new client begins at the newest event, and a
   * client that got more from another node continues there. A cursor beyond the newest event belongs to another database.
   */
  async #positionOf(after: number | null, from: number): Promise<{ seq: number; isLost: boolean }> {
    if (after !== null && after <= from) return { seq: after, isLost: false }
    const head = await findHead(this.#db)
    const isKnown = after !== null && after <= head.newest
    return { seq: isKnown ? after : Math.max(from, head.seq), isLost: after !== null && !isKnown }
  }

  async #replay(stream: OpenStream, range: { after: number; upTo: number }): Promise<void> {
    const filter = filterOf(stream.request.interest)
    const { upTo } = range
    let { after } = range
    while (stream.open && after < upTo) {
      const events = await readEvents(this.#db, { after, upTo, filter, limit: HISTORY_PAGE })
      // Checked after the read: events that were deleted while a slow client caught up are missing from its history.
      if ((await findTrimmed(this.#db)) > after) return stream.reset(upTo)
      await stream.sendAll(events)
      after = events.length < HISTORY_PAGE ? upTo : (events.at(-1)?.seq ?? upTo)
    }
  }

  #forget(stream: OpenStream): void {
    const release = this.#open.get(stream)
    if (!this.#open.delete(stream)) return
    stream.unsubscribe()
    release?.()
  }

  #tick(): void {
    const { head } = this.#feed
    for (const stream of this.#open.keys()) {
      if (isBlockedCaller(stream.request, this.#blockedUsers)) stream.end()
      else stream.tick(head ?? 0)
    }
  }
}

function filterOf(interest: Interest): EventFilter {
  if (interest === 'all') return {}
  return 'subject' in interest ? { subject: interest.subject } : { jobId: interest.jobId }
}
