import type { RouteOptions } from 'fastify'
import { type ErrorCode, STATUS_BY_CODE } from '../../core/errors.ts'
import type { Envelope } from '../../http/envelope.ts'
import type { Access } from '../../http/gate/access.ts'
import type { RateLimitHeaderStyle } from '../../limits/rate-limit-headers.ts'
import type { OperationResponse, Reference } from './operations.ts'

/** One way in which a request can fail, with an example of its message. */
export type ErrorCase = readonly [code: ErrorCode, message: string]

/** Errors of requests that match no operation. */
export const ERRORS_OUTSIDE_OPERATIONS: readonly ErrorCase[] = [
  ['method_not_allowed', 'PUT is not allowed here'],
  ['request_timeout', 'The request took too long to arrive'],
  ['headers_too_large', 'The headers are too large'],
]

/** Every way an operation can fail, and no other: what its access and inputs imply, and what its handler declares. */
export function errorCasesOf({ method, schema = {}, config = {} }: RouteOptions): ErrorCase[] {
  const { access, refusals = {}, payload, underOverload } = config
  if (!access) return []
  const isPublic = access.kind === 'public'
  const isCallback = access.kind === 'callback'
  const isIdempotent = hasHeader(schema, 'idempotency-key')
  // A body is read, and may be too large or of the wrong type, even where the operation takes none.
  const readsBody = [method].flat().some((one) => one !== 'GET' && one !== 'HEAD')
  const implied: Partial<Record<ErrorCode, string | false | undefined>> = {
    invalid_request: inputErrorOf({ ...schema, body: schema.body ?? payload }),
    unauthorized: !isPublic && (isCallback ? 'Invalid or missing callback credential' : 'Invalid or expired token'),
    forbidden: access.kind === 'scopes' && 'Insufficient scope',
    // The router matches no route when a parameter is longer than its limit.
    not_found: schema.params !== undefined && refusals.not_found === undefined && 'No such path',
    conflict: isIdempotent && 'A request with this Idempotency-Key is still in flight',
    precondition_failed: hasHeader(schema, 'if-match') && 'The record has changed since the version named by If-Match',
    payload_too_large: readsBody && 'Request body is too large',
    // A callback is read as JSON whatever its Content-Type says.
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

function inputErrorOf({ body, querystring, params, headers }: Inputs): string | false {
  if (body) return 'body is not valid JSON'
  if (params) return `params/${Object.keys((params as { properties: object }).properties)[0]} must not be empty`
  if (headers) return 'headers are not of the right form'
  return querystring !== undefined && 'querystring must not have the field "page"'
}

function hasHeader(schema: { headers?: unknown } | undefined, name: string): boolean {
  const headers = schema?.headers as { properties?: Record<string, unknown> } | undefined
  return headers?.properties?.[name] !== undefined
}

/** One response for all errors of one status, each with an example in this service's envelope. */
export function toResponse(cases: readonly ErrorCase[], envelope: Envelope): OperationResponse {
  const examples = cases.map(([code, message], index) => {
    const earlier = cases.slice(0, index).filter(([other]) => other === code).length
    const value = envelope.render({ code, message, requestId: 'req_01kq3v7m2x8n4r6t0w9y5z1abc' })
    return [earlier === 0 ? code : `${code}_${earlier + 1}`, { summary: message, value }]
  })
  return {
    description: cases.map(([code, message]) => `\`${code}\`: ${message}`).join('. '),
    content: {
      'application/json': {
        schema: { $ref: '#/components/schemas/Error' },
        examples: Object.fromEntries(examples),
      },
    },
  }
}

/** Keeps one copy of responses that several operations share, named by their error code; copies would be most of the document. */
export class SharedResponses {
  readonly all: Record<string, OperationResponse> = {}
  readonly #names = new Map<string, string>()
  readonly #counts = new Map<string, number>()

  refer(code: string, response: OperationResponse): Reference {
    const text = JSON.stringify(response)
    const name = this.#names.get(text) ?? this.#nextName(code)
    this.#names.set(text, name)
    this.all[name] = response
    return { $ref: `#/components/responses/${name}` }
  }

  #nextName(code: string): string {
    const count = (this.#counts.get(code) ?? 0) + 1
    this.#counts.set(code, count)
    return count === 1 ? code : `${code}_${count}`
  }
}

const text = (description: string, example: string) => ({ description, schema: { type: 'string' }, example })
const whole = (description: string, example: number) => ({ description, schema: { type: 'integer' }, example })

const POLICY = 'How many requests this tier may send, in a window of so many seconds.'

const RATE_LIMIT_HEADERS = {
  'draft-6': {
    'RateLimit-Policy': text(POLICY, '1000;w=60'),
    'RateLimit-Limit': whole('How many requests this window allows.', 1000),
    'RateLimit-Remaining': whole('How many of them are left.', 999),
    'RateLimit-Reset': whole('In how many seconds the window ends.', 60),
  },
  'draft-8': {
    'RateLimit-Policy': text(POLICY, '"authenticated";q=1000;w=60'),
    RateLimit: text(
      'How many requests are left, and in how many seconds the window ends.',
      '"authenticated";r=999;t=60',
    ),
  },
} as const

const HEADERS = {
  'X-Request-Id': text('The id of this request: yours if you sent one.', 'req_01kq3v7m2x8n4r6t0w9y5z1abc'),
  ETag: text('The version, for `If-Match`.', '"3"'),
  Location: text('Where to read the new record.', '/v1/projects/prj_01kq3v7m2x8n4r6t0w9y5z1abc'),
  'Idempotency-Replayed': text('`true` when this repeats the first answer.', 'true'),
  'Retry-After': whole('In how many seconds to try again.', 1),
  'WWW-Authenticate': text('Which credential or scope is missing.', 'Bearer error="invalid_token"'),
  Allow: text('The methods of this path.', 'GET, HEAD, POST'),
} as const

export function componentHeaders(style: RateLimitHeaderStyle): object {
  return { ...HEADERS, ...RATE_LIMIT_HEADERS[style] }
}

/** The headers of a response with this status. `route` is null for a request that matched none. */
export function headersOf(route: RouteOptions | null, status: string, style: RateLimitHeaderStyle): object {
  const { access, versioned } = route?.config ?? {}
  const isSuccess = status.startsWith('2')
  const isCreation = hasHeader(route?.schema, 'idempotency-key')
  const isCharged = access ? mayBeCharged(access, status) : status === '405'
  const present: Record<keyof typeof HEADERS, boolean> = {
    'X-Request-Id': true,
    ETag: (isSuccess || status === '304') && versioned === true,
    Location: isSuccess && isCreation,
    'Idempotency-Replayed': isSuccess && isCreation,
    'Retry-After': ['429', '503'].includes(status) || (status === '409' && isCreation),
    'WWW-Authenticate': ['401', '403'].includes(status),
    Allow: status === '405',
  }
  const names = [
    ...Object.entries(present).flatMap(([name, isPresent]) => (isPresent ? [name] : [])),
    ...(isCharged ? Object.keys(RATE_LIMIT_HEADERS[style]) : []),
  ]
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]))
}

function mayBeCharged(access: Access, status: string): boolean {
  if (access.kind === 'public') return access.charged
  // A callback that proves its origin counts against no rate limit.
  return access.kind !== 'callback' || status === '401' || status === '429'
}
