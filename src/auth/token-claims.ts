import { isStorableText } from '../core/text.ts'
import { COMMAND_LINE, type UserPrincipal } from './principal.ts'
import type { ScopesMap } from './scopes.ts'
import { TokenFault } from './token-fault.ts'
import type { Claims } from './token-format.ts'

const MAX_SUB_LENGTH = 255
/**
 * No address is longer: RFC 5321 allows 64 characters before the @ and 255 after it. PostgreSQL indexes the address together
 * with the `sub`, in at most about 2,700 bytes; both fit, at three bytes a character.
 */
const MAX_EMAIL_LENGTH = 320
/** Principals are stored under their bare ids, so no user may have the id of a service account or of the command line. */
const SERVICE_ACCOUNT_ID = /^svc_[0-9a-z]{26}$/i
/** The last time a Date can hold. A later `exp` is reduced to it, so that date arithmetic cannot fail. */
const MAX_EPOCH_MS = 8.64e15

/** The attribute of a Cognito user pool. */
export const DEFAULT_SCOPES_CLAIM = 'custom:scopes'

export interface ClaimRules {
  issuer: string
  clockToleranceSeconds: number
  /** The claim `aud` must name one of these. Absent: it is not checked, because access tokens of Cognito have none. */
  audiences?: readonly string[] | undefined
  /** Absent: `custom:scopes`. */
  scopesClaim?: string | undefined
  /** Replaces the provider's names of scopes by ours. */
  scopesMap?: ScopesMap | undefined
  /** Absent or empty: any client. */
  clientIds?: readonly string[] | undefined
  /** Absent: any use. */
  tokenUse?: string | undefined
}

/** Reads the caller from the claims, or throws a `TokenFault`. */
export function checkClaims(claims: Claims, rules: ClaimRules, nowMs: number): UserPrincipal {
  const { iss, sub, exp, nbf, iat, client_id: clientId, token_use: tokenUse } = claims
  if (iss !== rules.issuer) throw new TokenFault('issuer', 'The token is from another issuer')
  if (!isNumericDate(exp)) throw new TokenFault('claims', 'The claim exp is missing or not a number')
  if (nbf !== undefined && !isNumericDate(nbf)) throw new TokenFault('claims', 'The claim nbf is not a number')
  if (iat !== undefined && !isNumericDate(iat)) throw new TokenFault('claims', 'The claim iat is not a number')
  if (typeof sub !== 'string' || sub === '' || sub.length > MAX_SUB_LENGTH || !isStorableText(sub)) {
    throw new TokenFault('claims', 'The claim sub is missing or not acceptable')
  }
  if (SERVICE_ACCOUNT_ID.test(sub) || sub === COMMAND_LINE) {
    throw new TokenFault('claims', 'The claim sub is the id of a service account or of the command line')
  }
  const email = readEmail(claims.email)
  const scopes = readScopes(claims, rules)
  if (rules.audiences && ![claims.aud].flat().some((one) => rules.audiences?.includes(one as string))) {
    throw new TokenFault('audience', 'The token is for another audience')
  }
  if (rules.clientIds?.length && !(typeof clientId === 'string' && rules.clientIds.includes(clientId))) {
    throw new TokenFault('client', 'The client is not on the list')
  }
  if (rules.tokenUse !== undefined && tokenUse !== rules.tokenUse) {
    throw new TokenFault('token_use', 'The token is for another use')
  }
  const expiresAtMs = Math.min((exp + rules.clockToleranceSeconds) * 1000, MAX_EPOCH_MS)
  if (nowMs >= expiresAtMs) throw new TokenFault('expired', 'The token has expired')
  if (nbf !== undefined && nowMs < (nbf - rules.clockToleranceSeconds) * 1000) {
    throw new TokenFault('not_yet_valid', 'The token is not valid yet')
  }
  // Frozen, because requests share the cached principal.
  return Object.freeze({ kind: 'user', sub, email, scopes: Object.freeze(scopes), expiresAtMs })
}

function isNumericDate(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value)
}

/**
 * The email is stored in the profile, so text that a database cannot store is refused. A text that is too long to be an
 * address counts as no email: the email decides nothing, and the user should not lose access because of it.
 */
function readEmail(value: unknown): string | null {
  if (value === undefined || value === null) return null
  if (typeof value !== 'string' || !isStorableText(value)) {
    throw new TokenFault('claims', 'The claim email is not acceptable')
  }
  return value.length > MAX_EMAIL_LENGTH ? null : value
}

/**
 * One text, split at spaces, or a list of names. A list in `custom:scopes` is refused: it comes from a trigger of the
 * identity provider, not from the user pool's attribute.
 */
function readScopes(claims: Claims, { scopesClaim = DEFAULT_SCOPES_CLAIM, scopesMap }: ClaimRules): string[] {
  const value = claims[scopesClaim]
  if (value === undefined) return []
  const names = typeof value === 'string' ? value.split(' ') : scopesClaim === DEFAULT_SCOPES_CLAIM ? null : value
  if (!Array.isArray(names) || !names.every((name) => typeof name === 'string')) {
    throw new TokenFault('claims', `The claim ${scopesClaim} holds no scopes`)
  }
  return names.filter((name) => name !== '').flatMap<string>((name) => scopesMap?.get(name) ?? [name])
}
