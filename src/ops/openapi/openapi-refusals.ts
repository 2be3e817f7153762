import type { RouteOptions } from 'fastify'
import { type ErrorCode, STATUS_BY_CODE } from '../../core/errors.ts'
import type { Envelope } from '../../http/envelope.ts'
import { hasHeader, type Response } from './openapi-operation.ts'

export type Refusal = readonly [code: ErrorCode, message: string]

/** What no operation answers with, because it is no request of any. */
export const UNOWNED: readonly Refusal[] = [
  ['method_not_allowed', 'PUT is not allowed here'],
  ['request_timeout', 'The request took too long to arrive'],
  ['headers_too_large', 'The headers are too large'],
]

/** Every way an operation can fail and no other: what its access and its inputs imply, and what its handler declares. */
export function refusalsOf({ method, schema = {}, config = {} }: RouteOptions): Refusal[] {
  const { access, refusals = {}, payload, underOverload } = config
  if (!access) return []
  const isPublic = access.kind === 'public'
  const isCallback = access.kind === 'callback'
  const isIdempotent = hasHeader(schema, 'idempotency-key')
  // A body is read, and may be too large or of the wrong type, also where nobody asked for one.
  const readsBody = [method].flat().some((one) => one !== 'GET' && one !== 'HEAD')
  const implied: Partial<Record<ErrorCode, string | false | undefined>> = {
    invalid_request: faultOfInput({ ...schema, body: schema.body ?? payload }),
    unauthorized: !isPublic && (isCallback ? 'Invalid or missing callback credential' : 'Invalid or expired token'),
    forbidden: access.kind === 'scopes' && 'Insufficient scope',
    // One that is longer than any schema allows fits no route at all.
    not_found: schema.params !== undefined && refusals.not_found === undefined && 'No such path',
    conflict: isIdempotent && 'A request with this Idempotency-Key is still in flight',
    precondition_failed: hasHeader(schema, 'if-match') && 'The record has changed since the version named by If-Match',
    payload_too_large: readsBody && 'Request body is too large',
    // Callbacks are JSON whatever they say they are.
    unsupported_media_type: readsBody && !isCallback && 'Content-Type must be application/json',
    idempotency_key_reused: isIdempotent && 'This Idempotency-Key was used with another request',
    rate_limit_exceeded: (!isPublic || access.charged) && 'Too many requests',
    internal_error: 'Internal error',
    service_unavailable: (!isPublic || underOverload !== 'never') && 'Too busy',
  }
  const codes = Object.keys(STATUS_BY_CODE) as ErrorCode[]
  return codes.flatMap((code) =>
    [implied[code], refusals[code]].flatMap((message) => (message ? [[code, message] as const] : [])),
  )
}

type Inputs = { body?: unknown; querystring?: unknown; params?: unknown; headers?: unknown }

function faultOfInput({ body, querystring, params, headers }: Inputs): string | false {
  if (body) return 'body is not valid JSON'
  if (params) return `params/${Object.keys((params as { properties: object }).properties)[0]} must not be empty`
  if (headers) return 'headers are not of the right form'
  return querystring !== undefined && 'querystring must not have the field "page"'
}

/** One answer for all refusals of a status, each with an example in the envelope of this service. */
export function toResponse(refusals: readonly Refusal[], envelope: Envelope): Response {
  const examples = refusals.map(([code, message], index) => {
    const earlier = refusals.slice(0, index).filter(([other]) => other === code).length
    const value = envelope.render({ code, message, requestId: 'req_01kq3v7m2x8n4r6t0w9y5z1abc' })
    return [earlier === 0 ? code : `${code}_${earlier + 1}`, { summary: message, value }]
  })
  return {
    description: refusals.map(([code, message]) => `\`${code}\`: ${message}`).join('. '),
    content: {
      'application/json': {
        schema: { $ref: '#/components/schemas/Error' },
        examples: Object.fromEntries(examples),
      },
    },
  }
}
