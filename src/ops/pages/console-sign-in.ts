import { isCognitoIssuer } from '../../auth/issuer/cognito.ts'
import type { Discovery, ProviderMetadata } from '../../auth/issuer/discovery.ts'

/** Where operators sign in and out. The names of `server` are those of the discovery document. */
export interface ConsoleSignIn {
  server: Omit<ProviderMetadata, 'jwks_uri' | 'end_session_endpoint'> & {
    issuer: string
    authorization_endpoint: string
    token_endpoint: string
  }
  /** Null: the provider has no page that ends its session. */
  signOut: { url: string; returnParameter: 'post_logout_redirect_uri' | 'logout_uri' } | null
}

interface SignInOptions {
  issuerUrl: string
  /** Where a user pool serves `/oauth2/authorize`, `/oauth2/token` and `/logout`. Null: the discovery document says it. */
  authUrl: string | null
  discovery: Pick<Discovery, 'get'>
}

/** Without a discovery document, the paths are those of a user pool. Rejects while the provider cannot be reached. */
export async function findSignIn({ issuerUrl, authUrl, discovery }: SignInOptions): Promise<ConsoleSignIn> {
  const { jwks_uri, end_session_endpoint: endSession, ...found } = authUrl === null ? await discovery.get() : {}
  const base = authUrl ?? issuerUrl.replace(/\/$/, '')
  const server = {
    issuer: issuerUrl,
    authorization_endpoint: `${base}/oauth2/authorize`,
    token_endpoint: `${base}/oauth2/token`,
    ...found,
  }
  // A user pool ends its session at `/logout`, with parameters of its own.
  if (isCognitoIssuer(issuerUrl) || found.authorization_endpoint === undefined) {
    const { href } = new URL('../logout', server.authorization_endpoint)
    return { server, signOut: { url: href, returnParameter: 'logout_uri' } }
  }
  return { server, signOut: endSession ? { url: endSession, returnParameter: 'post_logout_redirect_uri' } : null }
}
