import { hash } from 'node:crypto'
import { compactVerify } from 'jose/jws/compact/verify'
import type { MaybePromise } from '../core/async/maybe-promise.ts'
import { SingleFlight } from '../core/async/single-flight.ts'
import type { Clock } from '../core/clock.ts'
import { type BeginCheck, beginAlways, UNCHECKED } from './credential-check.ts'
import type { Algorithm } from './issuer/algorithms.ts'
import type { KeySet } from './issuer/key-set.ts'
import type { UserPrincipal } from './principal.ts'
import { TokenCache } from './token-cache.ts'
import { type ClaimRules, checkClaims } from './token-claims.ts'
import { TokenFault } from './token-fault.ts'
import { parseToken } from './token-format.ts'

/** A longer token is refused before it is hashed. */
const MAX_TOKEN_LENGTH = 8192

type Verdict = UserPrincipal | TokenFault | typeof UNCHECKED

export interface TokenVerifierOptions extends ClaimRules {
  keySet: Pick<KeySet, 'find' | 'current'>
  /** Absent: RS256. */
  algorithms?: readonly Algorithm[]
  clock: Clock
  cacheSize?: number
}

/**
 * Verifies a bearer token: it must be strictly well-formed and signed by a key of the issuer's set, with an algorithm that is
 * accepted and that fits the key. Only valid tokens are cached.
 */
export class TokenVerifier {
  readonly #options: TokenVerifierOptions
  readonly #cache: TokenCache
  readonly #flights = new SingleFlight<string, Verdict>()

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

  /**
   * Shape, claims and key come first: a token that fails there costs no signature check, and none of the checks that
   * `beginCheck` counts. Rejects with `UnavailableError` until the first fetch of keys has succeeded.
   */
  verify(token: string, beginCheck: BeginCheck = beginAlways): MaybePromise<Verdict> {
    if (token.length > MAX_TOKEN_LENGTH) return new TokenFault('too_long', 'The token is too long')
    const digest = digestOf(token)
    return this.#cache.get(digest) ?? this.#flights.run(digest, () => this.#verifyNew(token, digest, beginCheck))
  }

  async #verifyNew(token: string, digest: string, beginCheck: BeginCheck): Promise<Verdict> {
    try {
      return await this.#check(token, digest, beginCheck)
    } catch (error) {
      if (error instanceof TokenFault) return error
      throw error
    }
  }

  async #check(token: string, digest: string, beginCheck: BeginCheck): Promise<Verdict> {
    const { keySet, clock, algorithms } = this.#options
    const { alg, kid, claims } = parseToken(token, algorithms)
    const principal = checkClaims(claims, this.#options, clock.calendar())
    const key = await keySet.find(kid)
    if (!key) throw new TokenFault('unknown_key', 'The key is not in the set')
    const publicKey = key.publicKeys.get(alg)
    if (!publicKey) throw new TokenFault('algorithm', 'The key is for another algorithm')
    const endCheck = beginCheck()
    if (endCheck === null) return UNCHECKED
    const isSigned = await hasValidSignature(token, alg, publicKey)
    endCheck(!isSigned)
    if (!isSigned) throw new TokenFault('signature', 'The signature does not match')
    // The token may have expired while the keys were fetched.
    if (clock.calendar() >= principal.expiresAtMs) throw new TokenFault('expired', 'The token has expired')
    this.#cache.set(digest, { principal, key })
    return principal
  }
}

function digestOf(token: string): string {
  return hash('sha256', token, 'base64')
}

async function hasValidSignature(token: string, alg: Algorithm, publicKey: CryptoKey): Promise<boolean> {
  try {
    await compactVerify(token, publicKey, { algorithms: [alg] })
    return true
  } catch {
    return false
  }
}
