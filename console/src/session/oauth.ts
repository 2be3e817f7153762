import * as oauth from 'oauth4webapi'
import type { ConsoleSettings, SignInAddresses } from './settings.ts'

/** Tokens are kept in memory only. A reload signs in again; while the provider's session lasts, it asks no question. */
export interface Tokens {
  accessToken: string
  refreshToken: string | null
  /** Names the session to the provider at sign-out. Null if the provider issued none. */
  idToken: string | null
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
  const url = new URL(addressesOf(settings).server.authorization_endpoint)
  const parameters = {
    response_type: 'code',
    client_id: settings.clientId ?? '',
    redirect_uri: redirectUri(),
    scope: settings.scope,
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    ...(settings.audience === null ? {} : { audience: settings.audience }),
    ...(hint.user === undefined ? {} : { login_hint: hint.user }),
    ...(hint.asAnother ? { prompt: 'login' } : {}),
  }
  // The address may have a query of its own.
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value)
  location.assign(url)
}

/** Finishes the sign-in after the provider has redirected back. Null if this page load is not such a redirect. */
export async function finishSignIn(settings: ConsoleSettings): Promise<{ tokens: Tokens; returnTo: string } | null> {
  if (location.pathname !== '/console/signed-in') return null
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? 'null') as Pending | null
  sessionStorage.removeItem(PENDING)
  if (!pending) throw new Error('This sign-in was not started here. Start it again.')
  const { server } = addressesOf(settings)
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

export async function renew(settings: ConsoleSettings, tokens: Tokens & { refreshToken: string }): Promise<Tokens> {
  const { server } = addressesOf(settings)
  const client = clientOf(settings)
  const response = await oauth.refreshTokenGrantRequest(
    server,
    client,
    oauth.None(),
    tokens.refreshToken,
    options(server.token_endpoint),
  )
  return toTokens(await oauth.processRefreshTokenResponse(server, client, response), tokens)
}

/**
 * The page that ends the session at the provider, so that the next user of this browser is not signed in. Null if the
 * provider has none.
 */
export function signOutUrl(settings: ConsoleSettings, idToken: string | null): string | null {
  const { signOut } = addressesOf(settings)
  if (signOut === null) return null
  const url = new URL(signOut.url)
  url.searchParams.set('client_id', settings.clientId ?? '')
  url.searchParams.set(signOut.returnParameter, `${location.origin}/console`)
  const isStandard = signOut.returnParameter === 'post_logout_redirect_uri'
  if (isStandard && idToken !== null) url.searchParams.set('id_token_hint', idToken)
  return url.href
}

/** True if the provider answered that the session is over. False if the provider cannot be reached. */
export function isRefusal(error: unknown): boolean {
  return error instanceof oauth.ResponseBodyError
}

/** A renewal may leave out what has not changed. */
function toTokens(result: oauth.TokenEndpointResponse, before: Tokens | null): Tokens {
  const lifetimeMs = (result.expires_in ?? DEFAULT_LIFETIME_SECONDS) * 1_000
  return {
    accessToken: result.access_token,
    refreshToken: result.refresh_token ?? before?.refreshToken ?? null,
    idToken: result.id_token ?? before?.idToken ?? null,
    renewAtMs: Date.now() + lifetimeMs - Math.min(RENEW_BEFORE_MS, lifetimeMs / 2),
  }
}

/** The service names the addresses whenever there is a client, and without one the console does not get here. */
function addressesOf({ signIn }: ConsoleSettings): SignInAddresses {
  if (signIn === null) throw new Error('No sign-in is configured')
  return signIn
}

function clientOf({ clientId }: ConsoleSettings): oauth.Client {
  return { client_id: clientId ?? '' }
}

function redirectUri(): string {
  return `${location.origin}/console/signed-in`
}
