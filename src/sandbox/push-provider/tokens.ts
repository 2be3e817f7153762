import { type KeyObject, verify } from 'node:crypto'
import { BoundedMap } from '../../core/bounded-map.ts'
import type { Clock } from '../../core/clock.ts'
import { isJsonObject, type JsonObject } from '../../core/json.ts'
import { systemRandom } from '../../core/random.ts'
import { type HttpResponse, json } from '../http-response.ts'

const GRANT = 'urn:ietf:params:oauth:grant-type:jwt-bearer'
const SCOPE = 'https://www.googleapis.com/auth/firebase.messaging'
const MAX_TOKENS = 1_000
const MAX_LIFETIME_SECONDS = 3_600
const SKEW_SECONDS = 300

interface AccessTokensOptions {
  clock: Clock
  clientEmail: string
  publicKey: KeyObject
  /** The addresses of the token endpoint; the assertion's audience must be one of them. */
  audiences: readonly string[]
  tokenSeconds: () => number
}

/** Exchanges a service account's assertion for an access token after checking it, and knows which tokens are valid. */
export class AccessTokens {
  readonly #options: AccessTokensOptions
  readonly #expiryByToken = new BoundedMap<string, number>(MAX_TOKENS)

  constructor(options: AccessTokensOptions) {
    this.#options = options
  }

  exchange(form: string): HttpResponse {
    const fields = new URLSearchParams(form)
    if (fields.get('grant_type') !== GRANT) return refusal('unsupported_grant_type', 'Invalid grant_type')
    const fault = this.#faultOf(fields.get('assertion') ?? '')
    if (fault !== null) return refusal('invalid_grant', fault)
    const token = `ya29.${Buffer.from(systemRandom.bytes(48)).toString('base64url')}`
    const seconds = this.#options.tokenSeconds()
    this.#expiryByToken.set(token, this.#options.clock.now() + seconds * 1000)
    return json(200, { access_token: token, expires_in: seconds, token_type: 'Bearer' })
  }

  /** Whether the header carries a valid token. */
  admits(authorization: string | undefined): boolean {
    const token = /^Bearer (\S+)$/.exec(authorization ?? '')?.[1] ?? ''
    return (this.#expiryByToken.get(token) ?? 0) > this.#options.clock.now()
  }

  revokeAll(): void {
    this.#expiryByToken.clear()
  }

  #faultOf(assertion: string): string | null {
    const { clock, clientEmail, publicKey, audiences } = this.#options
    const [header = '', payload = '', signature = '', ...rest] = assertion.split('.')
    const { alg } = decode(header)
    if (rest.length > 0 || alg !== 'RS256') return 'Invalid JWT: it must be a JWS with RS256.'
    const { iss, scope, aud, iat, exp } = decode(payload)
    if (iss !== clientEmail) return 'Invalid grant: account not found'
    const isSigned = verify(
      'sha256',
      Buffer.from(`${header}.${payload}`),
      publicKey,
      Buffer.from(signature, 'base64url'),
    )
    if (!isSigned) return 'Invalid JWT Signature.'
    if (typeof aud !== 'string' || !audiences.includes(aud)) return 'Invalid JWT: the audience is not this endpoint.'
    if (scope !== SCOPE) return 'Invalid OAuth scope or ID token audience provided.'
    const nowSeconds = clock.now() / 1000
    if (typeof iat !== 'number' || typeof exp !== 'number' || exp - iat > MAX_LIFETIME_SECONDS) {
      return 'Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe.'
    }
    if (iat > nowSeconds + SKEW_SECONDS || exp <= nowSeconds) {
      return 'Invalid JWT: iat and exp must be in a reasonable timeframe.'
    }
    return null
  }
}

function refusal(error: string, description: string): HttpResponse {
  return json(400, { error, error_description: description })
}

function decode(part: string): JsonObject {
  try {
    const value: unknown = JSON.parse(Buffer.from(part, 'base64url').toString('utf8'))
    return isJsonObject(value) ? value : {}
  } catch {
    return {}
  }
}
