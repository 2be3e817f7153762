import type { IncomingMessage } from 'node:http'
import type { HttpResponse } from '../http-response.ts'
import { preparePage } from '../page.ts'
import { type Authorization, isLoopbackUrl, readAuthorizationRequest, withQuery } from './authorization.ts'
import type { SandboxUser } from './users.ts'

const SESSION_COOKIE = 'sandbox_session'
const renderSignInPage = preparePage({ file: 'identity-provider/sign-in.html' })

/** Answers an authorization request: returns to the client with a code, or shows the page on which a user is chosen. */
export function authorize(
  authorization: Authorization,
  users: readonly SandboxUser[],
  request: IncomingMessage,
): HttpResponse {
  const url = new URL(request.url ?? '/', 'http://localhost')
  const wanted = readAuthorizationRequest(url.searchParams)
  if ('fault' in wanted) return refuse(wanted.fault)
  const hinted = authorization.findUser(wanted.loginHint)
  const signedIn = wanted.prompt === 'login' ? undefined : authorization.userOfSession(sessionOf(request))
  const user = hinted ?? signedIn
  if (user) {
    const cookie = hinted ? { 'set-cookie': cookieOf(authorization.openSession(user)) } : {}
    return redirect(authorization.grantCode(wanted, user), cookie)
  }
  if (wanted.prompt === 'none') {
    return redirect(withQuery(wanted.redirectUri, { error: 'login_required', state: wanted.state }))
  }
  const hrefOf = ({ username }: SandboxUser) => `?${withHint(url.searchParams, username)}`
  return renderSignInPage({ users: users.map((one) => ({ name: one.name, scopes: one.scopes, href: hrefOf(one) })) })
}

/** Ends the session and returns to `post_logout_redirect_uri`, as OpenID Connect has it, or to Cognito's `logout_uri`. */
export function signOut(authorization: Authorization, request: IncomingMessage): HttpResponse {
  const query = new URL(request.url ?? '/', 'http://localhost').searchParams
  const target = query.get('post_logout_redirect_uri') ?? query.get('logout_uri') ?? ''
  if (!isLoopbackUrl(target)) return refuse('post_logout_redirect_uri or logout_uri must be an address of this machine')
  authorization.endSession(sessionOf(request))
  return redirect(target, { 'set-cookie': `${cookieOf('')}; Max-Age=0` })
}

function withHint(query: URLSearchParams, username: string): string {
  const hinted = new URLSearchParams(query)
  hinted.set('login_hint', username)
  hinted.delete('prompt')
  return hinted.toString()
}

function sessionOf({ headers }: IncomingMessage): string | null {
  return /(?:^|;\s*)sandbox_session=([\w-]+)/.exec(headers.cookie ?? '')?.[1] ?? null
}

function cookieOf(value: string): string {
  return `${SESSION_COOKIE}=${value}; Path=/; HttpOnly; SameSite=Lax`
}

function redirect(location: string, headers: Record<string, string> = {}): HttpResponse {
  return { status: 302, headers: { location, 'cache-control': 'no-store', ...headers }, body: '' }
}

function refuse(fault: string): HttpResponse {
  const body = JSON.stringify({ error: 'invalid_request', error_description: fault })
  return { status: 400, headers: { 'cache-control': 'no-store' }, body }
}
