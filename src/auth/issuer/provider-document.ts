import type { MaybePromise } from '../../core/async/maybe-promise.ts'
import type { Clock } from '../../core/clock.ts'
import { reasonOf, UnavailableError } from '../../core/errors.ts'
import { exchange, type HttpAnswer } from '../../core/exchange.ts'

const MAX_BODY_BYTES = 512 * 1024
const TIMEOUT_MS = 5_000
const TTL_MS = 600_000
const COOLDOWN_MS = 10_000
/** Without a reason, `abort` makes an exception with a stack trace. */
const FETCHED = 'fetched'

interface ProviderDocumentOptions<Value> {
  url: () => MaybePromise<string>
  /** Rejects an answer that is not the document. `before` is the value of the last good answer. */
  read: (answer: HttpAnswer, before: Value | null) => MaybePromise<Value>
  /** False: the provider may not be up yet, so the document is fetched again when it is needed. Absent: every value is. */
  isComplete?: (value: Value) => boolean
  onFailure: (error: string) => void
  fetch: typeof fetch
  clock: Clock
}

/**
 * A document of the identity provider. The provider gets at most one fetch per cooldown, even if fetches fail or many
 * requests need a new one. The last good value stays in use during a new fetch and while the provider is down.
 */
export class ProviderDocument<Value> {
  readonly #options: ProviderDocumentOptions<Value>
  readonly #closing = new AbortController()
  #value: Value | null = null
  #fetchedAtMs: number | null = null
  #attemptedAtMs: number | null = null
  #failure: unknown = null
  #fetching: Promise<void> | null = null
  /** The fetch in progress, for requests. */
  #wait: Promise<void> = Promise.resolve()

  constructor(options: ProviderDocumentOptions<Value>) {
    this.#options = options
  }

  get fetchedAtMs(): number | null {
    return this.#fetchedAtMs
  }

  get lastError(): string | null {
    return this.#failure === null ? null : reasonOf(this.#failure)
  }

  /** The last good value; null before the first one. If it is older than its TTL, a fetch starts. */
  current(): Value | null {
    if (this.#fetchedAtMs !== null && this.#leftMs(this.#fetchedAtMs, TTL_MS) === 0) void this.renew()
    return this.#value
  }

  /** The last good value, for which the first caller waits, or a caller without a complete one. Rejects if there is none. */
  async get(): Promise<Value> {
    const known = this.current()
    if (known !== null && this.#options.isComplete?.(known) !== false) return known
    await this.renew()
    return this.known()
  }

  /** The last good value, or an `UnavailableError`. */
  known(): Value {
    if (this.#value !== null) return this.#value
    const cooldownLeftMs = this.#attemptedAtMs === null ? 0 : this.#leftMs(this.#attemptedAtMs, COOLDOWN_MS)
    throw new UnavailableError('The identity provider is unavailable', {
      cause: this.#failure ?? new Error('nothing was fetched yet'),
      retryAfterSeconds: Math.max(1, Math.ceil(cooldownLeftMs / 1000)),
    })
  }

  /** Fetches the document, unless the cooldown forbids it. Never rejects. */
  renew(): Promise<void> {
    if (this.#fetching) return this.#fetching
    const isTooEarly = this.#attemptedAtMs !== null && this.#leftMs(this.#attemptedAtMs, COOLDOWN_MS) > 0
    if (this.#closing.signal.aborted || isTooEarly) return Promise.resolve()
    // Failed fetches count too: a provider that is down gets no more requests than one that answers.
    this.#attemptedAtMs = this.#options.clock.now()
    const ended = new AbortController()
    this.#fetching = this.#fetch().finally(() => {
      this.#fetching = null
      ended.abort(FETCHED)
    })
    this.#wait = this.#options.clock.sleep(TIMEOUT_MS, ended.signal)
    return this.#fetching
  }

  /**
   * The same for a request, which waits no longer than one fetch may take. A fetch that first needs the address from
   * another document may take longer: it goes on, and requests meanwhile do not wait.
   */
  renewInTime(): Promise<void> {
    void this.renew()
    return this.#wait
  }

  /** The same for a health check, which has less time. A fetch that takes longer goes on. */
  renewWithin(maxMs: number): Promise<void> {
    const ended = new AbortController()
    void this.renew().then(() => ended.abort(FETCHED))
    return this.#options.clock.sleep(maxMs, ended.signal)
  }

  /** Ends the fetch in progress and starts no other. The known value stays. */
  async close(): Promise<void> {
    this.#closing.abort(new Error('the service is shutting down'))
    await this.#fetching
  }

  /** A clock that was set back must not prolong a pause: if the start is in the future, the pause is over. */
  #leftMs(sinceMs: number, spanMs: number): number {
    const elapsedMs = this.#options.clock.now() - sinceMs
    return elapsedMs < 0 ? 0 : Math.max(0, spanMs - elapsedMs)
  }

  async #fetch(): Promise<void> {
    const { fetch, clock, read, onFailure } = this.#options
    try {
      const address = this.#options.url()
      const url = typeof address === 'string' ? address : await address
      const { signal } = this.#closing
      const answer = await exchange({ url, fetch, clock, timeoutMs: TIMEOUT_MS, maxBytes: MAX_BODY_BYTES, signal })
      this.#value = await read(answer, this.#value)
      this.#fetchedAtMs = clock.now()
      this.#failure = null
    } catch (error) {
      // For an unavailable document that this one needs, the reason is in the cause.
      this.#failure = error instanceof UnavailableError ? error.cause : error
      onFailure(reasonOf(this.#failure))
    }
  }
}

/** Redirects are not followed: an answer of 301 is a failure. */
export function checkStatus({ status }: HttpAnswer): void {
  if (status < 200 || status > 299) throw new Error(`the response was ${status}`)
}
