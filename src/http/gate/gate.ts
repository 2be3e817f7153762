import type { FastifyReply, FastifyRequest, onRequestHookHandler, preHandlerHookHandler } from 'fastify'
import type { CallbackAuthenticity } from '../../auth/callback-authenticity.ts'
import { hasAnyScope } from '../../auth/scopes.ts'
import { chain, type MaybePromise } from '../../core/async/maybe-promise.ts'
import { ApiError } from '../../core/errors.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import { addressKey } from '../../limits/client-address.ts'
import type { Limiter } from '../../limits/limiter.ts'
import { rateLimitHeaders } from '../../limits/rate-limit-headers.ts'
import type { TierName } from '../../limits/tiers.ts'
import { type Access, accessOfUnknownPath, insufficientScope } from './access.ts'
import { type Authenticator, type Identity, identify } from './authenticate.ts'
import { countAdmission, countCharge } from './gate-counts.ts'

export interface GateOptions extends Authenticator {
  callbackAuthenticity: CallbackAuthenticity
  limiter: Limiter
  headerStyle: 'draft-6' | 'draft-8'
  meter?: Meter
}

/**
 * The one place every request passes before its handler: who is it (401), is its tier spent (429), may it (403).
 * Each request is charged to exactly one tier; a refused credential is charged to the address it came from.
 */
export function createGate(options: GateOptions): onRequestHookHandler {
  const { meter = silentMeter } = options
  return (request, reply, done) => {
    const conclude = (refusal: ApiError | undefined): void => {
      countAdmission(meter, request, refusal)
      done(refusal)
    }
    const admitted = admit(request, reply, options)
    if (admitted instanceof Promise) admitted.then(conclude, conclude)
    else conclude(admitted)
  }
}

function admit(request: FastifyRequest, reply: FastifyReply, options: GateOptions): MaybePromise<ApiError | undefined> {
  const access = accessOf(request)
  if (access.kind === 'public') return access.charged ? chargeAddress(request, reply, options) : undefined
  if (access.kind === 'callback') return admitCallback(request, reply, options)
  return chain(identify(request, options), (identity) => {
    if (identity instanceof ApiError) {
      return chain(chargeAddress(request, reply, options), (spent) => spent ?? identity)
    }
    request.principal = identity.principal
    return chain(charge(request, reply, options, identity), (spent) => spent ?? checkScope(access, identity))
  })
}

/**
 * An authentic callback is charged to nobody: a lost one is worse than a busy one. One that only its signature can prove
 * is let through to have its body read, and judged by `createBodyGate`.
 */
function admitCallback(
  request: FastifyRequest,
  reply: FastifyReply,
  options: GateOptions,
): MaybePromise<ApiError | undefined> {
  const { token, job_id: jobId } = request.query as Record<string, unknown>
  request.callbackProof = options.callbackAuthenticity.check({
    headers: request.headers,
    token: typeof token === 'string' ? token : undefined,
    jobId: typeof jobId === 'string' ? jobId : undefined,
  })
  if (request.callbackProof.authentic || request.callbackProof.signed) return undefined
  return refuseCallback(request, reply, options)
}

/** The second half of the gate, for what can only be told from a callback's body. */
export function createBodyGate(options: GateOptions): preHandlerHookHandler {
  const { meter = silentMeter } = options
  return (request, reply, done) => {
    const proof = request.callbackProof
    if (proof === null || proof.authentic) return done()
    const conclude = (refusal: ApiError | undefined): void => {
      countAdmission(meter, request, refusal)
      done(refusal)
    }
    const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0)
    if (options.callbackAuthenticity.checkSignature(request.headers, body)) {
      request.callbackProof = { authentic: true, jobId: null }
      return conclude(undefined)
    }
    const refused = refuseCallback(request, reply, options)
    if (refused instanceof Promise) refused.then(conclude, conclude)
    else conclude(refused)
  }
}

function refuseCallback(
  request: FastifyRequest,
  reply: FastifyReply,
  options: GateOptions,
): MaybePromise<ApiError | undefined> {
  const refusal = new ApiError('unauthorized', 'Invalid or missing callback credential', {
    headers: { 'www-authenticate': 'Bearer' },
  })
  return chain(chargeAddress(request, reply, options), (spent) => spent ?? refusal)
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
): MaybePromise<ApiError | undefined> {
  return charge(request, reply, options, { tier: 'unauthenticated', tierKey: addressKey(request.ip) })
}

function charge(
  request: FastifyRequest,
  reply: FastifyReply,
  { limiter, headerStyle, meter = silentMeter }: GateOptions,
  account: { tier: TierName; tierKey: string },
): MaybePromise<ApiError | undefined> {
  return chain(limiter.charge(account.tier, account.tierKey), (charged) => {
    request.chargedTier = account.tier
    countCharge(meter, charged)
    reply.headers(rateLimitHeaders(charged, headerStyle))
    return charged.exceeded ? new ApiError('rate_limit_exceeded', 'Too many requests') : undefined
  })
}

function checkScope(access: Access, { principal }: Identity): ApiError | undefined {
  if (access.kind !== 'scopes' || hasAnyScope(principal.scopes, access.anyOf)) return undefined
  return insufficientScope(access.anyOf)
}
