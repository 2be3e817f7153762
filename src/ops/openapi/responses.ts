import type { RouteOptions } from 'fastify'
import { type ErrorCode, STATUS_BY_CODE } from '../../core/errors.ts'
import type { Envelope } from '../../http/envelope.ts'
import type { Access } from '../../http/gate/access.ts'
import type { RateLimitHeaderStyle } from '../../limits/rate-limit-headers.ts'
import type { OperationResponse, Reference } from './operations.ts'

/** One error that a request can cause, with an example of its message. */
type ErrorCase = readonly [code: ErrorCode, message: string]

/**
 * All errors that an operation can cause: those that follow from its access and inputs, and those that its handler
 * declares.
 */
export function errorCasesOf({ method, schema = {}, config = {} }: RouteOptions): ErrorCase[] {
  const { access, refusals = {}, payload, underOverload } = config
  if (!access) return []
  const isPublic = access.kind === 'public'
  const isCallback = access.kind === 'callback'
  const hasCaller = !isPublic && !isCallback
  const isIdempotent = hasHeader(schema, 'idempotency-key')
  // A body is read even if the operation takes none, so it may be too large or of the wrong type.
  const readsBody = [method].flat().some((one) => one !== 'GET' && one !== 'HEAD')
  const implied: Partial<Record<ErrorCode, string | false | undefined>> = {
    // Contradictory headers are refused on every path.
    invalid_request: inputErrorOf({ ...schema, body: schema.body ?? payload }) || 'headers/host must be given once',
    unauthorized: !isPublic && (isCallback ? 'Invalid or missing callback credential' : 'Invalid or expired token'),
    forbidden: access.kind === 'scopes' && 'Insufficient scope',
    // The router matches no route when a parameter is longer than its limit.
    not_found: schema.params !== undefined && refusals.not_found === undefined && 'No such path',
    conflict: isIdempotent && 'A request with this Idempotency-Key is still in flight',
    precondition_failed: hasHeader(schema, 'if-match') && 'The record has changed since the version named by If-Match',
    payload_too_large: readsBody && 'Request body is too large',
    // A callback is read as JSON, with any Content-Type.
    unsupported_media_type: readsBody && !isCallback && 'Content-Type must be application/json',
    idempotency_key_reused: isIdempotent && 'This Idempotency-Key was used with a different request',
    rate_limit_exceeded: (!isPublic || access.charged) && 'Too many requests',
    internal_error: 'Internal error',
    service_unavailable: (!isPublic || underOverload !== 'never') && 'Too busy',
  }
  const codes = Object.keys(STATUS_BY_CODE) as ErrorCode[]
  return codes.flatMap((code) =>
    [implied[code], code === 'forbidden' && hasCaller && 'This account is blocked', refusals[code]].flatMap(
      (message) => (message ? [[code, message] as const] : []),
    ),
  )
}

type Inputs = { body?: unknown; querystring?: unknown; params?: unknown; headers?: unknown }

function inputErrorOf({ body, querystring, params, headers }: Inputs): string | false {
  if (body) return 'body is not valid JSON'
  if (params) return `params/${Object.keys((params as { properties: object }).properties)[0]} must not be empty`
  if (headers) return 'headers have the wrong format'
  return querystring !== undefined && 'querystring must not have the field "page"'
}

function hasHeader(schema: { headers?: unknown } | undefined, name: string): boolean {
  const headers = schema?.headers as { properties?: Record<string, unknown> } | undefined
  return headers?.properties?.[name] !== undefined
}

/** The meaning of each code, the same for all operations. */
const MEANINGS: Record<ErrorCode, string> = {
  invalid_request: 'the request is malformed; the message names the place',
  unauthorized: 'the credential is missing, invalid or expired',
  forbidden: 'the credential is valid but does not allow this',
  not_found: 'there is no such record, or the caller may not know that it exists',
  method_not_allowed: 'the path does not support this method',
  request_timeout: 'the request took too long to arrive',
  conflict: 'the current state of the record does not allow this',
  precondition_failed: 'the record has changed since the version named by `If-Match`',
  payload_too_large: 'the body is too large',
  unsupported_media_type: 'the body is not JSON',
  idempotency_key_reused: 'the `Idempotency-Key` was used with a different request',
  rate_limit_exceeded: 'too many requests; `Retry-After` says when to try again',
  usage_limit_exceeded: 'a usage limit or a quota of the caller is reached; the message names it',
  headers_too_large: 'the headers are too large',
  internal_error: 'a fault of the service',
  service_unavailable: 'the service or one of its dependencies is busy or down; `Retry-After` says when to try again',
}

/** One named response for each set of error codes. Operations refer to it and add a description of the causes. */
export class SharedResponses {
  readonly all: Record<string, OperationResponse> = {}
  readonly #envelope: Envelope

  constructor(envelope: Envelope) {
    this.#envelope = envelope
  }

  refer(cases: readonly ErrorCase[], headers: object): Reference {
    const codes = [...new Set(cases.map(([code]) => code))]
    const name = codes.map(pascalCase).join('Or')
    const response = this.all[name] ?? this.#create(codes, new Map(cases.toReversed()))
    // Contains the headers of all operations that refer to it: a single error need not have all of them.
    response.headers = { ...response.headers, ...headers }
    this.all[name] = response
    const description = cases.map(([code, message]) => `\`${code}\`: ${message}`).join('. ')
    return { $ref: `#/components/responses/${name}`, description }
  }

  #create(codes: readonly ErrorCode[], messages: ReadonlyMap<ErrorCode, string>): OperationResponse {
    const examples = codes.map((code) => {
      const message = messages.get(code) ?? ''
      const value = this.#envelope.render({ code, message, requestId: 'req_01kq3v7m2x8n4r6t0w9y5z1abc' })
      return [code, { summary: message, value }]
    })
    return {
      description: codes.map((code) => `\`${code}\`: ${MEANINGS[code]}.`).join(' '),
      content: {
        'application/json': {
          schema: { $ref: '#/components/schemas/ErrorResponse' },
          examples: Object.fromEntries(examples),
        },
      },
    }
  }
}

/** `not_found` as `NotFound`. */
function pascalCase(code: string): string {
  return code.replace(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase())
}

const text = (description: string, example: string) => ({ description, schema: { type: 'string' }, example })
const whole = (description: string, example: number) => ({ description, schema: { type: 'integer' }, example })

const POLICY = 'The limit of this tier, and the length of the window in seconds.'

const RATE_LIMIT_HEADERS = {
  'draft-6': {
    'RateLimit-Policy': text(POLICY, '1000;w=60'),
    'RateLimit-Limit': whole('How many requests this window allows.', 1000),
    'RateLimit-Remaining': whole('How many requests are left in this window.', 999),
    'RateLimit-Reset': whole('Seconds until the window ends.', 60),
  },
  'draft-8': {
    'RateLimit-Policy': text(POLICY, '"authenticated";q=1000;w=60'),
    RateLimit: text('How many requests are left, and the seconds until the window ends.', '"authenticated";r=999;t=60'),
  },
} as const

const HEADERS = {
  'X-Request-Id': text('The id of this request: your own if you sent a valid one.', 'req_01kq3v7m2x8n4r6t0w9y5z1abc'),
  ETag: text('The version, for `If-Match`.', '"3"'),
  Location: text(
    'Where to read the new record, or the operation that was started.',
    '/v1/projects/prj_01kq3v7m2x8n4r6t0w9y5z1abc',
  ),
  'Idempotency-Replayed': text('`true` when this repeats the first answer.', 'true'),
  'Retry-After': whole('Try again after this many seconds.', 1),
  'WWW-Authenticate': text('Which credential or scope is missing.', 'Bearer error="invalid_token"'),
} as const

export function componentHeaders(style: RateLimitHeaderStyle): object {
  return { ...HEADERS, ...RATE_LIMIT_HEADERS[style] }
}

/** The headers of a response with this status. */
export function headersOf(route: RouteOptions, status: string, style: RateLimitHeaderStyle): object {
  const { access, versioned } = route.config ?? {}
  const isSuccess = status.startsWith('2')
  const isCreation = hasHeader(route.schema, 'idempotency-key')
  // The erasure of a user: the answer names the operation to follow.
  const startsOperation = route.method === 'DELETE' && status === '202'
  const isCharged = access !== undefined && mayBeCharged(access, status)
  const present: Record<keyof typeof HEADERS, boolean> = {
    'X-Request-Id': true,
    ETag: (isSuccess || status === '304') && versioned === true,
    Location: isSuccess && (isCreation || startsOperation),
    'Idempotency-Replayed': isSuccess && isCreation,
    'Retry-After': ['429', '503'].includes(status) || (status === '409' && isCreation),
    'WWW-Authenticate': ['401', '403'].includes(status),
  }
  const names = [
    ...Object.entries(present).flatMap(([name, isPresent]) => (isPresent ? [name] : [])),
    ...(isCharged ? Object.keys(RATE_LIMIT_HEADERS[style]) : []),
  ]
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]))
}

function mayBeCharged(access: Access, status: string): boolean {
  if (access.kind === 'public') return access.charged
  // An authentic callback is not charged to any rate limit.
  return access.kind !== 'callback' || status === '401' || status === '429'
}
