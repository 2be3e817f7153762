import { hash } from 'node:crypto'
import { compactVerify } from 'jose/jws/compact/verify'
import type { MaybePromise } from '../core/async/maybe-promise.ts'
import { SingleFlight } from '../core/async/single-flight.ts'
import type { Clock } from '../core/clock.ts'
import type { VerificationKey } from './jwk.ts'
import type { KeySet } from './key-set.ts'
import type { UserPrincipal } from './principal.ts'
import { TokenCache } from './token-cache.ts'
import { type ClaimRules, checkClaims } from './token-claims.ts'
import { TokenFault } from './token-fault.ts'
import { parseToken } from './token-format.ts'

/** A longer token is refused before it is hashed. */
const MAX_TOKEN_LENGTH = 8192

export interface TokenVerifierOptions extends ClaimRules {
  keySet: Pick<KeySet, 'find' | 'current'>
  clock: Clock
  cacheSize?: number
}

/**
 * Verifies a bearer token: it must be strictly well-formed and signed with RS256 by a key of the issuer's set. Only valid
 * tokens are cached.
 */
export class TokenVerifier {
  readonly #options: TokenVerifierOptions
  readonly #cache: TokenCache
  readonly #flights = new SingleFlight<string, UserPrincipal | TokenFault>()

  constructor(options: TokenVerifierOptions) {
    this.#options = options
    const { cacheSize: capacity = 10_000, clock, keySet } = options
    this.#cache = new TokenCache({ capacity, clock, keySet })
  }

  /** Forgets the verified tokens of a user. */
  forget(sub: string): void {
    this.#cache.forget(sub)
  }

  get cacheSize(): number {
    return this.#cache.size
  }

  /** Whether this token is valid and was verified before: `verify` then does no work. */
  isKnown(token: string): boolean {
    return token.length <= MAX_TOKEN_LENGTH && this.#cache.get(digestOf(token)) !== undefined
  }

  /** Rejects with `UnavailableError` until the first fetch of keys has succeeded. */
  verify(token: string): MaybePromise<UserPrincipal | TokenFault> {
    if (token.length > MAX_TOKEN_LENGTH) return new TokenFault('too_long', 'The token is too long')
    const digest = digestOf(token)
    return this.#cache.get(digest) ?? this.#flights.run(digest, () => this.#verifyNew(token, digest))
  }

  async #verifyNew(token: string, digest: string): Promise<UserPrincipal | TokenFault> {
    try {
      return await this.#check(token, digest)
    } catch (error) {
      if (error instanceof TokenFault) return error
      throw error
    }
  }

  /** Cheap checks come first: a token that fails them causes no key fetch and no signature check. */
  async #check(token: string, digest: string): Promise<UserPrincipal> {
    const { keySet, clock } = this.#options
    const { kid, claims } = parseToken(token)
    const principal = checkClaims(claims, this.#options, clock.calendar())
    const key = await keySet.find(kid)
    if (!key) throw new TokenFault('unknown_key', 'The key is not in the set')
    await checkSignature(token, key)
    // The token may have expired while the keys were fetched.
    if (clock.calendar() >= principal.expiresAtMs) throw new TokenFault('expired', 'The token has expired')
    this.#cache.set(digest, { principal, key })
    return principal
  }
}

function digestOf(token: string): string {
  return hash('sha256', token, 'base64')
}

async function checkSignature(token: string, key: VerificationKey): Promise<void> {
  try {
    await compactVerify(token, key.publicKey, { algorithms: ['RS256'] })
  } catch (cause) {
    throw new TokenFault('signature', 'The signature does not match', { cause })
  }
}
