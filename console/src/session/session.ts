import { type ApiClient, createClient } from '@project-api/client'
import { parseExact } from '../exact-json.ts'
import { beginSignIn, finishSignIn, isRefusal, renew, type SignInHint, signOutUrl, type Tokens } from './oauth.ts'
import { type ConsoleSettings, loadSettings } from './settings.ts'

export type SessionState =
  | { kind: 'loading' }
  | { kind: 'failed'; message: string }
  | { kind: 'signed_out'; settings: ConsoleSettings; message: string | null; refused?: string }
  | { kind: 'signed_in'; settings: ConsoleSettings; api: ApiClient; operator: Operator }

export interface Operator {
  name: string
  /** True with `admin:*`. False: the operator may only read; actions and keys are hidden. */
  mayAct: boolean
  /** True with `read:users`. False: people are hidden. */
  mayReadUsers: boolean
}

const STILL_OPEN = 'You are signed out here. The identity provider may still have an open session of yours.'
const SESSION_ENDED = 'Your session has ended. Sign in again to continue here.'
/** Set while signed in, so that a reload signs in again by itself. */
const WAS_SIGNED_IN = 'console.was-signed-in'

/** The session of the operator: signs in, renews the token before it expires, and signs out. */
export class Session {
  #state: SessionState = { kind: 'loading' }
  #tokens: Tokens | null = null
  #renewal: Promise<void> | null = null
  readonly #listeners = new Set<() => void>()

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  readonly state = (): SessionState => this.#state

  async start(): Promise<void> {
    try {
      const settings = await loadSettings()
      try {
        const finished = await finishSignIn(settings)
        if (finished) {
          history.replaceState(null, '', finished.returnTo)
          return await this.#enter(settings, finished.tokens)
        }
      } catch (error) {
        return this.#set({ kind: 'signed_out', settings, message: messageOf(error) })
      }
      const again = sessionStorage.getItem(WAS_SIGNED_IN) !== null && settings.clientId !== null
      if (again) return await beginSignIn(settings, { returnTo: currentPath() })
      this.#set({ kind: 'signed_out', settings, message: null })
    } catch (error) {
      this.#set({ kind: 'failed', message: messageOf(error) })
    }
  }

  signIn(settings: ConsoleSettings, hint: Omit<SignInHint, 'returnTo'> = {}): Promise<void> {
    return beginSignIn(settings, { ...hint, returnTo: currentPath() })
  }

  /** For services without a client id: an access token or a service key, kept in memory. */
  async useCredential(settings: ConsoleSettings, credential: string): Promise<void> {
    const options = credential.startsWith('pak_') ? { apiKey: credential } : { token: () => credential }
    const api = createClient({ url: location.origin, parse: parseExact, ...options })
    await this.#admit(settings, api, credential.startsWith('pak_') ? 'Service key' : nameIn(credential))
  }

  signOut(): void {
    const state = this.#state
    const idToken = this.#tokens?.idToken ?? null
    this.#tokens = null
    sessionStorage.removeItem(WAS_SIGNED_IN)
    if (state.kind !== 'signed_in' && state.kind !== 'signed_out') return
    const { settings } = state
    if (settings.clientId === null) return this.#set({ kind: 'signed_out', settings, message: null })
    const url = signOutUrl(settings, idToken)
    if (url === null) this.#set({ kind: 'signed_out', settings, message: STILL_OPEN })
    else location.assign(url)
  }

  /** The service or the provider no longer accepts the operator. The address stays, so a sign-in returns to this page. */
  end(): void {
    const state = this.#state
    this.#tokens = null
    if (state.kind === 'signed_in') {
      this.#set({ kind: 'signed_out', settings: state.settings, message: SESSION_ENDED })
    }
  }

  async #enter(settings: ConsoleSettings, tokens: Tokens): Promise<void> {
    this.#tokens = tokens
    const api = createClient({
      url: location.origin,
      parse: parseExact,
      token: ({ refresh }) => this.#accessToken(settings, refresh),
    })
    await this.#admit(settings, api, nameIn(tokens.accessToken))
    if (this.#state.kind === 'signed_in') sessionStorage.setItem(WAS_SIGNED_IN, 'yes')
  }

  /** The service decides what the operator may do; the console asks it instead of reading the token. */
  async #admit(settings: ConsoleSettings, api: ApiClient, name: string): Promise<void> {
    try {
      const mayAct = await isAllowed(api, '/v1/service-accounts')
      const mayReadUsers = mayAct || (await isAllowed(api, '/v1/users'))
      if (!mayAct && !(await isAllowed(api, '/v1/audit'))) {
        const message = `${name} is not an operator: the scope admin:* or read:operations is needed`
        return this.#set({ kind: 'signed_out', settings, message, refused: name })
      }
      this.#set({ kind: 'signed_in', settings, api, operator: { name, mayAct, mayReadUsers } })
    } catch (error) {
      this.#set({ kind: 'signed_out', settings, message: messageOf(error) })
    }
  }

  /** Renews the token before it expires, and when the service has refused it. */
  async #accessToken(settings: ConsoleSettings, isRefused: boolean): Promise<string> {
    const tokens = this.#tokens
    if (tokens?.refreshToken && (isRefused || Date.now() >= tokens.renewAtMs)) {
      this.#renewal ??= this.#renew(settings, { ...tokens, refreshToken: tokens.refreshToken })
      await this.#renewal
    }
    return this.#tokens?.accessToken ?? ''
  }

  async #renew(settings: ConsoleSettings, tokens: Tokens & { refreshToken: string }): Promise<void> {
    try {
      this.#tokens = await renew(settings, tokens)
    } catch (error) {
      // If the provider does not answer, the next request asks it again. Until then the old token may still work.
      if (isRefusal(error)) this.end()
    } finally {
      this.#renewal = null
    }
  }

  #set(state: SessionState): void {
    this.#state = state
    for (const listener of this.#listeners) listener()
  }
}

async function isAllowed(api: ApiClient, path: string): Promise<boolean> {
  try {
    await api.request('GET', path, { query: { limit: 1 } })
    return true
  } catch (error) {
    if (error instanceof Error && 'status' in error && error.status === 403) return false
    throw error
  }
}

/** The name of the user, only for display. */
function nameIn(token: string): string {
  try {
    const payload = token.split('.')[1] ?? ''
    const claims = JSON.parse(atob(payload.replaceAll('-', '+').replaceAll('_', '/'))) as Record<string, unknown>
    return String(claims.email ?? claims.username ?? claims.sub)
  } catch {
    return 'Signed in'
  }
}

function currentPath(): string {
  const { pathname, search } = location
  return pathname === '/console/signed-in' ? '/console' : pathname + search
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
