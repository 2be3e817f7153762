import type { FastifyRequest } from 'fastify'
import type { CallbackProof } from '../../auth/callback-authenticity.ts'
import type { Principal } from '../../auth/principal.ts'
import type { Scope } from '../../auth/scopes.ts'
import { ApiError, type ErrorCode } from '../../core/errors.ts'
import type { TSchema } from '../../core/schema.ts'
import type { TierName } from '../../limits/tiers.ts'

/** Who may call a route. Data, so that one gate enforces it and the documentation is drawn from the same words. */
export type Access =
  | { kind: 'public'; reason: string; charged: boolean }
  | { kind: 'bearer' }
  | { kind: 'scopes'; anyOf: readonly Scope[] }
  | { kind: 'callback' }

export type Refusals = Readonly<Partial<Record<ErrorCode, string>>>

declare module 'fastify' {
  interface FastifyContextConfig {
    access?: Access
    /** Its good answers last as long as somebody listens. */
    streams?: true
    /** What its handler may refuse with, in its words, beyond what its access and its inputs already imply. */
    refusals?: Refusals
    /** Its good answers carry an ETag. */
    versioned?: true
    /** What its body holds, where the handler reads the bytes itself. */
    payload?: TSchema
  }
  interface FastifyRequest {
    principal: Principal | null
    chargedTier: TierName | null
    /** How a callback proved itself; null on every other route. */
    callbackProof: CallbackProof | null
  }
}

/** The `@public` marker: no credential is read. The reason stands beside it, for whoever reviews the list. */
export function open(reason: string, options: { charged: boolean } = { charged: true }): Access {
  return { kind: 'public', reason, charged: options.charged }
}

/** Any valid credential. */
export function bearer(): Access {
  return { kind: 'bearer' }
}

/** A valid credential with any of these scopes, or `admin:*`. */
export function scopes(...anyOf: [Scope, ...Scope[]]): Access {
  return { kind: 'scopes', anyOf }
}

/** The agent runtime, by any of the proofs a callback can carry. */
export function callback(): Access {
  return { kind: 'callback' }
}

export function insufficientScope(anyOf: readonly Scope[]): ApiError {
  return new ApiError('forbidden', 'Insufficient scope', {
    headers: { 'www-authenticate': `Bearer error="insufficient_scope", scope="${anyOf.join(' ')}"` },
  })
}

/** The caller of a route that is not public; the gate has put it there. */
export function callerOf(request: FastifyRequest): Principal {
  if (request.principal === null) throw new Error('A public route asked who its caller is')
  return request.principal
}

/** Unknown paths under /v1/ are as closed as known ones: without a credential one cannot even learn what exists. */
export function accessOfUnknownPath(url: string): Access {
  return /^\/v1(?:\/|$)/.test(pathOf(url)) ? bearer() : open('there is nothing here')
}

/** A URL's path as the router reads it: it takes absolute addresses too, and undoes escapes, so /v1/ must not hide behind either. */
export function pathOf(url: string): string {
  const [path = ''] = url.replace(/^https?:\/\/[^/?]*/i, '').split('?', 1)
  try {
    return decodeURI(path)
  } catch {
    return path
  }
}
