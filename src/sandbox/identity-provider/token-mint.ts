import { generateKeyPair, type KeyObject, randomUUID, sign } from 'node:crypto'
import { promisify } from 'node:util'
import type { Clock } from '../../core/clock.ts'
import { systemRandom } from '../../core/random.ts'
import type { SandboxUser } from './users.ts'

const MAX_PRIVATE_KEYS = 50
const generateRsa = promisify(generateKeyPair)

export type Jwk = Record<string, unknown>

/** Every field is optional. An empty request gives the first seeded user a token for an hour. */
export interface MintRequest {
  /** The user name of a seeded user. */
  user?: string
  /** Without `user`: a user with no email and no scopes, unless they are given. */
  sub?: string
  /** `null` leaves the claim out. */
  email?: string | null
  /** An empty list leaves `custom:scopes` out, as Cognito does for a user without the attribute. */
  scopes?: readonly string[]
  clientId?: string
  expiresInSeconds?: number
  /** Merged into the claims; `undefined` removes a claim. */
  claims?: Record<string, unknown>
  /** Merged into the header; `undefined` removes a parameter. */
  header?: Record<string, unknown>
  /** Written into the header. The key with this id signs the token; if there is none, the current key signs it. */
  kid?: string
  /** Signs instead of the mint's own keys. */
  key?: KeyObject
}

export interface SigningKey {
  kid: string
  publicKey: KeyObject
  privateKey: KeyObject
}

export type MakeKey = () => Promise<{ publicKey: KeyObject; privateKey: KeyObject }>

interface TokenMintOptions {
  issuer: string
  clock: Clock
  users: readonly SandboxUser[]
  /** Default: a new RSA key each time, which is slow. */
  makeKey?: MakeKey | undefined
}

/** Mints tokens that look like the access tokens of a Cognito pool whose pre-token-generation trigger adds scopes and email. */
export class TokenMint {
  readonly #options: TokenMintOptions
  readonly #makeKey: MakeKey
  readonly #privateKeys = new Map<string, KeyObject>()
  #published: Jwk[] = []
  #kid = ''

  constructor(options: TokenMintOptions) {
    this.#options = options
    this.#makeKey = options.makeKey ?? (() => generateRsa('rsa', { modulusLength: 2048 }))
  }

  get kid(): string {
    return this.#kid
  }

  get jwks(): { keys: Jwk[] } {
    return { keys: this.#published }
  }

  /** Signs with a new key from now on. The old key stays published unless `keepOld` is false. */
  async rotate({ keepOld = true } = {}): Promise<string> {
    const { publicKey, privateKey } = await this.#makeKey()
    // Key ids of a real pool are base64 with padding. Careless clients fail on `+`, `/` and `=`.
    const kid = Buffer.from(systemRandom.bytes(32)).toString('base64')
    if (!keepOld) this.#published = []
    this.useKey({ kid, publicKey, privateKey })
    return kid
  }

  useKey({ kid, publicKey, privateKey }: SigningKey): void {
    this.#privateKeys.set(kid, privateKey)
    for (const oldest of this.#privateKeys.keys()) {
      if (this.#privateKeys.size <= MAX_PRIVATE_KEYS) break
      this.#privateKeys.delete(oldest)
    }
    const { kty, n, e } = publicKey.export({ format: 'jwk' })
    this.#published = [...this.#published, { alg: 'RS256', e, kid, kty, n, use: 'sig' }]
    this.#kid = kid
  }

  publish(jwk: Jwk): void {
    this.#published = [...this.#published, jwk]
  }

  mint(request: MintRequest = {}): string {
    const kid = request.kid ?? this.#kid
    const header = { kid, alg: 'RS256', ...request.header }
    const claims = { ...this.#claims(request), ...request.claims }
    const input = `${encode(header)}.${encode(claims)}`
    const key = request.key ?? this.#privateKeys.get(kid) ?? this.#privateKeys.get(this.#kid)
    if (!key) throw new Error('The mint has no key yet: rotate() creates the first one')
    return `${input}.${sign('sha256', Buffer.from(input), key).toString('base64url')}`
  }

  #claims(request: MintRequest): Record<string, unknown> {
    const user = this.#userOf(request)
    const sub = request.sub ?? user?.sub
    const email = request.email === undefined ? user?.email : request.email
    const scopes = request.scopes ?? user?.scopes ?? []
    const iat = Math.floor(this.#options.clock.now() / 1000)
    return {
      sub,
      iss: this.#options.issuer,
      version: 2,
      client_id: request.clientId ?? 'local_client',
      origin_jti: randomUUID(),
      event_id: randomUUID(),
      token_use: 'access',
      scope: 'aws.cognito.signin.user.admin',
      auth_time: iat,
      exp: iat + (request.expiresInSeconds ?? 3600),
      iat,
      jti: randomUUID(),
      username: user?.username ?? sub,
      ...(email == null ? {} : { email }),
      ...(scopes.length === 0 ? {} : { 'custom:scopes': scopes.join(' ') }),
    }
  }

  #userOf({ user, sub }: MintRequest): SandboxUser | undefined {
    if (user === undefined) return sub === undefined ? this.#options.users[0] : undefined
    const found = this.#options.users.find(({ username }) => username === user)
    if (!found) throw new Error(`No such sandbox user: ${user}`)
    return found
  }
}

function encode(value: unknown): string {
  return Buffer.from(JSON.stringify(value)).toString('base64url')
}
