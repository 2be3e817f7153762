import { type Loop, startLoop } from '../core/async/loop.ts'
import { SingleFlight } from '../core/async/single-flight.ts'
import { BoundedMap } from '../core/bounded-map.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { ServicePrincipal } from './principal.ts'
import { hashServiceKey, isWellFormedServiceKey } from './service-key.ts'

const CACHE_MS = 30_000
const CACHE_SIZE = 10_000
const LAST_USED_EVERY_MS = 60_000
const MARK_BATCH = 500

/** A key of an account that is not revoked. Both may have expired: the authenticator has the clock. */
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

export interface AuthenticatedServiceKey {
  keyId: string
  principal: ServicePrincipal
}

/**
 * Tells which service account a key speaks for. Answers, good and bad, are kept for 30 s, which is also how long a
 * revocation on another node may take to be felt. `last_used_at` is written at most once a minute, off the request path.
 */
export class ServiceKeyAuthenticator {
  readonly #store: ServiceKeyStore
  readonly #clock: Clock
  readonly #answers = new BoundedMap<string, { found: LiveServiceKey | null; askedAtMs: number }>(CACHE_SIZE)
  readonly #lookups = new SingleFlight<string, LiveServiceKey | null>()
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
  async authenticate(key: string): Promise<AuthenticatedServiceKey | null> {
    if (!isWellFormedServiceKey(key)) return null
    const found = await this.#find(hashServiceKey(key))
    const now = this.#clock.now()
    if (found === null || isOver(found.key_expires_at, now) || isOver(found.account_expires_at, now)) return null
    this.#used.add(found.account_id)
    return {
      keyId: found.key_id,
      principal: {
        kind: 'service',
        id: found.account_id,
        scopes: found.scopes.split(' ').filter((scope) => scope !== ''),
        expiresAtMs: earliest(found.key_expires_at, found.account_expires_at),
      },
    }
  }

  /** A key made, rotated or revoked on this node is felt here at once. */
  forgetCached(): void {
    this.#generation += 1
    this.#answers.clear()
  }

  async close(): Promise<void> {
    await this.#marking.stop()
    await this.#markUsed().catch(() => {})
  }

  async #find(hash: string): Promise<LiveServiceKey | null> {
    const answer = this.#answers.get(hash)
    if (answer && this.#clock.now() - answer.askedAtMs < CACHE_MS) return answer.found
    // A look-up that began before `forgetCached` must not bring back what was forgotten.
    const generation = this.#generation
    return this.#lookups.run(`${generation} ${hash}`, async () => {
      const askedAtMs = this.#clock.now()
      const found = (await this.#store.findLive(hash)) ?? null
      if (generation === this.#generation) this.#answers.set(hash, { found, askedAtMs })
      return found
    })
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
