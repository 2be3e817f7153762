import assert from 'node:assert/strict'
import type { TestResponse } from './http-client.ts'
import type { NamedOperation } from './openapi-document.ts'

/** Headers that mean something to a client of the API, rather than to HTTP alone. */
const API_HEADERS =
  /^(?:x-request-id|etag|location|idempotency-replayed|retry-after|www-authenticate|allow|ratelimit(?:-\w+)?)$/

/** Checks that an answer has only declared headers, and that a success has all of them. */
export function checkDeclaredHeaders(
  { path, method, operation }: NamedOperation,
  { status, headers }: TestResponse,
): void {
  const name = `${method} ${path} ${status}`
  const declared = Object.keys(operation.responses[status]?.headers ?? {}).map((header) => header.toLowerCase())
  const sent = Object.keys(headers).filter((header) => API_HEADERS.test(header))
  assert.deepEqual(
    sent.filter((header) => !declared.includes(header)),
    [],
    `${name} has a header that is not declared`,
  )
  if (status >= 300) return
  // A replayed answer: it has Idempotency-Replayed, but no ETag.
  const isReplay = headers['idempotency-replayed'] !== undefined
  const mayLack = isReplay ? ['etag'] : ['idempotency-replayed']
  assert.deepEqual(
    declared.filter((header) => headers[header] === undefined && !mayLack.includes(header)),
    [],
    `${name} lacks what is declared`,
  )
}
