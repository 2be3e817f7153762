import type { TokenFaultReason } from '../../auth/token-fault.ts'
import { ApiError } from '../../core/errors.ts'

/** What the gate decides about one request. The metrics count the outcome; the client of a refused request gets the error. */
export type GateDecision = GateAdmission | GateRefusal

export interface GateAdmission {
  /** `awaits_body`: only the signature over its body can prove this callback, so the second half of the gate decides. */
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

/** Few fixed words, safe as a metric label. `header` also stands for two `Authorization` headers. */
export type CredentialFault = TokenFaultReason | 'api_key' | 'callback'

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

export function tierSpent(): GateRefusal {
  return { outcome: 'spent', error: new ApiError('rate_limit_exceeded', 'Too many requests') }
}

/** RFC 6750: a request without a credential gets a challenge without an error. */
function invalidCredential(message: string): ApiError {
  return unauthorized(message, `Bearer error="invalid_token", error_description="${message}"`)
}

function unauthorized(message: string, challenge: string): ApiError {
  return new ApiError('unauthorized', message, { headers: { 'www-authenticate': challenge } })
}
