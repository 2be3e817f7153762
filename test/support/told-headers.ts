import assert from 'node:assert/strict'
import type { TestResponse } from './http-client.ts'
import type { NamedOperation } from './openapi-document.ts'

/** Headers that mean something to a client of the API, rather than to HTTP alone. */
const TOLD =
  /^(?:x-request-id|etag|location|idempotency-replayed|retry-after|www-authenticate|allow|ratelimit(?:-\w+)?)$/

/** An answer has no such header that is not declared for it, and a good one lacks none that is. */
export function checkTold({ path, method, operation }: NamedOperation, { status, headers }: TestResponse): void {
  const name = `${method} ${path} ${status}`
  const declared = Object.keys(operation.responses[status]?.headers ?? {}).map((header) => header.toLowerCase())
  const told = Object.keys(headers).filter((header) => TOLD.test(header))
  assert.deepEqual(
    told.filter((header) => !declared.includes(header)),
    [],
    `${name} tells what is not declared`,
  )
  if (status >= 300) return
  // The first answer once more: it says so, but not which version it was.
  const isReplay = headers['idempotency-replayed'] !== undefined
  const mayLack = isReplay ? ['etag'] : ['idempotency-replayed']
  assert.deepEqual(
    declared.filter((header) => headers[header] === undefined && !mayLack.includes(header)),
    [],
    `${name} lacks what is declared`,
  )
}
