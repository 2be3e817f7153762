import type { IncomingMessage } from 'node:http'
import type { FastifyRequest } from 'fastify'
import type { Principal, UserPrincipal } from '../../auth/principal.ts'
import type { AuthenticatedServiceKey, ServiceKeyAuthenticator } from '../../auth/service-key-authenticator.ts'
import type { TokenVerifier } from '../../auth/token-verifier.ts'
import { chain, type MaybePromise } from '../../core/async/maybe-promise.ts'
import { ApiError } from '../../core/errors.ts'
import type { TierName } from '../../limits/tiers.ts'
import { countHeader } from '../server/request-head.ts'

export interface Identity {
  principal: Principal
  tier: TierName
  /** What the request is counted under within its tier. */
  tierKey: string
}

export interface Authenticator {
  verifier: TokenVerifier
  serviceKeys: ServiceKeyAuthenticator
}

/**
 * Tells who is calling, or why not. A key alone speaks for its service account; beside a token the token names the
 * caller and the key sets the tier, and both must be valid. A refused credential is a returned error, not a thrown one.
 */
export function identify(request: FastifyRequest, authenticator: Authenticator): MaybePromise<Identity | ApiError> {
  const key = request.headers['x-api-key']
  if (key === undefined) {
    const known = knownCaller(request.raw, authenticator.verifier)
    if (known) return fromToken(known)
    const token = bearerToken(request.raw)
    return token instanceof ApiError ? token : chain(verifyToken(authenticator.verifier, token), fromToken)
  }
  if (request.headers.authorization === undefined) return chain(verifyKey(authenticator.serviceKeys, key), fromKey)

  const token = bearerToken(request.raw)
  if (token instanceof ApiError) return token
  return chain(verifyKey(authenticator.serviceKeys, key), (service) =>
    service instanceof ApiError
      ? service
      : chain(verifyToken(authenticator.verifier, token), (principal) =>
          principal instanceof ApiError ? principal : { principal, tier: 'service' as const, tierKey: service.keyId },
        ),
  )
}

const fromToken = (principal: UserPrincipal | ApiError): Identity | ApiError =>
  principal instanceof ApiError ? principal : { principal, tier: 'authenticated', tierKey: principal.sub }

const fromKey = (service: AuthenticatedServiceKey | ApiError): Identity | ApiError =>
  service instanceof ApiError ? service : { principal: service.principal, tier: 'service', tierKey: service.keyId }

function verifyToken(verifier: TokenVerifier, token: string): MaybePromise<UserPrincipal | ApiError> {
  return verifier.cached(token) ?? asOutcome(() => verifier.verify(token))
}

function verifyKey(
  keys: ServiceKeyAuthenticator,
  key: string | string[],
): MaybePromise<AuthenticatedServiceKey | ApiError> {
  return asOutcome(() => keys.authenticate(String(key)))
}

function asOutcome<T>(attempt: () => MaybePromise<T>): MaybePromise<T | ApiError> {
  try {
    const result = attempt()
    return result instanceof Promise ? result.catch(asRefusal) : result
  } catch (error) {
    return asRefusal(error)
  }
}

function asRefusal(error: unknown): ApiError {
  if (error instanceof ApiError && error.code === 'unauthorized') {
    const description = `Bearer error="invalid_token", error_description="${error.message}"`
    return new ApiError('unauthorized', error.message, {
      cause: error.cause,
      headers: { 'www-authenticate': description },
    })
  }
  throw error
}

/** What nearly every request is: a token that passed before, whose form therefore needs no second look. */
function knownCaller(raw: IncomingMessage, verifier: TokenVerifier): UserPrincipal | undefined {
  const header = raw.headers.authorization
  if (!header?.startsWith('Bearer ') || countHeader(raw.rawHeaders, 'authorization') > 1) return undefined
  return verifier.cached(header.slice('Bearer '.length))
}

const BEARER = /^Bearer +([^\s]+) *$/i

function bearerToken(raw: IncomingMessage): string | ApiError {
  const header = raw.headers.authorization
  const token = header === undefined ? undefined : BEARER.exec(header)?.[1]
  if (token === undefined) {
    return new ApiError('unauthorized', 'Missing bearer token', { headers: { 'www-authenticate': 'Bearer' } })
  }
  // Node keeps the first of two Authorization headers and hides the other; a proxy before us may have checked that one.
  if (countHeader(raw.rawHeaders, 'authorization') > 1) {
    return asRefusal(new ApiError('unauthorized', 'Invalid or expired token', { cause: 'two Authorization headers' }))
  }
  return token
}
