import type { Clock } from '../core/clock.ts'
import { UnavailableError } from '../core/errors.ts'
import type { Log } from '../core/log.ts'
import { fetchJson } from './fetch-json.ts'
import { importKeys, type VerificationKey } from './jwk.ts'

const MAX_BODY_BYTES = 512 * 1024

export interface KeySetOptions {
  url: string
  fetch: typeof fetch
  clock: Clock
  log: Log
  timeoutMs?: number
  ttlMs?: number
  cooldownMs?: number
}

export interface KeySetState {
  keys: number
  fetchedAtMs: number | null
  lastError: string | null
}

/**
 * The issuer's keys. The provider is asked at most once per cooldown, one fetch at a time, whatever arrives and whether or not
 * it answers; keys once fetched keep serving while they are renewed and while the provider is down.
 */
export class KeySet {
  readonly #options: Required<KeySetOptions>
  readonly #closing = new AbortController()
  #keys: ReadonlyMap<string, VerificationKey> = new Map()
  #fetchedAtMs: number | null = null
  #attemptedAtMs: number | null = null
  #lastError: string | null = null
  #fetching: Promise<void> | null = null

  constructor(options: KeySetOptions) {
    this.#options = { timeoutMs: 5_000, ttlMs: 600_000, cooldownMs: 10_000, ...options }
  }

  /** The key of that name; asks the provider when it is not known. Rejects only when no key was ever fetched. */
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

  /** The key of that name as of now. Reading an aged set starts its renewal, so that even cached tokens notice a key leave. */
  current(kid: string): VerificationKey | undefined {
    if (this.#isStale()) void this.#renew()
    return this.#keys.get(kid)
  }

  /** Fetches the set at boot, so that the first request need not wait. It never rejects: the service boots without the provider. */
  warmUp(): Promise<void> {
    return this.#renew()
  }

  isReady(): boolean {
    return this.#fetchedAtMs !== null
  }

  state(): KeySetState {
    return { keys: this.#keys.size, fetchedAtMs: this.#fetchedAtMs, lastError: this.#lastError }
  }

  /** Ends the fetch in progress and starts no other; known keys still serve what is in flight. */
  async close(): Promise<void> {
    this.#closing.abort(new Error('the service is shutting down'))
    await this.#fetching
  }

  #isStale(): boolean {
    return this.#fetchedAtMs !== null && this.#leftMs(this.#fetchedAtMs, this.#options.ttlMs) === 0
  }

  #cooldownLeftMs(): number {
    return this.#attemptedAtMs === null ? 0 : this.#leftMs(this.#attemptedAtMs, this.#options.cooldownMs)
  }

  /** A clock set back must not stretch a pause: what seems to lie in the future is over. */
  #leftMs(sinceMs: number, spanMs: number): number {
    const elapsedMs = this.#options.clock.now() - sinceMs
    return elapsedMs < 0 ? 0 : Math.max(0, spanMs - elapsedMs)
  }

  #renew(): Promise<void> {
    if (this.#fetching) return this.#fetching
    if (this.#closing.signal.aborted || this.#cooldownLeftMs() > 0) return Promise.resolve()
    // Failed fetches count too: a provider that is down is not asked more often than one that answers.
    this.#attemptedAtMs = this.#options.clock.now()
    this.#fetching = this.#fetch().finally(() => {
      this.#fetching = null
    })
    return this.#fetching
  }

  async #fetch(): Promise<void> {
    const { url, fetch, timeoutMs, clock, log } = this.#options
    try {
      const document = await fetchJson({
        url,
        fetch,
        timeoutMs,
        maxBytes: MAX_BODY_BYTES,
        signal: this.#closing.signal,
      })
      const { keys, ignored } = await importKeys(document, this.#keys)
      // An issuer without a key can issue nothing: more likely a fault of the answer than the wish to shut everybody out.
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
