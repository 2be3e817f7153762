import type { IncomingMessage } from 'node:http'
import type { FastifyRequest } from 'fastify'
import { bearerToken } from '../../auth/bearer-token.ts'
import type { Principal } from '../../auth/principal.ts'
import type { ServiceKeyAuthenticator } from '../../auth/service-key-authenticator.ts'
import { TokenFault } from '../../auth/token-fault.ts'
import type { TokenVerifier } from '../../auth/token-verifier.ts'
import { chain, type MaybePromise } from '../../core/async/maybe-promise.ts'
import type { TierName } from '../../limits/tiers.ts'
import { countHeader } from '../server/request-head.ts'
import { type GateRefusal, invalidKey, invalidToken, isRefusal, missingToken } from './decision.ts'

export interface Identity {
  principal: Principal
  tier: TierName
  /** The key under which the request is counted within its tier. */
  tierKey: string
}

export interface Authenticator {
  verifier: TokenVerifier
  serviceKeys: ServiceKeyAuthenticator
}

/**
 * Finds the caller of a request. With a service key alone, the caller is its service account. With a key and a token, the
 * token names the caller and the key sets the tier; both must be valid.
 */
export function identify(request: FastifyRequest, authenticator: Authenticator): MaybePromise<Identity | GateRefusal> {
  const { authorization, 'x-api-key': key } = request.headers
  if (key !== undefined && authorization === undefined) return identifyByKey(String(key), authenticator)
  const token = readToken(request.raw)
  if (typeof token !== 'string') return token
  if (key === undefined) return identifyByToken(token, authenticator)
  return identifyByBoth({ key: String(key), token }, authenticator)
}

/** Whether the credential is not cached, so that a signature must be verified or a key looked up. */
export function hasUnknownCredential({ headers }: FastifyRequest, { verifier, serviceKeys }: Authenticator): boolean {
  const token = bearerToken(headers.authorization)
  const key = headers['x-api-key']
  return (token !== undefined && !verifier.isKnown(token)) || (key !== undefined && !serviceKeys.isKnown(String(key)))
}

function identifyByToken(token: string, { verifier }: Authenticator): MaybePromise<Identity | GateRefusal> {
  return chain(verifier.verify(token), (principal) =>
    principal instanceof TokenFault
      ? invalidToken(principal.reason)
      : { principal, tier: 'authenticated', tierKey: principal.sub },
  )
}

async function identifyByKey(key: string, { serviceKeys }: Authenticator): Promise<Identity | GateRefusal> {
  const service = await serviceKeys.authenticate(key)
  return service ? { principal: service.principal, tier: 'service', tierKey: service.keyId } : invalidKey()
}

async function identifyByBoth(
  { key, token }: { key: string; token: string },
  authenticator: Authenticator,
): Promise<Identity | GateRefusal> {
  const service = await identifyByKey(key, authenticator)
  if (isRefusal(service)) return service
  const user = await identifyByToken(token, authenticator)
  return isRefusal(user) ? user : { ...service, principal: user.principal }
}

function readToken({ headers, rawHeaders }: IncomingMessage): string | GateRefusal {
  const token = bearerToken(headers.authorization)
  if (token === undefined) return missingToken()
  // Node keeps the first of two Authorization headers and hides the other. A proxy in front of this service may have
  // checked the hidden one.
  return countHeader(rawHeaders, 'authorization') > 1 ? invalidToken('header') : token
}
