import type { RouteOptions } from 'fastify'
import type { Access } from '../../http/gate/access.ts'
import type { RateLimitHeaderStyle } from '../../limits/rate-limit-headers.ts'
import { hasHeader } from './openapi-operation.ts'

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
  'X-Request-Id': text('Names this request: the one you sent, or one of ours.', 'req_01kq3v7m2x8n4r6t0w9y5z1abc'),
  ETag: text('The version, for `If-Match`.', '"3"'),
  Location: text('Where what was made can be read.', '/v1/projects/prj_01kq3v7m2x8n4r6t0w9y5z1abc'),
  'Idempotency-Replayed': text('`true` where this is the first answer once more.', 'true'),
  'Retry-After': whole('In how many seconds to come back.', 1),
  'WWW-Authenticate': text('Which credential or scope is missing.', 'Bearer error="invalid_token"'),
  Allow: text('The methods this path knows.', 'GET, HEAD, POST'),
} as const

export function componentHeaders(style: RateLimitHeaderStyle): object {
  return { ...HEADERS, ...RATE_LIMIT_HEADERS[style] }
}

/** What an answer of this status tells in its headers. Without a route, one that belongs to none. */
export function headersOf(route: RouteOptions | null, status: string, style: RateLimitHeaderStyle): object {
  const { access, versioned } = route?.config ?? {}
  const isGood = status.startsWith('2')
  const isCreation = hasHeader(route?.schema, 'idempotency-key')
  const isCharged = access ? mayBeCharged(access, status) : status === '405'
  const carries: Partial<Record<keyof typeof HEADERS, boolean>> = {
    'X-Request-Id': true,
    ETag: isGood && versioned === true,
    Location: isGood && isCreation,
    'Idempotency-Replayed': isGood && isCreation,
    'Retry-After': ['429', '503'].includes(status) || (status === '409' && isCreation),
    'WWW-Authenticate': ['401', '403'].includes(status),
    Allow: status === '405',
  }
  const names = [
    ...Object.entries(carries).flatMap(([name, isCarried]) => (isCarried ? [name] : [])),
    ...(isCharged ? Object.keys(RATE_LIMIT_HEADERS[style]) : []),
  ]
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]))
}

function mayBeCharged(access: Access, status: string): boolean {
  if (access.kind === 'public') return access.charged
  // An authentic callback is charged to nobody.
  return access.kind !== 'callback' || status === '401' || status === '429'
}
