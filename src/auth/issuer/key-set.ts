import type { Clock } from '../../core/clock.ts'
import { UnavailableError } from '../../core/errors.ts'
import type { HttpAnswer } from '../../core/exchange.ts'
import type { Log } from '../../core/log.ts'
import { type Algorithm, DEFAULT_ALGORITHMS } from './algorithms.ts'
import { type Discovery, RefusedDocument } from './discovery.ts'
import { importKeys, type VerificationKey } from './jwk.ts'
import { checkStatus, ProviderDocument } from './provider-document.ts'

type Keys = ReadonlyMap<string, VerificationKey>

export interface KeySetOptions {
  url: string
  /** The `jwks_uri` of the provider's discovery document comes before `url`. Absent: `url` alone. */
  discovery?: Discovery | undefined
  /** Absent: RS256. */
  algorithms?: readonly Algorithm[]
  fetch: typeof fetch
  clock: Clock
  log: Log
}

interface KeySetState {
  keys: number
  fetchedAtMs: number | null
  lastError: string | null
}

/** The issuer's keys that may verify one of the algorithms. */
export class KeySet {
  readonly #options: KeySetOptions
  readonly #document: ProviderDocument<Keys>

  constructor(options: KeySetOptions) {
    const { fetch, clock, log } = options
    this.#options = options
    this.#document = new ProviderDocument({
      url: () => this.#locate(),
      read: (answer, before) => this.#read(answer, before),
      onFailure: (error) => log.warn({ error, keys: this.state().keys }, 'key_set.fetch_failed'),
      fetch,
      clock,
    })
  }

  /** The key with this id; an unknown id starts a fetch, and waits up to 5 s for it. Rejects only if no key was ever fetched. */
  async find(kid: string): Promise<VerificationKey | undefined> {
    const known = this.current(kid)
    if (known) return known
    await this.#document.renewInTime()
    return this.#document.known().get(kid)
  }

  /**
   * The key with this id as of now. If the set is older than its TTL, a fetch starts, so that cached tokens of a removed
   * key become invalid.
   */
  current(kid: string): VerificationKey | undefined {
    return this.#document.current()?.get(kid)
  }

  /** Fetches the set at boot, so that the first request does not wait. Never rejects: the service boots without the provider. */
  warmUp(): Promise<void> {
    return this.#document.renew()
  }

  /** The same for a health check: waits no longer than `maxMs`, and the fetch goes on. */
  warmUpWithin(maxMs: number): Promise<void> {
    return this.#document.renewWithin(maxMs)
  }

  isReady(): boolean {
    return this.#document.fetchedAtMs !== null
  }

  state(): KeySetState {
    const { fetchedAtMs, lastError } = this.#document
    return { keys: fetchedAtMs === null ? 0 : this.#document.known().size, fetchedAtMs, lastError }
  }

  /** Ends the fetch in progress and starts no other. Known keys still serve requests in flight. */
  close(): Promise<void> {
    return this.#document.close()
  }

  #locate(): string | Promise<string> {
    const { url, discovery } = this.#options
    if (discovery === undefined) return url
    return discovery.get().then(
      ({ jwks_uri: named }) => named ?? url,
      (error) => {
        // The keys of a refused document are never looked for elsewhere: the setting or the provider is wrong.
        if (error instanceof UnavailableError && error.cause instanceof RefusedDocument) throw error
        return url
      },
    )
  }

  async #read(answer: HttpAnswer, before: Keys | null): Promise<Keys> {
    checkStatus(answer)
    const { algorithms = DEFAULT_ALGORITHMS, log } = this.#options
    const { keys, ignored } = await importKeys(JSON.parse(answer.text), { known: before ?? new Map(), algorithms })
    // An empty set is probably a fault of the provider, not a decision to lock out every user.
    if (keys.size === 0) throw new Error(`the key set holds no usable key for ${algorithms.join(', ')}`)
    log.info({ keys: keys.size, ignored }, 'key_set.fetched')
    return keys
  }
}

/** The URL at which an issuer publishes its keys if no discovery document says otherwise. */
export function keySetUrl(issuerUrl: string): string {
  return `${issuerUrl.replace(/\/$/, '')}/.well-known/jwks.json`
}
