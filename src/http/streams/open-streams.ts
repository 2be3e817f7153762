import type { FastifyReply, FastifyRequest } from 'fastify'
import type { BlockedUsers } from '../../auth/blocked-users.ts'
import { type Principal, principalId } from '../../auth/principal.ts'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import type { Clock } from '../../core/clock.ts'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import type { Log } from '../../core/log.ts'
import type { Random } from '../../core/random.ts'
import { type SseOptions, SseStream } from './sse.ts'

const MAX_STREAMS = 20_000
const MAX_STREAMS_PER_CALLER = 50
const TICK_MS = 1_000
/** Random, so that the clients of a stopped node do not all reconnect in the same second. */
const RETRY_MS = { least: 1_000, spread: 2_000 }
/** A service key can be revoked: its stream ends after this time, so that the client must authenticate again. */
const REVOCABLE_MS = 5 * 60_000

interface OpenStreamsOptions {
  clock: Clock
  random: Random
  log: Log
  blockedUsers: BlockedUsers
}

/** The open streams of all kinds in this process: limits them for one caller and in total, and ends each in time. */
export class OpenStreams {
  readonly #options: OpenStreamsOptions
  readonly #open = new Set<SseStream>()
  readonly #perCaller = new Map<string, number>()
  readonly #ticking: Loop
  #isClosing = false

  constructor(options: OpenStreamsOptions) {
    this.#options = options
    const { clock, log } = options
    this.#ticking = startLoop({
      clock,
      everyMs: TICK_MS,
      run: async () => {
        for (const stream of this.#open) stream.tick()
      },
      onError: (error) => log.warn({ err: error }, 'streams.tick_failed'),
    })
  }

  /** Takes a slot for a stream of the caller, until the stream is released. Throws if no slot is free. */
  reserve(principal: Principal, hooks: Pick<SseOptions, 'onHeartbeat' | 'onCut'> = {}): SseStream {
    this.refuseIfClosing()
    const { clock, random, blockedUsers } = this.#options
    const { kind, expiresAtMs } = principal
    const caller = principalId(principal)
    this.#takeSlot(caller)
    const expiresInMs = (expiresAtMs ?? Number.POSITIVE_INFINITY) - clock.calendar()
    const revocableUntilMs = kind === 'service' ? clock.now() + REVOCABLE_MS : Number.POSITIVE_INFINITY
    const stream = new SseStream({
      ...hooks,
      clock,
      endsAtMs: Math.min(clock.now() + expiresInMs, revocableUntilMs),
      // A service account is not a user.
      isBlocked: () => kind === 'user' && blockedUsers.stateOf(caller) === 'blocked',
      retryMs: RETRY_MS.least + Math.floor(random.fraction() * RETRY_MS.spread),
    })
    this.#open.add(stream)
    stream.onRelease(() => {
      this.#open.delete(stream)
      this.#freeSlot(caller)
    })
    return stream
  }

  refuseIfClosing(): void {
    if (this.#isClosing) throw new UnavailableError('Shutting down')
  }

  /** Ends every stream. The clients reconnect, to another node if there is one. */
  async close(): Promise<void> {
    this.#isClosing = true
    await this.#ticking.stop()
    for (const stream of this.#open) stream.end()
  }

  #takeSlot(caller: string): void {
    const mine = this.#perCaller.get(caller) ?? 0
    if (mine >= MAX_STREAMS_PER_CALLER) {
      throw new ApiError('rate_limit_exceeded', 'Too many open streams', { headers: { 'retry-after': '5' } })
    }
    if (this.#open.size >= MAX_STREAMS) throw new UnavailableError('Too many open streams', { retryAfterSeconds: 5 })
    this.#perCaller.set(caller, mine + 1)
  }

  #freeSlot(caller: string): void {
    const left = (this.#perCaller.get(caller) ?? 1) - 1
    if (left > 0) this.#perCaller.set(caller, left)
    else this.#perCaller.delete(caller)
  }
}

/** The cursor that the header or the query holds; null if it is missing or empty. */
export function readCursor<Cursor>(
  name: 'Last-Event-ID' | 'querystring/after',
  text: string | string[] | undefined,
  parse: (text: string) => Cursor | null,
): Cursor | null {
  if (text === undefined || text === '') return null
  const cursor = typeof text === 'string' ? parse(text) : null
  if (cursor === null) throw new ApiError('invalid_request', `${name} must be the id of an event`)
  return cursor
}

/** Answers a HEAD request, which opens no stream. True if the request is one. */
export function answerHead(request: FastifyRequest, reply: FastifyReply): boolean {
  if (request.method !== 'HEAD') return false
  reply.type('text/event-stream; charset=utf-8').header('cache-control', 'no-store').send()
  return true
}
