import type { Authorization, TokenRequestFault } from './authorization.ts'
import type { MintRequest } from './token-mint.ts'
import type { SandboxUser } from './users.ts'

const MAX_LIFETIME_SECONDS = 7 * 24 * 3600
const DEFAULT_LIFETIME_SECONDS = 3600
/** RFC 6749, section 3.3. */
const SCOPE = /^[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*$/

type TokenRequest = MintRequest & { expiresInSeconds: number; refreshToken?: string }

/** Reads the form of a token request. No password is needed: any client on this machine may act as any user. */
export function readTokenRequest(
  body: string,
  users: readonly SandboxUser[],
  authorization: Authorization,
): TokenRequest | TokenRequestFault {
  const form = new URLSearchParams(body)
  const names = [...form.keys()]
  const repeated = names.find((name, index) => names.indexOf(name) !== index)
  if (repeated !== undefined) return fault('invalid_request', `${repeated} is given twice`)

  const expiresInSeconds = Number(form.get('expires_in') ?? DEFAULT_LIFETIME_SECONDS)
  if (!Number.isInteger(expiresInSeconds) || expiresInSeconds < 1 || expiresInSeconds > MAX_LIFETIME_SECONDS) {
    return fault('invalid_request', `expires_in must be 1 to ${MAX_LIFETIME_SECONDS} seconds`)
  }
  const scope = form.get('scope')
  if (scope && !SCOPE.test(scope)) return fault('invalid_scope', 'scope must be scopes separated by single spaces')
  const clientId = form.get('client_id') || 'local_client'
  const given = {
    clientId,
    expiresInSeconds,
    ...(scope === null ? {} : { scopes: scope === '' ? [] : scope.split(' ') }),
    ...(form.has('email') ? { email: form.get('email') || null } : {}),
  }

  const sub = form.get('sub')
  if (sub !== null && (sub === '' || sub.length > 255))
    return fault('invalid_request', 'sub must be 1 to 255 characters')
  switch (form.get('grant_type')) {
    case null:
      return fault('invalid_request', 'grant_type is missing')
    case 'client_credentials':
      return { ...given, sub: sub ?? clientId }
    case 'password': {
      const username = form.get('username')
      const user = users.find((one) => one.username === username)
      if (!user) return fault('invalid_grant', `username must be one of ${users.map((one) => one.username).join(', ')}`)
      return { ...given, user: user.username, ...(sub === null ? {} : { sub }) }
    }
    case 'authorization_code': {
      const grant = authorization.redeemCode(form)
      if ('error' in grant) return grant
      return { clientId, expiresInSeconds, user: grant.user.username, refreshToken: grant.refreshToken }
    }
    case 'refresh_token': {
      const grant = authorization.refresh(form)
      return 'error' in grant ? grant : { clientId, expiresInSeconds, user: grant.user.username }
    }
    default:
      return fault(
        'unsupported_grant_type',
        'grant_type must be authorization_code, refresh_token, client_credentials or password',
      )
  }
}

function fault(error: TokenRequestFault['error'], description: string): TokenRequestFault {
  return { error, error_description: description }
}
