import { createHash, randomBytes } from 'node:crypto'
import { BoundedMap } from '../../core/bounded-map.ts'
import type { Clock } from '../../core/clock.ts'
import { isLoopbackHost } from '../../core/loopback.ts'
import type { SandboxUser } from './users.ts'

const CODE_LIFETIME_MS = 60_000
const MAX_REMEMBERED = 1_000
/** RFC 7636: 43 to 128 unreserved characters; the challenge is a SHA-256 hash in base64url. */
const CHALLENGE = /^[A-Za-z0-9_-]{43}$/
const VERIFIER = /^[A-Za-z0-9._~-]{43,128}$/

interface AuthorizationRequest {
  clientId: string
  redirectUri: string
  state: string | null
  challenge: string
  /** Signs in this user without showing the page. */
  loginHint: string | null
  /** `none` answers `login_required` instead of asking. */
  prompt: string | null
}

export interface TokenRequestFault {
  error: 'invalid_request' | 'invalid_grant' | 'invalid_scope' | 'unsupported_grant_type'
  error_description: string
}

interface Grant {
  clientId: string
  user: SandboxUser
}

interface Code extends Grant {
  redirectUri: string
  challenge: string
  expiresAtMs: number
}

/** The authorization code grant with PKCE, refresh tokens and sign-in sessions, as a Cognito user pool offers them. */
export class Authorization {
  readonly #clock: Clock
  readonly #users: readonly SandboxUser[]
  readonly #codes = new BoundedMap<string, Code>(MAX_REMEMBERED)
  readonly #refreshTokens = new BoundedMap<string, Grant>(MAX_REMEMBERED)
  readonly #sessions = new BoundedMap<string, SandboxUser>(MAX_REMEMBERED)

  constructor(clock: Clock, users: readonly SandboxUser[]) {
    this.#clock = clock
    this.#users = users
  }

  findUser(username: string | null): SandboxUser | undefined {
    return this.#users.find((user) => user.username === username)
  }

  /** The value of a new session cookie. */
  openSession(user: SandboxUser): string {
    const id = newSecret()
    this.#sessions.set(id, user)
    return id
  }

  userOfSession(id: string | null): SandboxUser | undefined {
    return id === null ? undefined : this.#sessions.get(id)
  }

  endSession(id: string | null): void {
    if (id !== null) this.#sessions.delete(id)
  }

  /** The redirect URL of the browser, with a code that can be used once. */
  grantCode({ clientId, redirectUri, challenge, state }: AuthorizationRequest, user: SandboxUser): string {
    const code = newSecret()
    const expiresAtMs = this.#clock.now() + CODE_LIFETIME_MS
    this.#codes.set(code, { clientId, redirectUri, challenge, user, expiresAtMs })
    return withQuery(redirectUri, { code, state })
  }

  redeemCode(form: URLSearchParams): (Grant & { refreshToken: string }) | TokenRequestFault {
    const code = form.get('code') ?? ''
    const grant = this.#codes.get(code)
    this.#codes.delete(code)
    if (!grant || grant.expiresAtMs <= this.#clock.now()) return refused('code is unknown, expired or already used')
    if (grant.clientId !== form.get('client_id')) return refused('client_id is not that of the authorization request')
    if (grant.redirectUri !== form.get('redirect_uri')) return refused('redirect_uri is not that of the request')
    const verifier = form.get('code_verifier') ?? ''
    if (!VERIFIER.test(verifier) || challengeOf(verifier) !== grant.challenge) return refused('code_verifier is wrong')
    const refreshToken = newSecret()
    this.#refreshTokens.set(refreshToken, { clientId: grant.clientId, user: grant.user })
    return { clientId: grant.clientId, user: grant.user, refreshToken }
  }

  refresh(form: URLSearchParams): Grant | TokenRequestFault {
    const grant = this.#refreshTokens.get(form.get('refresh_token') ?? '')
    return grant && grant.clientId === form.get('client_id') ? grant : refused('refresh_token is unknown')
  }
}

/** Reads an authorization request. If it is invalid, `fault` describes the problem. */
export function readAuthorizationRequest(query: URLSearchParams): AuthorizationRequest | { fault: string } {
  const clientId = query.get('client_id')
  const redirectUri = query.get('redirect_uri')
  const challenge = query.get('code_challenge') ?? ''
  if (query.get('response_type') !== 'code') return { fault: 'response_type must be code' }
  if (!clientId) return { fault: 'client_id is missing' }
  if (!redirectUri || !isLoopbackUrl(redirectUri)) return { fault: 'redirect_uri must be an address of this machine' }
  if (query.get('code_challenge_method') !== 'S256') return { fault: 'code_challenge_method must be S256' }
  if (!CHALLENGE.test(challenge)) return { fault: 'code_challenge must be a SHA-256 hash in base64url' }
  return {
    clientId,
    redirectUri,
    challenge,
    state: query.get('state'),
    loginHint: query.get('login_hint'),
    prompt: query.get('prompt'),
  }
}

export function isLoopbackUrl(text: string): boolean {
  const { protocol = '', hostname = '' } = URL.parse(text) ?? {}
  return /^https?:$/.test(protocol) && isLoopbackHost(hostname)
}

export function withQuery(url: string, parameters: Record<string, string | null>): string {
  const target = new URL(url)
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null) target.searchParams.set(name, value)
  }
  return target.href
}

function challengeOf(verifier: string): string {
  return createHash('sha256').update(verifier).digest('base64url')
}

function newSecret(): string {
  return randomBytes(24).toString('base64url')
}

function refused(description: string): TokenRequestFault {
  return { error: 'invalid_grant', error_description: description }
}
