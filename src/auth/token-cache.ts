import { BoundedMap } from '../core/bounded-map.ts'
import type { Clock } from '../core/clock.ts'
import type { VerificationKey } from './issuer/jwk.ts'
import type { KeySet } from './issuer/key-set.ts'
import type { UserPrincipal } from './principal.ts'

interface CachedToken {
  principal: UserPrincipal
  key: VerificationKey
}

interface TokenCacheOptions {
  capacity: number
  clock: Clock
  keySet: Pick<KeySet, 'current'>
}

/**
 * Verified tokens by their digest. The cache is bounded. An entry is dropped when its token expires or its key leaves the
 * set.
 */
export class TokenCache {
  readonly #entries: BoundedMap<string, CachedToken>
  readonly #clock: Clock
  readonly #keySet: Pick<KeySet, 'current'>

  constructor({ capacity, clock, keySet }: TokenCacheOptions) {
    this.#entries = new BoundedMap(capacity)
    this.#clock = clock
    this.#keySet = keySet
  }

  get size(): number {
    return this.#entries.size
  }

  get(digest: string): UserPrincipal | undefined {
    const entry = this.#entries.get(digest)
    if (!entry) return undefined
    const isKeyInSet = this.#keySet.current(entry.key.kid) === entry.key
    if (isKeyInSet && this.#clock.calendar() < entry.principal.expiresAtMs) return entry.principal
    this.#entries.delete(digest)
    return undefined
  }

  /** Forgets the tokens of a user. */
  forget(sub: string): void {
    for (const [digest, { principal }] of this.#entries.entries()) {
      if (principal.sub === sub) this.#entries.delete(digest)
    }
  }

  set(digest: string, entry: CachedToken): void {
    this.#entries.set(digest, entry)
  }
}
