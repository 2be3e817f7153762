import type { FastifyReply } from 'fastify'
import { type Loop, startLoop } from '../core/async/loop.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import { ApiError, UnavailableError } from '../core/errors.ts'
import type { Log } from '../core/log.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import type { Random } from '../core/random.ts'
import type { Database } from '../db/database.ts'
import { SseStream } from '../http/sse.ts'
import type { EventFeed, Interest, Subscriber } from './event-feed.ts'
import { type EventFilter, type EventRow, findHead, findTrimmed, readEvents } from './event-store.ts'

const HEARTBEAT_MS = 15_000
const TICK_MS = 1_000
const MAX_STREAMS = 20_000
const MAX_STREAMS_PER_CALLER = 50
/** What may arrive live while a stream still reads its history. */
const MAX_HELD_BACK = 1_000
const HISTORY_PAGE = 200
/** Not all of them in the same second: whoever takes over the streams of a node has to open each anew. */
const RETRY_MS = { least: 1_000, spread: 2_000 }
const REVOCABLE_MS = 5 * 60_000

export interface StreamRequest {
  caller: string
  /** When the caller's credential ends, and with it the stream; null for never. */
  expiresAtMs: number | null
  /** Whether it can be revoked before that: then the stream comes back now and then to show it anew. */
  revocable: boolean
  interest: Interest
  /** The last event the client saw; null to begin with the next one, `oldest` with the first that is still there. */
  after: number | 'oldest' | null
}

/**
 * All open streams of this process. A stream that resumes first gets its history from the log and then what the feed
 * brings, without a gap or a repeat between them; one that cannot be served whole is told so with `reset`.
 */
export class EventStreams {
  readonly #db: Database
  readonly #clock: Clock
  readonly #random: Random
  readonly #feed: EventFeed
  readonly #meter: Meter
  readonly #open = new Set<OpenStream>()
  readonly #perCaller = new Map<string, number>()
  readonly #ticking: Loop
  #closing = false

  constructor(options: { db: Database; clock: Clock; random: Random; log: Log; meter?: Meter; feed: EventFeed }) {
    this.#meter = options.meter ?? silentMeter
    this.#db = options.db
    this.#clock = options.clock
    this.#random = options.random
    this.#feed = options.feed
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

  /** Everything that can be refused is refused before the answer begins. */
  async open(reply: FastifyReply, request: StreamRequest): Promise<void> {
    if (this.#closing) throw new UnavailableError('Shutting down')
    const mine = this.#perCaller.get(request.caller) ?? 0
    if (mine >= MAX_STREAMS_PER_CALLER) {
      throw new ApiError('rate_limit_exceeded', 'Too many open streams', { headers: { 'retry-after': '5' } })
    }
    if (this.#open.size >= MAX_STREAMS) throw new UnavailableError('Too many open streams', { retryAfterSeconds: 5 })
    const stream = new OpenStream(request, { clock: this.#clock, random: this.#random })
    this.#perCaller.set(request.caller, mine + 1)
    this.#open.add(stream)
    const forget = () => this.#forget(stream)
    try {
      const { from, unsubscribe } = await this.#feed.subscribe(request.interest, stream)
      stream.unsubscribe = unsubscribe
      const { after } = request
      const place = await this.#placeOf(after === 'oldest' ? await findTrimmed(this.#db) : after, from)
      if (this.#closing) throw new UnavailableError('Shutting down')
      stream.begin(reply, forget)
      this.#meter.count('streams_opened_total')
      if (place.isLost) stream.reset(place.seq)
      else await this.#replay(stream, { after: place.seq, upTo: from })
      await stream.goLive(Math.max(place.seq, from))
    } catch (error) {
      forget()
      if (!stream.begun) throw error
      stream.end()
    }
  }

  /** Every client is asked to come back, elsewhere. */
  async close(): Promise<void> {
    this.#closing = true
    await this.#ticking.stop()
    for (const stream of this.#open) stream.end()
  }

  /**
   * Where the client stands. The feed may be a moment behind the log: a new client begins at what is newest, and one that
   * another node has told more goes on from there. Beyond the newest lies another log.
   */
  async #placeOf(after: number | null, from: number): Promise<{ seq: number; isLost: boolean }> {
    if (after !== null && after <= from) return { seq: after, isLost: false }
    const head = await findHead(this.#db)
    const isKnown = after !== null && after <= head.newest
    return { seq: isKnown ? after : Math.max(from, head.seq), isLost: after !== null && !isKnown }
  }

  async #replay(stream: OpenStream, place: { after: number; upTo: number }): Promise<void> {
    const filter = filterOf(stream.request.interest)
    const { upTo } = place
    let { after } = place
    while (stream.open && after < upTo) {
      const events = await readEvents(this.#db, { after, upTo, filter, limit: HISTORY_PAGE })
      // Asked afterwards: what is trimmed while a slow reader catches up is missing from its history too.
      if ((await findTrimmed(this.#db)) > after) return stream.reset(upTo)
      await stream.sendAll(events)
      after = events.length < HISTORY_PAGE ? upTo : (events.at(-1)?.seq ?? upTo)
    }
  }

  #forget(stream: OpenStream): void {
    if (!this.#open.delete(stream)) return
    stream.unsubscribe()
    const { caller } = stream.request
    const left = (this.#perCaller.get(caller) ?? 1) - 1
    if (left > 0) this.#perCaller.set(caller, left)
    else this.#perCaller.delete(caller)
  }

  #tick(): void {
    const { head } = this.#feed
    for (const stream of this.#open) stream.tick(head ?? 0)
  }
}

class OpenStream implements Subscriber {
  readonly request: StreamRequest
  readonly #clock: Clock
  readonly #retryMs: number
  readonly #endsAtMs: number
  unsubscribe: () => void = () => {}
  #sse: SseStream | undefined
  /** The client has all there is for it up to here. */
  #place: number
  /** What comes live while history is still being sent; null once the stream is live, or over. */
  #heldBack: EventRow[] | null = []
  #isOver = false

  constructor(request: StreamRequest, { clock, random }: { clock: Clock; random: Random }) {
    this.request = request
    this.#clock = clock
    this.#retryMs = RETRY_MS.least + Math.floor(random.fraction() * RETRY_MS.spread)
    const { expiresAtMs, revocable } = request
    const revisitMs = revocable ? clock.now() + REVOCABLE_MS : Number.POSITIVE_INFINITY
    this.#endsAtMs = Math.min(expiresAtMs ?? Number.POSITIVE_INFINITY, revisitMs)
    this.#place = typeof request.after === 'number' ? request.after : 0
  }

  get begun(): boolean {
    return this.#sse !== undefined
  }

  get open(): boolean {
    return this.#sse?.open ?? false
  }

  begin(reply: FastifyReply, onClose: () => void): void {
    this.#sse = new SseStream(reply, this.#clock.now())
    this.#sse.onClose(onClose)
    if (this.#isOver) this.end()
  }

  deliver(event: EventRow): void {
    if (this.#heldBack === null) this.send(event)
    else if (this.#heldBack.push(event) > MAX_HELD_BACK) this.end()
  }

  /** What the client has seen already, here or on a node that was ahead of this one, is not sent again. */
  send(event: EventRow): void {
    if (event.seq <= this.#place || this.#isOver) return
    this.#place = event.seq
    this.#sse?.send(toMessage(event), this.#clock.now())
  }

  /** What the client knows may have holes: it should fetch anew, and go on from here. */
  reset(at: number): void {
    this.#place = at
    const data = { id: String(at), type: 'reset', created_at: toRfc3339(this.#clock.now()), data: {} }
    this.#sse?.send({ id: String(at), event: 'reset', data: JSON.stringify(data) }, this.#clock.now())
  }

  /** At the reader's pace. */
  async sendAll(events: readonly EventRow[]): Promise<void> {
    for (const event of events) {
      this.send(event)
      if (this.#sse?.isFull) await this.#sse.drained()
    }
  }

  /** The client is told its place, so that it misses nothing when it is cut off before its first event. */
  async goLive(at: number): Promise<void> {
    this.#place = Math.max(this.#place, at)
    if (!this.#isOver) this.#sse?.mark(String(this.#place), this.#clock.now())
    while (this.#heldBack !== null && this.#heldBack.length > 0) {
      const waiting = this.#heldBack
      this.#heldBack = []
      await this.sendAll(waiting)
    }
    this.#heldBack = null
  }

  /** Told how far the feed is: one that has long had no event of its own must not be left standing in what is trimmed. */
  tick(head: number): void {
    const nowMs = this.#clock.now()
    if (nowMs >= this.#endsAtMs) return this.end()
    if (!this.#sse || nowMs - this.#sse.lastWriteMs < HEARTBEAT_MS) return
    this.#sse.comment(nowMs)
    if (this.#heldBack !== null || head <= this.#place) return
    this.#place = head
    this.#sse.mark(String(head), nowMs)
  }

  /** Before its beginning too: it then ends as soon as it has begun. */
  end(): void {
    this.#isOver = true
    this.#heldBack = null
    this.#sse?.end(this.#retryMs, this.#clock.now())
  }
}

function toMessage({ seq, type, created_at, data }: EventRow) {
  const id = String(seq)
  const head = JSON.stringify({ id, type, created_at: toRfc3339(created_at) })
  return { id, event: type, data: `${head.slice(0, -1)},"data":${data}}` }
}

function filterOf(interest: Interest): EventFilter {
  if (interest === 'all') return {}
  return 'subject' in interest ? { subject: interest.subject } : { jobId: interest.jobId }
}
