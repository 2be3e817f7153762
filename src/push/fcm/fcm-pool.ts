import type { SecureContext } from 'node:tls'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { Attempts } from './fcm-attempts.ts'
import { openHttp2 } from './fcm-connect.ts'
import { FcmSession } from './fcm-session.ts'
import type { FcmAnswer, FcmRequest } from './fcm-transport.ts'

const CONNECT_TIMEOUT_MS = 10_000
const GROWTH_PAUSE_MS = 1_000
const MAX_WAITING = 10_000

interface FcmPoolOptions {
  /** An http URL means HTTP/2 without TLS. */
  url: URL
  /** Null: the certificates that the process trusts. */
  trust: SecureContext | null
  maxSessions: number
  clock: Clock
  log: Log
}

interface Waiter {
  request: FcmRequest
  resolve: (answer: Promise<FcmAnswer>) => void
  reject: (error: Error) => void
}

/**
 * Spreads requests over a few HTTP/2 connections, each used up to the number of streams that the provider allows. The
 * next connection opens only when all others are full. A lost connection is replaced when it is needed. A request is
 * never retried, because the provider may have delivered its message.
 */
export class FcmPool {
  readonly #options: FcmPoolOptions
  readonly #attempts: Attempts
  readonly #closing = new AbortController()
  readonly #waiters = new Set<Waiter>()
  #sessions: FcmSession[] = []
  #connecting: Promise<void> | null = null
  #growAtMs = 0

  constructor(options: FcmPoolOptions) {
    this.#options = options
    this.#attempts = new Attempts({ clock: options.clock, timeoutMs: CONNECT_TIMEOUT_MS, awaited: 'connection' })
  }

  async post(request: FcmRequest): Promise<FcmAnswer> {
    request.attempt.throwIfStopped()
    if (this.#closing.signal.aborted) throw new Error('the sender is closed')
    const session = this.#waiters.size === 0 ? this.#leastBusy() : undefined
    return session ? session.post(request) : this.#wait(request)
  }

  async close(): Promise<void> {
    const reason = new Error('the sender was closed')
    this.#closing.abort(reason)
    for (const waiter of this.#waiters) waiter.reject(reason)
    await this.#connecting
    const gone = this.#sessions.map((session) => session.untilGone())
    for (const session of this.#sessions) session.destroy()
    await Promise.all(gone)
  }

  #wait(request: FcmRequest): Promise<FcmAnswer> {
    if (this.#waiters.size >= MAX_WAITING) throw new Error('too many messages are waiting to be sent')
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        request,
        resolve,
        reject: (error) => {
          this.#waiters.delete(waiter)
          reject(error)
        },
      }
      this.#waiters.add(waiter)
      request.attempt.onStop(waiter.reject)
      this.#pump()
    })
  }

  /** Sends waiting requests in their order, and opens another connection when all are full. */
  #pump(): void {
    this.#sessions = this.#sessions.filter((session) => !session.isGone)
    for (const waiter of this.#waiters) {
      const session = this.#leastBusy()
      if (!session) break
      this.#waiters.delete(waiter)
      waiter.resolve(session.post(waiter.request))
    }
    if (this.#waiters.size > 0) this.#grow()
  }

  #leastBusy(): FcmSession | undefined {
    let found: FcmSession | undefined
    for (const session of this.#sessions) {
      if (session.hasCapacity && (found === undefined || session.inFlight < found.inFlight)) found = session
    }
    return found
  }

  #grow(): void {
    const { maxSessions, clock } = this.#options
    const open = this.#sessions.filter((session) => session.isOpen)
    if (this.#connecting || this.#closing.signal.aborted || open.length >= maxSessions) return
    if (open.length > 0 && clock.now() < this.#growAtMs) return
    this.#connecting = this.#connect().finally(() => {
      this.#connecting = null
      this.#pump()
    })
  }

  async #connect(): Promise<void> {
    const { url, trust, clock, log } = this.#options
    try {
      const connection = await this.#attempts.run(this.#closing.signal, (attempt) => openHttp2({ url, trust, attempt }))
      this.#sessions.push(new FcmSession({ connection, clock, onChange: () => this.#pump() }))
      log.debug({ sessions: this.#sessions.length }, 'push.connection_opened')
    } catch (error) {
      this.#growAtMs = clock.now() + GROWTH_PAUSE_MS
      log.debug({ err: error }, 'push.connection_failed')
      // If another connection is open, waiting requests use it. If not, they fail, and the outbox retries them later.
      if (this.#sessions.some((session) => session.isOpen)) return
      for (const waiter of this.#waiters) waiter.reject(error instanceof Error ? error : new Error(String(error)))
    }
  }
}
