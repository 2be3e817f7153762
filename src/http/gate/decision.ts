import type { TokenFaultReason } from '../../auth/token-fault.ts'
import { ApiError, UnavailableError } from '../../core/errors.ts'

/** What the gate decides about one request. The metrics count the outcome; the client of a refused request gets the error. */
export type GateDecision = GateAdmission | GateRefusal

interface GateAdmission {
  /** `awaits_body`: this callback can only be authenticated by the signature over its body, so the body gate decides. */
  outcome: 'public' | 'ok' | 'awaits_body'
}

export type GateRefusal =
  | { outcome: 'missing' | 'spent' | 'forbidden'; error: ApiError }
  | { outcome: 'invalid'; reason: CredentialFault; error: ApiError }
  /** A dependency failed, so that the credential could be neither accepted nor refused. */
  | { outcome: 'unavailable'; error: Error }

export const PUBLIC: GateAdmission = { outcome: 'public' }
export const OK: GateAdmission = { outcome: 'ok' }
export const AWAITS_BODY: GateAdmission = { outcome: 'awaits_body' }

/** A short fixed list, safe as a metric label. Two `Authorization` headers count as `header`. */
type CredentialFault = TokenFaultReason | 'api_key' | 'callback'

export function isRefusal(value: object): value is GateRefusal {
  return 'error' in value
}

export function missingToken(): GateRefusal {
  return { outcome: 'missing', error: unauthorized('Missing bearer token', 'Bearer') }
}

export function invalidToken(reason: TokenFaultReason): GateRefusal {
  return { outcome: 'invalid', reason, error: invalidCredential('Invalid or expired token') }
}

export function invalidKey(): GateRefusal {
  return { outcome: 'invalid', reason: 'api_key', error: invalidCredential('Invalid or expired API key') }
}

export function invalidCallback(): GateRefusal {
  const error = unauthorized('Invalid or missing callback credential', 'Bearer')
  return { outcome: 'invalid', reason: 'callback', error }
}

/** Without `insufficient_scope`, because no scope would help a blocked user. */
export function accountBlocked(): GateRefusal {
  return { outcome: 'forbidden', error: new ApiError('forbidden', 'This account is blocked') }
}

export function blockedUsersUnknown(): GateRefusal {
  return { outcome: 'unavailable', error: new UnavailableError('The service is starting') }
}

export function tierSpent(): GateRefusal {
  return { outcome: 'spent', error: new ApiError('rate_limit_exceeded', 'Too many requests') }
}

/** RFC 6750: only a request with a credential gets an `error` in the challenge. */
function invalidCredential(message: string): ApiError {
  return unauthorized(message, `Bearer error="invalid_token", error_description="${message}"`)
}

function unauthorized(message: string, challenge: string): ApiError {
  return new ApiError('unauthorized', message, { headers: { 'www-authenticate': challenge } })
}
