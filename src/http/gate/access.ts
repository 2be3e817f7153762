import type { FastifyRequest } from 'fastify'
import type { TSchema } from 'typebox'
import type { CallbackProof } from '../../auth/callback-authenticity.ts'
import type { Principal } from '../../auth/principal.ts'
import type { Scope } from '../../auth/scopes.ts'
import { ApiError, type ErrorCode } from '../../core/errors.ts'
import type { TierName } from '../../limits/tiers.ts'

/** Who may call a route. It is data on the route: the gate enforces it, and OpenAPI documents the same. */
export type Access =
  | { kind: 'public'; reason: string; charged: boolean }
  | { kind: 'bearer' }
  | { kind: 'scopes'; anyOf: readonly Scope[] }
  | { kind: 'callback' }

type Refusals = Readonly<Partial<Record<ErrorCode, string>>>

declare module 'fastify' {
  interface FastifyContextConfig {
    access?: Access
    /** A successful answer is a stream that stays open until the client disconnects. */
    streams?: true
    /** Errors of its handler and their descriptions, beyond those that its access and its inputs imply. */
    refusals?: Refusals
    /** Its successful answers carry an ETag. */
    versioned?: true
    /** The schema of its body, where the handler reads the bytes itself. */
    payload?: TSchema
  }
  interface FastifyRequest {
    principal: Principal | null
    chargedTier: TierName | null
    /** The proof that a callback is authentic; null on every other route. */
    callbackProof: CallbackProof | null
  }
}

/** The `@public` marker: no credential is read. The reason is for the reviewer of the route. */
export function publicAccess(reason: string, options: { charged: boolean } = { charged: true }): Access {
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

/** Only the agent runtime, with any credential of a callback. */
export function callback(): Access {
  return { kind: 'callback' }
}

export function insufficientScope(anyOf: readonly Scope[]): ApiError {
  return new ApiError('forbidden', 'Insufficient scope', {
    headers: { 'www-authenticate': `Bearer error="insufficient_scope", scope="${anyOf.join(' ')}"` },
  })
}

/** The caller of a route that is not public, as the gate found it. */
export function callerOf(request: FastifyRequest): Principal {
  if (request.principal === null) throw new Error('A public route has no caller')
  return request.principal
}

/** The user whom a path of users names. `me` is the caller, unless that is a service account. */
export function namedUser(request: FastifyRequest<{ Params: { sub: string } }>): string {
  const { sub } = request.params
  const caller = callerOf(request)
  return sub === 'me' && caller.kind === 'user' ? caller.sub : sub
}

/** Unknown paths under /v1/ need a credential too: without one a client cannot learn which paths exist. */
export function accessOfUnknownPath(url: string): Access {
  return /^\/v1(?:\/|$)/.test(pathOf(url)) ? bearer() : publicAccess('the path is unknown')
}

/**
 * A URL's path as the router reads it. The router accepts absolute URLs and decodes escapes, so this does too: otherwise a
 * client could hide /v1/ from the gate.
 */
export function pathOf(url: string): string {
  const [path = ''] = url.replace(/^https?:\/\/[^/?]*/i, '').split('?', 1)
  try {
    return decodeURI(path)
  } catch {
    return path
  }
}
