import fc from 'fast-check'
import { contentType, headerText, hostileBody, hostileText } from './hostile-values.ts'
import type { NamedOperation } from './openapi-document.ts'
import { mutatedOf, type Schema, validOf } from './schema-values.ts'

/** A text as it is, an id the service has given out (by its turn), or bytes of the request line, escapes and all. */
export type PathPart = { text: string } | { known: number } | { bytes: string }

export interface FuzzRequest {
  caller: 'admin' | 'user' | 'key' | 'both' | 'anonymous' | 'junk'
  params: Record<string, PathPart>
  /** Without its question mark. */
  query: string
  headers: readonly (readonly [name: string, value: string])[]
  body: { text: string; contentType: string | undefined } | null
}

/** The payload of a callback as senders really write it, with more in it than the document promises to read. */
export const CALLBACK_BODY: Schema = {
  type: 'object',
  required: ['thread_id', 'run_id', 'status'],
  properties: {
    thread_id: { type: 'string', format: 'uuid' },
    run_id: { type: 'string', format: 'uuid' },
    status: { type: 'string', enum: ['success', 'error', 'timeout', 'interrupted', 'pending', 'running', 'novel'] },
    values: { type: ['object', 'null'], properties: { report: {}, messages: {}, usage: {} } },
    error: { type: ['string', 'object', 'null'], maxLength: 300 },
    metadata: { type: 'object', properties: { job_id: { type: 'string', maxLength: 255 }, trace_id: {} } },
    kwargs: { type: 'object', properties: { webhook: { type: 'string' } } },
    trace_id: {},
    tracer_trace_id: {},
  },
}

const WEIRD_HEADERS = [
  'if-match',
  'if-none-match',
  'idempotency-key',
  'last-event-id',
  'x-request-id',
  'x-forwarded-for',
  'x-forwarded-proto',
  'x-http-method-override',
  'accept',
  'accept-encoding',
  'cookie',
  'origin',
  'range',
  'forwarded',
  'webhook-id',
  'webhook-timestamp',
  'webhook-signature',
] as const

/** Requests of one operation: valid, invalid in one part, or invalid in all parts. */
export function requestsOf(named: NamedOperation): fc.Arbitrary<FuzzRequest> {
  const right = partsOf(named, 'right')
  const wrong = partsOf(named, 'wrong')
  const parts = Object.keys(right) as (keyof FuzzRequest)[]
  const oneWrong = fc
    .constantFrom(...parts)
    .chain((victim) => fc.record({ ...right, [victim]: wrong[victim] }) as fc.Arbitrary<FuzzRequest>)
  return fc.oneof(
    { weight: 3, arbitrary: fc.record(right) },
    { weight: 6, arbitrary: oneWrong },
    { weight: 1, arbitrary: fc.record(wrong) },
  )
}

type Parts = { [Part in keyof FuzzRequest]: fc.Arbitrary<FuzzRequest[Part]> }

function partsOf(named: NamedOperation, manner: 'right' | 'wrong'): Parts {
  const { path, operation } = named
  const parameters = operation.parameters ?? []
  const isRight = manner === 'right'
  return {
    caller: isRight
      ? fc.oneof(
          { weight: 5, arbitrary: fc.constant('admin' as const) },
          fc.constantFrom('user' as const, 'key' as const),
        )
      : fc.constantFrom('user', 'key', 'both', 'anonymous', 'junk'),
    params: fc.record(
      Object.fromEntries(
        Array.from(path.matchAll(/\{(\w+)\}/g), ([, name = '']) => [name, isRight ? known : wrongPart]),
      ),
    ),
    query: (isRight ? rightQuery : wrongQuery)(parameters.filter((one) => one.in === 'query')),
    headers: isRight ? rightHeaders(parameters.filter((one) => one.in === 'header')) : wrongHeaders,
    body: bodyOf(named, isRight),
  }
}

const known: fc.Arbitrary<PathPart> = fc.nat({ max: 50 }).map((turn) => ({ known: turn }))

const wrongPart: fc.Arbitrary<PathPart> = fc.oneof(
  hostileText.filter((text) => text !== '').map((text) => ({ text })),
  fc
    .constantFrom('%', '%zz', '%c3%28', '%ed%a0%80', '%00', '%2f', '%2e%2e%2f', ';a=b', '::', '\u00ff')
    .map((bytes) => ({ bytes })),
)

type Parameters = readonly { name: string; schema: Schema }[]

function rightQuery(parameters: Parameters): fc.Arbitrary<string> {
  // A valid cursor can only come from an earlier answer.
  const open = parameters.filter(({ name }) => name !== 'cursor' && name !== 'after')
  const values = fc.record(Object.fromEntries(open.map(({ name, schema }) => [name, validOf(schema)])), {
    requiredKeys: [],
  })
  return values.map((chosen) =>
    Object.entries(chosen)
      .map(([name, value]) => `${name}=${percentEncode(String(value))}`)
      .join('&'),
  )
}

function wrongQuery(parameters: Parameters): fc.Arbitrary<string> {
  const names = parameters.map(({ name }) => name)
  const name = fc.constantFrom(...names, ...names, 'limit', 'cursor', 'job_id', 'token', '__proto__', 'unknown', '')
  const schemas = new Map(parameters.map((parameter) => [parameter.name, parameter.schema]))
  const pair = name.chain((key) =>
    fc
      .tuple(
        fc.constantFrom('', '', '', '[]', '[0]', '[a]', '.a'),
        mutatedOf(schemas.get(key) ?? { type: 'string' }),
        fc.constantFrom('encoded', 'encoded', 'encoded', 'bare'),
      )
      .map(([suffix, value, manner]) => {
        const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? '')
        return `${key}${suffix}${manner === 'bare' ? '' : `=${percentEncode(text.slice(0, 1_500))}`}`
      }),
  )
  const escapes = fc.constantFrom(
    '%',
    'limit=%',
    'cursor=%ff',
    '&&&',
    '=',
    '?',
    'limit=1&limit=2',
    'a'.repeat(3_000),
    '#',
  )
  return fc.oneof(
    { weight: 3, arbitrary: fc.array(pair, { minLength: 1, maxLength: 3 }).map((pairs) => pairs.join('&')) },
    { weight: 2, arbitrary: cursors.map((cursor) => `cursor=${cursor}`) },
    { weight: 1, arbitrary: escapes },
  )
}

/** Invalid cursors: of other lists, with wrong values, or empty. */
const cursors: fc.Arbitrary<string> = fc
  .tuple(
    fc.constantFrom('projects', 'jobs', 'timeline', 'callbacks', 'devices', 'users', 'service-accounts', 'nothing'),
    fc.array(fc.oneof(hostileText, fc.constantFrom<unknown>(0, -1, 1e300, 1.5, null, [], '2026')), { maxLength: 3 }),
  )
  .map((position) => Buffer.from(JSON.stringify(position.flat())).toString('base64url'))

function rightHeaders(parameters: Parameters): fc.Arbitrary<[string, string][]> {
  const names = parameters.map((one) => one.name)
  const key = fc.nat({ max: 20 }).map((n): [string, string][] => [['idempotency-key', `key-${n}`]])
  const match = fc.constantFrom<[string, string][]>([['if-match', '*']], [['if-match', '"1"']], [])
  if (names.includes('idempotency-key')) return fc.oneof(key, fc.constant<[string, string][]>([]))
  return names.includes('if-match') ? match : fc.constant([])
}

const wrongHeaders: fc.Arbitrary<[string, string][]> = fc.array(
  fc.tuple(fc.constantFrom(...WEIRD_HEADERS), headerText),
  { minLength: 1, maxLength: 4 },
)

function bodyOf({ path, method, operation }: NamedOperation, isRight: boolean): Parts['body'] {
  const schema = path.startsWith('/webhooks/')
    ? CALLBACK_BODY
    : operation.requestBody?.content['application/json']?.schema
  if (isRight) {
    return schema ? validOf(schema).map((value) => document(value, 'application/json')) : fc.constant(null)
  }
  const typed = fc.tuple(schema ? validOf(schema) : fc.constant({}), contentType)
  const kinds = [
    fc.constant(null),
    fc.tuple(hostileBody, contentType).map(([text, contentType]) => ({ text, contentType })),
    typed.map(([value, type]) => document(value, type)),
  ]
  const mutated = schema ? mutatedOf(schema).map((value) => document(value, 'application/json')) : fc.constant(null)
  // A body to a GET is nothing a client library would send twice.
  return method === 'GET' ? fc.constant(null) : fc.oneof({ weight: 4, arbitrary: mutated }, ...kinds)
}

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'TRACE', 'PROPFIND', 'PURGE', 'QUERY']
const BESIDE = ['', '/docs', '/v1', '/V1/projects', '/v2/projects', 'http://other.test/v1/projects', '*']
const JOINTS = ['/', '//', '/.', '/..', '%2f', ';', ':', '%', '?', '#']

/** Request lines that begin like a known path, with any end. */
export function targetsBeside(paths: readonly string[]): fc.Arbitrary<{ method: string; target: string }> {
  const pieces = fc.array(fc.oneof(hostileText.map(percentEncode), fc.constantFrom(...JOINTS)), { maxLength: 4 })
  const target = fc
    .tuple(fc.constantFrom(...paths, ...BESIDE), pieces)
    .map(([start, rest]) => `${start}${rest.join('')}`.slice(0, 4_000) || '/')
  return fc.record({ method: fc.constantFrom(...METHODS), target })
}

function document(value: unknown, contentType: string | undefined) {
  return { text: JSON.stringify(value) ?? '', contentType }
}

/** Also encodes text that UTF-8 cannot express, as invalid bytes, like a careless client. */
export function percentEncode(text: string): string {
  if (text.isWellFormed()) return encodeURIComponent(text)
  return Array.from(text, (char) => (char.isWellFormed() ? encodeURIComponent(char) : '%ed%a0%80')).join('')
}
