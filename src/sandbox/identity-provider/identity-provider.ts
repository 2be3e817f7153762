import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { type Clock, systemClock } from '../../core/clock.ts'
import type { HttpResponse } from '../http-response.ts'
import { authorityOf, isFromOtherSite, listenOnLoopback } from '../loopback.ts'
import { Authorization } from './authorization.ts'
import { renderIdentityPage } from './page.ts'
import { authorize, signOut } from './sign-in.ts'
import { type Jwk, type MakeKey, type MintRequest, type SigningKey, TokenMint } from './token-mint.ts'
import { readTokenRequest } from './token-request.ts'
import { SANDBOX_USERS, type SandboxUser } from './users.ts'

const MAX_FORM_BYTES = 16 * 1024
const POOL = '/local_pool'

interface IdentityProviderOptions {
  host?: string
  /** Default 0: any free port. */
  port?: number
  /** Take any other port when another program has this one. Default: fail. */
  anyIfTaken?: boolean
  /** The key that signs first. Default: a new one. */
  signingKey?: SigningKey
  clock?: Clock
  users?: readonly SandboxUser[]
  /** The API that the example request on the page calls. */
  apiUrl?: string
  /** The page links to it. */
  consoleUrl?: string
  /** Makes the signing keys; tests pass keys they already have. */
  makeKey?: MakeKey
}

type Handler = (request: IncomingMessage) => Promise<HttpResponse> | HttpResponse
type Fault = { kind: 'down'; answer: HttpResponse } | { kind: 'hang'; over: PromiseWithResolvers<void> } | null

/** An identity provider on loopback for development and tests: real keys, the real protocol, and faults on request. */
export async function startIdentityProvider(options: IdentityProviderOptions = {}): Promise<IdentityProvider> {
  const { host = '127.0.0.1', port = 0, anyIfTaken } = options
  const server = createServer({ requestTimeout: 10_000 })
  await listenOnLoopback(server, { host, port, anyIfTaken })
  const provider = new IdentityProvider(server, host, options)
  if (options.signingKey) provider.useKey(options.signingKey)
  else await provider.rotate()
  return provider
}

export class IdentityProvider {
  /** The address of the page that issues tokens. */
  readonly url: string
  readonly issuer: string
  readonly jwksUrl: string
  readonly tokenUrl: string
  readonly users: readonly SandboxUser[]
  /** Requests for the key set, answered or not. */
  hits = 0
  readonly #server: Server
  readonly #mint: TokenMint
  readonly #authorization: Authorization
  readonly #apiUrl: string
  readonly #consoleUrl: string | null
  readonly #routes: Record<string, Record<string, Handler>>
  #fault: Fault = null
  #brokenBody: string | null = null

  constructor(server: Server, host: string, options: IdentityProviderOptions) {
    this.url = `http://${authorityOf(server, host)}`
    this.issuer = `${this.url}${POOL}`
    this.jwksUrl = `${this.issuer}/.well-known/jwks.json`
    this.tokenUrl = `${this.issuer}/oauth2/token`
    this.users = options.users ?? SANDBOX_USERS
    this.#apiUrl = options.apiUrl ?? 'http://127.0.0.1:8080'
    this.#consoleUrl = options.consoleUrl ?? null
    const { clock = systemClock, makeKey } = options
    this.#mint = new TokenMint({ issuer: this.issuer, clock, users: this.users, makeKey })
    this.#authorization = new Authorization(clock, this.users)
    this.#server = server
    this.#routes = {
      '/': { GET: () => this.#page() },
      [`${POOL}/.well-known/jwks.json`]: { GET: () => this.#keySet() },
      [`${POOL}/.well-known/openid-configuration`]: { GET: () => this.#discovery() },
      [`${POOL}/oauth2/authorize`]: { GET: (request) => authorize(this.#authorization, this.users, request) },
      [`${POOL}/logout`]: { GET: (request) => signOut(this.#authorization, request) },
      [`${POOL}/oauth2/token`]: { POST: (request) => this.#token(request), OPTIONS: preflight },
    }
    server.on('request', (request, response) => void this.#serve(request, response))
  }

  /** The key that signs new tokens. */
  get kid(): string {
    return this.#mint.kid
  }

  get jwks(): { keys: Jwk[] } {
    return this.#mint.jwks
  }

  mint(request: MintRequest = {}): string {
    return this.#mint.mint(request)
  }

  /** Resolves to the new key's id. */
  rotate(options: { keepOld?: boolean } = {}): Promise<string> {
    return this.#mint.rotate(options)
  }

  /** Signs with this key from now on. */
  useKey(key: SigningKey): void {
    this.#mint.useKey(key)
  }

  /** Publishes any key, usable or not. */
  addJwk(jwk: Jwk): void {
    this.#mint.publish(jwk)
  }

  /** Fails all requests with this status and these headers. */
  goDown({ status = 503, headers = {} }: { status?: number; headers?: Record<string, string> } = {}): void {
    this.recover()
    this.#fault = { kind: 'down', answer: { status, headers, body: '{"message":"The sandbox is set to be down"}' } }
  }

  /** Accepts requests but does not answer them until `recover`. */
  hang(): void {
    this.recover()
    this.#fault = { kind: 'hang', over: Promise.withResolvers() }
  }

  /** Answers 200 with this body instead of the key set. */
  breakBody(body = '{"keys":[{"kty":"RSA"'): void {
    this.#brokenBody = body
  }

  recover(): void {
    if (this.#fault?.kind === 'hang') this.#fault.over.resolve()
    this.#fault = null
    this.#brokenBody = null
  }

  async close(): Promise<void> {
    this.recover()
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()))
    this.#server.closeAllConnections()
    await closed
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let answer: HttpResponse
    try {
      answer = await this.#answer(request)
    } catch {
      answer = json(400, { error: 'invalid_request', error_description: 'The request could not be read' })
    }
    const body = Buffer.from(answer.body)
    const { origin } = request.headers
    const headers = {
      'content-type': 'application/json',
      'x-content-type-options': 'nosniff',
      vary: 'origin',
      ...(origin === undefined || isFromOtherSite(request.headers) ? {} : { 'access-control-allow-origin': origin }),
      ...answer.headers,
    }
    response.writeHead(answer.status, { ...headers, 'content-length': body.byteLength }).end(body)
  }

  async #answer(request: IncomingMessage): Promise<HttpResponse> {
    // The tokens give access to the service. A page of another site in the developer's browser must not fetch one.
    if (isFromOtherSite(request.headers)) {
      return json(403, { error: 'access_denied', error_description: 'The sandbox serves this machine only' })
    }
    const path = new URL(request.url ?? '/', this.url).pathname
    if (path === `${POOL}/.well-known/jwks.json`) this.hits += 1
    if (this.#fault?.kind === 'hang') await this.#fault.over.promise
    if (this.#fault?.kind === 'down') return this.#fault.answer
    const route = Object.hasOwn(this.#routes, path) ? this.#routes[path] : undefined
    if (!route) return json(404, { error: 'not_found', error_description: 'No such path' })
    const handler = route[request.method === 'HEAD' ? 'GET' : (request.method ?? '')]
    if (handler) return handler(request)
    return {
      ...json(405, { error: 'invalid_request', error_description: 'Wrong method' }),
      headers: { allow: Object.keys(route).join(', ') },
    }
  }

  #keySet(): HttpResponse {
    const headers = { 'cache-control': 'public, max-age=600' }
    return { status: 200, headers, body: this.#brokenBody ?? JSON.stringify(this.jwks) }
  }

  #discovery(): HttpResponse {
    return json(200, {
      issuer: this.issuer,
      jwks_uri: this.jwksUrl,
      authorization_endpoint: `${this.issuer}/oauth2/authorize`,
      token_endpoint: this.tokenUrl,
      end_session_endpoint: `${this.issuer}/logout`,
      grant_types_supported: ['authorization_code', 'refresh_token', 'client_credentials', 'password'],
      code_challenge_methods_supported: ['S256'],
      id_token_signing_alg_values_supported: ['RS256'],
      response_types_supported: ['code'],
      subject_types_supported: ['public'],
    })
  }

  async #token(request: IncomingMessage): Promise<HttpResponse> {
    if (!/^application\/x-www-form-urlencoded\b/i.test(request.headers['content-type'] ?? '')) {
      return json(400, { error: 'invalid_request', error_description: 'The body must be a form' })
    }
    const body = await readBody(request)
    if (body === null) return json(400, { error: 'invalid_request', error_description: 'The body is over 16 KB' })
    const wanted = readTokenRequest(body, this.users, this.#authorization)
    if ('error' in wanted) return json(400, wanted)
    const refresh = wanted.refreshToken === undefined ? {} : { refresh_token: wanted.refreshToken }
    return json(200, {
      ...refresh,
      access_token: this.mint(wanted),
      token_type: 'Bearer',
      expires_in: wanted.expiresInSeconds,
    })
  }

  #page(): HttpResponse {
    return renderIdentityPage({
      issuer: this.issuer,
      tokenUrl: this.tokenUrl,
      apiUrl: this.#apiUrl,
      consoleUrl: this.#consoleUrl,
      users: this.users,
    })
  }
}

function preflight(): HttpResponse {
  const headers = {
    'access-control-allow-methods': 'POST',
    'access-control-allow-headers': 'authorization, content-type',
  }
  return { status: 204, headers, body: '' }
}

function json(status: number, value: object): HttpResponse {
  return { status, headers: { 'cache-control': 'no-store' }, body: JSON.stringify(value) }
}

/** Reads the whole body but keeps at most the limit, so that the client gets a response and not a connection reset. */
async function readBody(request: IncomingMessage): Promise<string | null> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of request) {
    bytes += chunk.byteLength
    if (bytes <= MAX_FORM_BYTES) chunks.push(chunk)
  }
  return bytes > MAX_FORM_BYTES ? null : Buffer.concat(chunks).toString('utf8')
}
