import type { FastifyReply, FastifyRequest } from 'fastify'
import type { BlockedUsers } from '../../auth/blocked-users.ts'
import type { CallbackAuthenticity } from '../../auth/callback-authenticity.ts'
import { principalId } from '../../auth/principal.ts'
import { hasAnyScope } from '../../auth/scopes.ts'
import { chain, type MaybePromise } from '../../core/async/maybe-promise.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import type { CallerCounts } from '../../limits/caller-counts.ts'
import { addressKey } from '../../limits/client-address.ts'
import type { Limiter } from '../../limits/limiter.ts'
import { rateLimitHeaders } from '../../limits/rate-limit-headers.ts'
import type { App } from '../app-instance.ts'
import { type Access, accessOfUnknownPath, insufficientScope } from './access.ts'
import { type Authenticator, type Identity, identify } from './authenticate.ts'
import {
  AWAITS_BODY,
  accountBlocked,
  blockedUsersUnknown,
  type GateDecision,
  invalidCallback,
  isRefusal,
  OK,
  PUBLIC,
  tierSpent,
} from './decision.ts'
import { countCharge, countDecision } from './gate-counts.ts'

interface GateOptions extends Authenticator {
  callbackAuthenticity: CallbackAuthenticity
  limiter: Limiter
  callerCounts: CallerCounts
  blockedUsers: BlockedUsers
  headerStyle: 'draft-6' | 'draft-8'
  meter?: Meter
}

/**
 * Checks every request before its handler: a valid credential (else 401), the rate limit of its tier (429), a blocked user
 * (403), the scope (403). Each request is charged to exactly one tier; a refused credential is charged to the address it
 * came from. For an address that is over its limit: a known credential passes, unknown ones are checked until too many
 * have failed in a second, and no body is read before its caller is authenticated. The service does not start with a route
 * that declares no access.
 */
export function guardRequests(app: App, options: GateOptions): void {
  app.decorateRequest('principal', null)
  app.decorateRequest('chargedTier', null)
  app.decorateRequest('callbackProof', null)
  app.addHook('onRoute', ({ config, method, url }) => {
    if (!config?.access) throw new Error(`Route ${method} ${url} declares no access`)
  })
  app.addHook('onRequest', (request, reply, done) => enforce(decide(request, reply, options), options, done))
  // The second part: a callback that can only be authenticated by the signature over its body.
  app.addHook('preHandler', (request, reply, done) => {
    const proof = request.callbackProof
    if (proof === null || proof.authentic) return done()
    enforce(decideByBody(request, reply, options), options, done)
  })
}

function enforce(
  decision: MaybePromise<GateDecision>,
  { meter = silentMeter }: GateOptions,
  done: (error?: Error) => void,
): void {
  const conclude = (decided: GateDecision): void => {
    countDecision(meter, decided)
    done(isRefusal(decided) ? decided.error : undefined)
  }
  if (decision instanceof Promise) decision.then(conclude, (error) => conclude({ outcome: 'unavailable', error }))
  else conclude(decision)
}

function decide(request: FastifyRequest, reply: FastifyReply, options: GateOptions): MaybePromise<GateDecision> {
  const access = accessOf(request)
  if (access.kind === 'callback') return decideByHeaders(request, reply, options)
  if (access.kind === 'public') return access.charged ? chargeAddress(request, reply, options, PUBLIC) : PUBLIC
  return chain(identify(request, options), (identity) => {
    if (isRefusal(identity)) return chargeAddress(request, reply, options, identity)
    request.principal = identity.principal
    return charge(request, reply, options, identity, admit(access, identity, options))
  })
}

/** An authentic callback is charged to no tier: losing a callback is worse than a busy server. */
function decideByHeaders(
  request: FastifyRequest,
  reply: FastifyReply,
  options: GateOptions,
): MaybePromise<GateDecision> {
  const { token, job_id: jobId } = request.query as Record<string, unknown>
  request.callbackProof = options.callbackAuthenticity.check({
    headers: request.headers,
    token: typeof token === 'string' ? token : undefined,
    jobId: typeof jobId === 'string' ? jobId : undefined,
  })
  if (request.callbackProof.authentic) return OK
  if (!request.callbackProof.signed) return chargeAddress(request, reply, options, invalidCallback())
  const isSpent = options.admission.spentAddresses.isSpent(addressKey(request.ip))
  return isSpent ? chargeAddress(request, reply, options, tierSpent()) : AWAITS_BODY
}

function decideByBody(request: FastifyRequest, reply: FastifyReply, options: GateOptions): MaybePromise<GateDecision> {
  const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0)
  if (!options.callbackAuthenticity.checkSignature(request.headers, body)) {
    return chargeAddress(request, reply, options, invalidCallback())
  }
  request.callbackProof = { authentic: true, jobId: null }
  request.hold?.proveBody()
  return OK
}

function accessOf(request: FastifyRequest): Access {
  if (request.is404) return accessOfUnknownPath(request.url)
  const access = request.routeOptions.config.access
  if (access === undefined) throw new Error(`Route ${request.routeOptions.url} declares no access`)
  return access
}

function chargeAddress(
  request: FastifyRequest,
  reply: FastifyReply,
  options: GateOptions,
  within: GateDecision,
): MaybePromise<GateDecision> {
  return charge(request, reply, options, { tier: 'unauthenticated', tierKey: addressKey(request.ip) }, within)
}

/**
 * Charges the request to one tier. The request is refused if the tier is over its limit; otherwise the decision is
 * `within`.
 */
function charge(
  request: FastifyRequest,
  reply: FastifyReply,
  { limiter, admission, callerCounts, headerStyle, meter = silentMeter }: GateOptions,
  { tier, tierKey }: Pick<Identity, 'tier' | 'tierKey'>,
  within: GateDecision,
): MaybePromise<GateDecision> {
  return chain(limiter.charge(tier, tierKey), (charged) => {
    request.chargedTier = tier
    countCharge(meter, charged)
    callerCounts.count(charged, request.principal ? principalId(request.principal) : tierKey)
    if (charged.exceeded && tier === 'unauthenticated') admission.spentAddresses.note(tierKey, charged.resetMs)
    reply.headers(rateLimitHeaders(charged, headerStyle))
    return charged.exceeded ? tierSpent() : within
  })
}

/** Only users can be blocked. A service account's keys are revoked instead. */
function admit(access: Access, identity: Identity, { blockedUsers }: GateOptions): GateDecision {
  const { principal } = identity
  const state = principal.kind === 'user' ? blockedUsers.stateOf(principal.sub) : 'admitted'
  if (state === 'admitted') return checkScope(access, identity)
  return state === 'blocked' ? accountBlocked() : blockedUsersUnknown()
}

function checkScope(access: Access, { principal }: Identity): GateDecision {
  if (access.kind !== 'scopes' || hasAnyScope(principal.scopes, access.anyOf)) return OK
  return { outcome: 'forbidden', error: insufficientScope(access.anyOf) }
}
