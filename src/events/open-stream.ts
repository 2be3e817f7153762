import type { FastifyReply } from 'fastify'
import type { BlockedUsers } from '../auth/blocked-users.ts'
import type { Principal } from '../auth/principal.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import type { Random } from '../core/random.ts'
import { SseStream } from '../http/sse.ts'
import type { Interest, Subscriber } from './event-feed.ts'
import type { EventRow } from './event-store.ts'

export const HEARTBEAT_MS = 15_000
/** The most live events that wait while a stream still sends its history. */
const MAX_HELD_BACK = 1_000
/** Random, so that the clients of a stopped node do not all reconnect in the same second. */
const RETRY_MS = { least: 1_000, spread: 2_000 }
/** How long a stream of a service key lasts. */
const REVOCABLE_MS = 5 * 60_000

/** The caller of a stream, and how long its credential lasts. */
export interface StreamCaller {
  caller: string
  /** A service key can be revoked: its stream ends regularly, so that the client must authenticate again. */
  callerKind: Principal['kind']
  /** When the caller's credential expires; the stream ends then. Null: never. */
  expiresAtMs: number | null
}

export interface StreamRequest extends StreamCaller {
  interest: Interest
  /** The last event the client saw. Null: begin with the next event. `oldest`: begin with the oldest stored one. */
  after: number | 'oldest' | null
}

/** When a stream ends at the latest, and when its client should reconnect. */
export function lifetimeOf(
  { expiresAtMs, callerKind }: StreamCaller,
  { clock, random }: { clock: Clock; random: Random },
): { endsAtMs: number; retryMs: number } {
  const revocableUntilMs = callerKind === 'service' ? clock.now() + REVOCABLE_MS : Number.POSITIVE_INFINITY
  return {
    endsAtMs: Math.min(expiresAtMs ?? Number.POSITIVE_INFINITY, revocableUntilMs),
    retryMs: RETRY_MS.least + Math.floor(random.fraction() * RETRY_MS.spread),
  }
}

/** The streams of a blocked user end. A service account is not a user. */
export function isBlockedCaller(
  { caller, callerKind }: Pick<StreamCaller, 'caller' | 'callerKind'>,
  blockedUsers: BlockedUsers,
): boolean {
  return callerKind === 'user' && blockedUsers.stateOf(caller) === 'blocked'
}

/** One client's stream: its position in the log, the events it must still get, and its end. */
export class OpenStream implements Subscriber {
  readonly request: StreamRequest
  readonly #clock: Clock
  readonly #retryMs: number
  readonly #endsAtMs: number
  unsubscribe: () => void = () => {}
  #sse: SseStream | undefined
  /** The client has received all its events up to here. */
  #position: number
  /** Live events that wait while history is sent. Null once the stream is live, or over. */
  #heldBack: EventRow[] | null = []
  #isOver = false

  constructor(request: StreamRequest, { clock, random }: { clock: Clock; random: Random }) {
    this.request = request
    this.#clock = clock
    const { endsAtMs, retryMs } = lifetimeOf(request, { clock, random })
    this.#endsAtMs = endsAtMs
    this.#retryMs = retryMs
    this.#position = typeof request.after === 'number' ? request.after : 0
  }

  get begun(): boolean {
    return this.#sse !== undefined
  }

  get open(): boolean {
    return this.#sse?.isOpen ?? false
  }

  begin(reply: FastifyReply, onClose: () => void): void {
    this.#sse = new SseStream(reply, this.#clock.now())
    this.#sse.onClose(onClose)
    this.#sse.greet(this.#clock.now())
    if (this.#isOver) this.end()
  }

  deliver(event: EventRow): void {
    if (this.#heldBack === null) this.send(event)
    else if (this.#heldBack.push(event) > MAX_HELD_BACK) this.end()
  }

  /** Skips events that the client has seen, on this node or on one that was ahead of it. */
  send(event: EventRow): void {
    if (event.seq <= this.#position || this.#isOver) return
    this.#position = event.seq
    this.#sse?.send(toMessage(event), this.#clock.now())
  }

  /** Tells the client that events are missing: it should reload its data and continue from here. */
  reset(at: number): void {
    this.#position = at
    const data = { id: String(at), type: 'reset', created_at: toRfc3339(this.#clock.now()), data: {} }
    this.#sse?.send({ id: String(at), event: 'reset', data: JSON.stringify(data) }, this.#clock.now())
  }

  /** Waits for the client whenever its buffer is full. */
  async sendAll(events: readonly EventRow[]): Promise<void> {
    for (const event of events) {
      this.send(event)
      if (this.#sse?.isFull) await this.#sse.drained()
    }
  }

  /** Sends the client its position, so that it misses nothing if the connection ends before its first event. */
  async goLive(at: number): Promise<void> {
    this.#position = Math.max(this.#position, at)
    if (!this.#isOver) this.#sse?.mark(String(this.#position), this.#clock.now())
    while (this.#heldBack !== null && this.#heldBack.length > 0) {
      const waiting = this.#heldBack
      this.#heldBack = []
      await this.sendAll(waiting)
    }
    this.#heldBack = null
  }

  /** Moves an idle stream's position to the feed's head, so that it does not fall behind what is deleted from the log. */
  tick(head: number): void {
    const nowMs = this.#clock.now()
    if (nowMs >= this.#endsAtMs) return this.end()
    if (!this.#sse || nowMs - this.#sse.lastWriteMs < HEARTBEAT_MS) return
    this.#sse.comment(nowMs)
    if (this.#heldBack !== null || head <= this.#position) return
    this.#position = head
    this.#sse.mark(String(head), nowMs)
  }

  /** May be called before `begin`: the stream then ends as soon as it begins. */
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
