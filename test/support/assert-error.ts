import assert from 'node:assert/strict'
import type { ErrorCode } from '../../src/core/errors.ts'
import type { TestResponse } from './http-client.ts'
import type { TestService } from './service.ts'

export interface ExpectedError {
  status: number
  code: ErrorCode
  message?: string | RegExp
}

/** Words that reveal internals: stacks, statements, files, drivers. */
const INTERNALS =
  /\.[jt]s:\d|node_modules|node:internal|\n\s+at |\bselect\b|\binsert into\b|SQLITE_|ECONN|FST_ERR|\bcause\b/i

/** Asserts that an answer is exactly the envelope of the service's variant: these keys and no others. */
export function assertError(
  { variant }: Pick<TestService, 'variant'>,
  response: TestResponse,
  { status, code, message }: ExpectedError,
): void {
  assert.equal(response.status, status, `${response.status} ${response.text}`)
  assert.match(response.headers['content-type'] ?? '', /^application\/json; ?charset=utf-8$/)
  const requestId = response.headers['x-request-id']
  assert.match(String(requestId), /^[A-Za-z0-9._-]{1,128}$/, `X-Request-Id of ${response.text}`)
  const shown = messageOf(response)
  const expected =
    variant === 'A' ? { detail: { code, message: shown } } : { error: { code, message: shown, requestId } }
  assert.deepEqual(response.body, expected)
  assert.doesNotMatch(response.text, INTERNALS)
  if (typeof message === 'string') assert.equal(shown, message)
  else if (message) assert.match(shown, message)
}

export function messageOf({ body }: TestResponse): string {
  const { detail, error } = body as { detail?: { message?: unknown }; error?: { message?: unknown } }
  const message = (detail ?? error)?.message
  assert.equal(typeof message, 'string', 'an error must have a message')
  return String(message)
}
