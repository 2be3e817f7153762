import type { Clock } from '../core/clock.ts'
import { UnavailableError } from '../core/errors.ts'
import { exchange } from '../core/exchange.ts'
import type { Log } from '../core/log.ts'
import { importKeys, type VerificationKey } from './jwk.ts'

const MAX_BODY_BYTES = 512 * 1024
const TIMEOUT_MS = 5_000
const TTL_MS = 600_000
const COOLDOWN_MS = 10_000

export interface KeySetOptions {
  url: string
  fetch: typeof fetch
  clock: Clock
  log: Log
}

interface KeySetState {
  keys: number
  fetchedAtMs: number | null
  lastError: string | null
}

/**
 * The issuer's keys. The provider gets at most one fetch per cooldown, even if fetches fail or many tokens name unknown
 * keys. Fetched keys stay in use during a new fetch and while the provider is down.
 */
export class KeySet {
  readonly #options: KeySetOptions
  readonly #closing = new AbortController()
  #keys: ReadonlyMap<string, VerificationKey> = new Map()
  #fetchedAtMs: number | null = null
  #attemptedAtMs: number | null = null
  #lastError: string | null = null
  #fetching: Promise<void> | null = null

  constructor(options: KeySetOptions) {
    this.#options = options
  }

  /** The key with this id; an unknown id starts a fetch. Rejects only if no key was ever fetched. */
  async find(kid: string): Promise<VerificationKey | undefined> {
    const known = this.current(kid)
    if (known) return known
    await this.#renew()
    if (!this.isReady()) {
      throw new UnavailableError('The identity provider is unavailable', {
        cause: new Error(this.#lastError ?? 'no keys were fetched yet'),
        retryAfterSeconds: Math.max(1, Math.ceil(this.#cooldownLeftMs() / 1000)),
      })
    }
    return this.#keys.get(kid)
  }

  /**
   * The key with this id as of now. If the set is older than its TTL, a fetch starts, so that cached tokens of a removed
   * key become invalid.
   */
  current(kid: string): VerificationKey | undefined {
    if (this.#isStale()) void this.#renew()
    return this.#keys.get(kid)
  }

  /** Fetches the set at boot, so that the first request does not wait. Never rejects: the service boots without the provider. */
  warmUp(): Promise<void> {
    return this.#renew()
  }

  isReady(): boolean {
    return this.#fetchedAtMs !== null
  }

  state(): KeySetState {
    return { keys: this.#keys.size, fetchedAtMs: this.#fetchedAtMs, lastError: this.#lastError }
  }

  /** Ends the fetch in progress and starts no other. Known keys still serve requests in flight. */
  async close(): Promise<void> {
    this.#closing.abort(new Error('the service is shutting down'))
    await this.#fetching
  }

  #isStale(): boolean {
    return this.#fetchedAtMs !== null && this.#leftMs(this.#fetchedAtMs, TTL_MS) === 0
  }

  #cooldownLeftMs(): number {
    return this.#attemptedAtMs === null ? 0 : this.#leftMs(this.#attemptedAtMs, COOLDOWN_MS)
  }

  /** A clock that was set back must not prolong a pause: if the start is in the future, the pause is over. */
  #leftMs(sinceMs: number, spanMs: number): number {
    const elapsedMs = this.#options.clock.now() - sinceMs
    return elapsedMs < 0 ? 0 : Math.max(0, spanMs - elapsedMs)
  }

  #renew(): Promise<void> {
    if (this.#fetching) return this.#fetching
    if (this.#closing.signal.aborted || this.#cooldownLeftMs() > 0) return Promise.resolve()
    // Failed fetches count too: a provider that is down gets no more requests than one that answers.
    this.#attemptedAtMs = this.#options.clock.now()
    this.#fetching = this.#fetch().finally(() => {
      this.#fetching = null
    })
    return this.#fetching
  }

  async #fetch(): Promise<void> {
    const { url, fetch, clock, log } = this.#options
    try {
      const { signal } = this.#closing
      const answer = await exchange({ url, fetch, clock, timeoutMs: TIMEOUT_MS, maxBytes: MAX_BODY_BYTES, signal })
      if (answer.status < 200 || answer.status > 299) throw new Error(`the response was ${answer.status}`)
      const { keys, ignored } = await importKeys(JSON.parse(answer.text), this.#keys)
      // An empty set is probably a fault of the provider, not a decision to lock out every user.
      if (keys.size === 0) throw new Error('the key set holds no usable key')
      this.#keys = keys
      this.#fetchedAtMs = clock.now()
      this.#lastError = null
      log.info({ keys: keys.size, ignored }, 'key_set.fetched')
    } catch (error) {
      this.#lastError = error instanceof Error ? error.message : String(error)
      log.warn({ error: this.#lastError, keys: this.#keys.size }, 'key_set.fetch_failed')
    }
  }
}

/** The URL at which an issuer publishes its keys. */
export function keySetUrl(issuerUrl: string): string {
  return `${issuerUrl.replace(/\/$/, '')}/.well-known/jwks.json`
}
