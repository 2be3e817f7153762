import type { AuthorizationServer } from 'oauth4webapi'

/** Where operators sign in and out: see `findSignIn` in the service. */
export interface SignInAddresses {
  server: AuthorizationServer & { authorization_endpoint: string; token_endpoint: string }
  /** Null: the provider has no page that ends its session. */
  signOut: { url: string; returnParameter: string } | null
}

/** The settings that the service returns before sign-in: see `consolePages` in the service. */
export interface ConsoleSettings {
  issuerUrl: string
  clientId: string | null
  scope: string
  audience: string | null
  /** Null without a client id. */
  signIn: SignInAddresses | null
  dev: { user: string; links: Record<string, string> } | null
}

export async function loadSettings(): Promise<ConsoleSettings> {
  const response = await fetch('/console/settings.json', { signal: AbortSignal.timeout(10_000) })
  const answer = await response.json().catch(() => null)
  // The error envelope differs by variant.
  const message = answer?.error?.message ?? answer?.detail?.message ?? `The service answered ${response.status}`
  if (!response.ok) throw new Error(message)
  return answer as ConsoleSettings
}
