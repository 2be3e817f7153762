import type { IncomingMessage } from 'node:http'
import type { FastifyRequest } from 'fastify'
import type { CommandLineKey } from '../../auth/command-line-key.ts'
import { type BeginCheck, UNCHECKED } from '../../auth/credential-check.ts'
import { COMMAND_LINE, type Principal } from '../../auth/principal.ts'
import type { ServiceKeyAuthenticator } from '../../auth/service-key-authenticator.ts'
import { TokenFault } from '../../auth/token-fault.ts'
import { bearerToken } from '../../auth/token-format.ts'
import type { TokenVerifier } from '../../auth/token-verifier.ts'
import { chain, type MaybePromise } from '../../core/async/maybe-promise.ts'
import { addressKey } from '../../limits/client-address.ts'
import type { TierName } from '../../limits/tiers.ts'
import type { Admission } from '../admission/admission.ts'
import { countHeader } from '../server/request-head.ts'
import { type GateRefusal, invalidKey, invalidToken, isRefusal, missingToken, tierSpent } from './decision.ts'
import { isFromThisMachine } from './local-request.ts'

export interface Identity {
  principal: Principal
  tier: TierName
  /** The key under which the request is counted within its tier. */
  tierKey: string
}

export interface Authenticator {
  verifier: TokenVerifier
  serviceKeys: ServiceKeyAuthenticator
  /** Absent: commands on this machine have no key. */
  commandLineKey?: CommandLineKey
  admission: Admission
}

/**
 * Finds the caller of a request. With a service key alone, the caller is its service account. With a key and a token, the
 * token names the caller and the key sets the tier; both must be valid. From an address that is over its limit, a credential
 * is refused unchecked if too many others failed their check in this second. The key of the command line is checked in memory.
 */
export function identify(request: FastifyRequest, authenticator: Authenticator): MaybePromise<Identity | GateRefusal> {
  const { authorization, 'x-api-key': key } = request.headers
  const beginCheck = () => authenticator.admission.spentAddresses.beginCheck(addressKey(request.ip))
  if (key !== undefined && authorization === undefined) return identifyByKey(request.raw, authenticator, beginCheck)
  const token = readToken(request.raw)
  if (typeof token !== 'string') return token
  if (key === undefined) return identifyByToken(token, authenticator, beginCheck)
  return identifyByBoth(request.raw, token, authenticator, beginCheck)
}

function identifyByToken(
  token: string,
  { verifier }: Authenticator,
  beginCheck: BeginCheck,
): MaybePromise<Identity | GateRefusal> {
  return chain(verifier.verify(token, beginCheck), (verdict) => {
    if (verdict === UNCHECKED) return tierSpent()
    if (verdict instanceof TokenFault) return invalidToken(verdict.reason)
    return { principal: verdict, tier: 'authenticated', tierKey: verdict.sub }
  })
}

async function identifyByKey(
  request: IncomingMessage,
  { serviceKeys, commandLineKey }: Authenticator,
  beginCheck: BeginCheck,
): Promise<Identity | GateRefusal> {
  const key = String(request.headers['x-api-key'])
  if (commandLineKey?.matches(key)) {
    const { principal } = commandLineKey
    return isFromThisMachine(request) ? { principal, tier: 'service', tierKey: COMMAND_LINE } : invalidKey()
  }
  const service = await serviceKeys.authenticate(key, beginCheck)
  if (service === UNCHECKED) return tierSpent()
  return service ? { principal: service.principal, tier: 'service', tierKey: service.keyId } : invalidKey()
}

async function identifyByBoth(
  request: IncomingMessage,
  token: string,
  authenticator: Authenticator,
  beginCheck: BeginCheck,
): Promise<Identity | GateRefusal> {
  const service = await identifyByKey(request, authenticator, beginCheck)
  if (isRefusal(service)) return service
  const user = await identifyByToken(token, authenticator, beginCheck)
  return isRefusal(user) ? user : { ...service, principal: user.principal }
}

function readToken({ headers, rawHeaders }: IncomingMessage): string | GateRefusal {
  const token = bearerToken(headers.authorization)
  if (token === undefined) return missingToken()
  // Node keeps the first of two Authorization headers and hides the other. A proxy in front of this service may have
  // checked the hidden one.
  return countHeader(rawHeaders, 'authorization') > 1 ? invalidToken('header') : token
}
