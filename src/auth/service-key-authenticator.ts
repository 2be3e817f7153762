import { type Loop, startLoop } from '../core/async/loop.ts'
import { SingleFlight } from '../core/async/single-flight.ts'
import { BoundedMap } from '../core/bounded-map.ts'
import type { Clock } from '../core/clock.ts'
import { UnavailableError } from '../core/errors.ts'
import type { Log } from '../core/log.ts'
import { type BeginCheck, beginAlways, UNCHECKED } from './credential-check.ts'
import type { ServicePrincipal } from './principal.ts'
import { hashServiceKey, isWellFormedServiceKey } from './service-key.ts'

const CACHE_MS = 30_000
/** How long a key is accepted that cannot be looked up, because the database is down. */
const OUTAGE_MS = 3_600_000
const KNOWN_KEYS = 10_000
const UNKNOWN_KEYS = 1_000
const LAST_USED_EVERY_MS = 60_000
const MARK_BATCH = 500

/**
 * A key of an account that is not revoked. Key or account may have expired: the authenticator checks that, because it has
 * the clock.
 */
export type LiveServiceKey = {
  key_id: string
  account_id: string
  scopes: string
  key_expires_at: number | null
  account_expires_at: number | null
}

export interface ServiceKeyStore {
  findLive(hash: string): Promise<LiveServiceKey | undefined>
  markUsed(accountIds: readonly string[], atMs: number): Promise<void>
}

interface AuthenticatedServiceKey {
  keyId: string
  principal: ServicePrincipal
}

interface CachedKey {
  found: LiveServiceKey | null
  readAtMs: number
}

/**
 * Finds the service account of a key. Results, valid and invalid, are cached for 30 s, so a revocation on another node
 * takes effect here within 30 s. While the database is down, a key that was valid before stays valid for an hour, so that
 * Prometheus can still read the metrics. Unknown keys have a separate cache, so that random keys cannot evict valid ones.
 * `last_used_at` is written at most once a minute, outside of requests.
 */
export class ServiceKeyAuthenticator {
  readonly #store: ServiceKeyStore
  readonly #clock: Clock
  readonly #known = new BoundedMap<string, CachedKey>(KNOWN_KEYS)
  readonly #unknown = new BoundedMap<string, CachedKey>(UNKNOWN_KEYS)
  readonly #lookups = new SingleFlight<string, LiveServiceKey | null | typeof UNCHECKED>()
  readonly #used = new Set<string>()
  #generation = 0
  readonly #marking: Loop

  constructor(options: { store: ServiceKeyStore; clock: Clock; log: Log }) {
    this.#store = options.store
    this.#clock = options.clock
    this.#marking = startLoop({
      clock: options.clock,
      everyMs: LAST_USED_EVERY_MS,
      run: () => this.#markUsed(),
      onError: (error) => options.log.warn({ err: error }, 'service_key.last_used_not_written'),
    })
  }

  /** Null for a key that is malformed, unknown, revoked or expired. */
  async authenticate(
    key: string,
    beginCheck: BeginCheck = beginAlways,
  ): Promise<AuthenticatedServiceKey | null | typeof UNCHECKED> {
    if (!isWellFormedServiceKey(key)) return null
    const found = await this.#find(hashServiceKey(key), beginCheck)
    if (found === UNCHECKED) return UNCHECKED
    const now = this.#clock.calendar()
    if (found === null || isOver(found.key_expires_at, now) || isOver(found.account_expires_at, now)) return null
    this.#used.add(found.account_id)
    return {
      keyId: found.key_id,
      principal: {
        kind: 'service',
        id: found.account_id,
        keyId: found.key_id,
        scopes: found.scopes.split(' ').filter((scope) => scope !== ''),
        expiresAtMs: earliest(found.key_expires_at, found.account_expires_at),
      },
    }
  }

  /** A key that was created, rotated or revoked on this node takes effect here at once. */
  forgetCached(): void {
    this.#generation += 1
    this.#known.clear()
    this.#unknown.clear()
  }

  async close(): Promise<void> {
    await this.#marking.stop()
    await this.#markUsed().catch(() => {})
  }

  async #find(hash: string, beginCheck: BeginCheck): Promise<LiveServiceKey | null | typeof UNCHECKED> {
    const cached = this.#known.get(hash) ?? this.#unknown.get(hash)
    if (cached && this.#clock.now() - cached.readAtMs < CACHE_MS) return cached.found
    // A lookup that began before `forgetCached` must not write its result to the cache.
    const generation = this.#generation
    return this.#lookups.run(`${generation} ${hash}`, async () => {
      // A key that was valid at its last lookup costs one query in 30 s: it always passes.
      const endCheck = (cached?.found ? beginAlways : beginCheck)()
      if (endCheck === null) return UNCHECKED
      const readAtMs = this.#clock.now()
      let found: LiveServiceKey | null | undefined
      try {
        found = await this.#lookUp(hash)
      } finally {
        endCheck(found === null)
      }
      if (found === undefined) return cached?.found ?? null
      if (generation === this.#generation) this.#remember(hash, { found, readAtMs })
      return found
    })
  }

  /** Undefined if the database is down and the key was valid within the last hour. */
  async #lookUp(hash: string): Promise<LiveServiceKey | null | undefined> {
    try {
      return (await this.#store.findLive(hash)) ?? null
    } catch (error) {
      const known = this.#known.get(hash)
      const isRecent = known !== undefined && this.#clock.now() - known.readAtMs < OUTAGE_MS
      // Without a cause, the database is only busy.
      const isOutage = error instanceof UnavailableError && error.cause !== undefined
      if (isOutage && isRecent) return undefined
      throw error
    }
  }

  #remember(hash: string, cached: CachedKey): void {
    const [into, other] = cached.found ? [this.#known, this.#unknown] : [this.#unknown, this.#known]
    other.delete(hash)
    into.set(hash, cached)
  }

  async #markUsed(): Promise<void> {
    while (this.#used.size > 0) {
      const batch = [...this.#used].slice(0, MARK_BATCH)
      await this.#store.markUsed(batch, this.#clock.now())
      for (const id of batch) this.#used.delete(id)
    }
  }
}

function isOver(expiresAtMs: number | null, nowMs: number): boolean {
  return expiresAtMs !== null && expiresAtMs <= nowMs
}

function earliest(a: number | null, b: number | null): number | null {
  if (a === null) return b
  return b === null ? a : Math.min(a, b)
}
