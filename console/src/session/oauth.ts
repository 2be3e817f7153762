import * as oauth from 'oauth4webapi'
import type { ConsoleSettings } from './settings.ts'

/** Tokens are kept in memory only. A reload signs in again; while the provider's session lasts, it asks no question. */
export interface Tokens {
  accessToken: string
  refreshToken: string | null
  /** From this time on, the token is renewed before its next use. */
  renewAtMs: number
}

interface Pending {
  verifier: string
  state: string
  returnTo: string
}

export interface SignInHint {
  returnTo: string
  user?: string
  /** Lets the operator choose a user, even if one is signed in at the provider. */
  asAnother?: boolean
}

const PENDING = 'console.sign-in'
const DEFAULT_LIFETIME_SECONDS = 300
const RENEW_BEFORE_MS = 60_000
/** An identity provider on loopback, as in `dev`, has no certificate. */
const options = (url: string) => ({
  [oauth.allowInsecureRequests]: url.startsWith('http://127.0.0.1') || url.startsWith('http://localhost'),
  signal: () => AbortSignal.timeout(10_000),
})

/** Sends the browser to the identity provider. Never resolves, because the browser leaves the page. */
export async function beginSignIn(settings: ConsoleSettings, hint: SignInHint): Promise<void> {
  const verifier = oauth.generateRandomCodeVerifier()
  const state = oauth.generateRandomState()
  const pending: Pending = { verifier, state, returnTo: hint.returnTo }
  sessionStorage.setItem(PENDING, JSON.stringify(pending))
  const url = new URL(`${baseOf(settings)}/oauth2/authorize`)
  url.search = new URLSearchParams({
    response_type: 'code',
    client_id: settings.clientId ?? '',
    redirect_uri: redirectUri(),
    scope: 'openid',
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    ...(hint.user === undefined ? {} : { login_hint: hint.user }),
    ...(hint.asAnother ? { prompt: 'login' } : {}),
  }).toString()
  location.assign(url)
}

/** Finishes the sign-in after the provider has redirected back. Null if this page load is not such a redirect. */
export async function finishSignIn(settings: ConsoleSettings): Promise<{ tokens: Tokens; returnTo: string } | null> {
  if (location.pathname !== '/console/signed-in') return null
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? 'null') as Pending | null
  sessionStorage.removeItem(PENDING)
  if (!pending) throw new Error('This sign-in was not started here. Start it again.')
  const server = serverOf(settings)
  const client = clientOf(settings)
  const parameters = oauth.validateAuthResponse(server, client, new URL(location.href), pending.state)
  const response = await oauth.authorizationCodeGrantRequest(
    server,
    client,
    oauth.None(),
    parameters,
    redirectUri(),
    pending.verifier,
    options(server.token_endpoint),
  )
  const result = await oauth.processAuthorizationCodeResponse(server, client, response)
  return { tokens: toTokens(result, null), returnTo: pending.returnTo }
}

export async function renew(settings: ConsoleSettings, refreshToken: string): Promise<Tokens> {
  const server = serverOf(settings)
  const client = clientOf(settings)
  const response = await oauth.refreshTokenGrantRequest(
    server,
    client,
    oauth.None(),
    refreshToken,
    options(server.token_endpoint),
  )
  return toTokens(await oauth.processRefreshTokenResponse(server, client, response), refreshToken)
}

/** Also ends the session at the provider, so that the next user of this browser is not signed in. */
export function signOutUrl(settings: ConsoleSettings): string {
  const url = new URL(`${baseOf(settings)}/logout`)
  url.search = new URLSearchParams({
    client_id: settings.clientId ?? '',
    logout_uri: `${location.origin}/console`,
  }).toString()
  return url.href
}

/** True if the provider answered that the session is over. False if the provider cannot be reached. */
export function isRefusal(error: unknown): boolean {
  return error instanceof oauth.ResponseBodyError
}

function toTokens(result: oauth.TokenEndpointResponse, refreshToken: string | null): Tokens {
  const lifetimeMs = (result.expires_in ?? DEFAULT_LIFETIME_SECONDS) * 1_000
  return {
    accessToken: result.access_token,
    refreshToken: result.refresh_token ?? refreshToken,
    renewAtMs: Date.now() + lifetimeMs - Math.min(RENEW_BEFORE_MS, lifetimeMs / 2),
  }
}

function baseOf({ authUrl, issuerUrl }: ConsoleSettings): string {
  return authUrl ?? issuerUrl
}

function serverOf(settings: ConsoleSettings) {
  return { issuer: settings.issuerUrl, token_endpoint: `${baseOf(settings)}/oauth2/token` }
}

function clientOf({ clientId }: ConsoleSettings): oauth.Client {
  return { client_id: clientId ?? '' }
}

function redirectUri(): string {
  return `${location.origin}/console/signed-in`
}
