import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { withoutTokens } from '../../src/runtime/redact-tokens.ts'

/** The plain rule, which takes quadratic time on a text full of paths. */
const PLAIN_RULE =
  /((?:\/|\\u002f|%2f)webhooks(?:\\?\/|\\u002f|%2f)[^"\s]{0,500}?(?:[?&]|\\u0026|\\u003f|%26|%3f)token(?:=|\\u003d|%3d))[^"&\\\s%#]+/gi

const piece = fc.oneof(
  fc.constantFrom(
    '/webhooks/',
    '/webhooks\\/',
    '\\u002Fwebhooks\\u002f',
    '%2Fwebhooks%2F',
    'webhooks/',
    '/',
    'WebHooks',
  ),
  fc.constantFrom('?token=', '&token=', '\\u0026token\\u003d', '%3Ftoken%3D', 'token=', '&', '?', '='),
  fc.constantFrom('s3cret', 'agent', 'jobs/report', 'job_id=1', '"', ' ', '\\', '%', '#', '\\n', 'é'),
  fc.constantFrom('x'.repeat(240), 'x'.repeat(499), 'x'.repeat(500), 'x'.repeat(501)),
  fc.string({ maxLength: 3 }),
)
const texts = fc.array(piece, { maxLength: 20 }).map((pieces) => pieces.join(''))

test('the token of a callback URL is redacted as by the plain rule, in any text', () => {
  fc.assert(
    fc.property(texts, (text) => {
      assert.equal(withoutTokens(text), text.replace(PLAIN_RULE, '$1[redacted]'))
    }),
    { numRuns: 5_000 },
  )
})

const MB = 1024 * 1024

/** The CPU time of the fastest of several calls, in microseconds: other processes and the compiler only make it longer. */
function cpuTimeOf(call: () => void): number {
  const times = Array.from({ length: 5 }, () => {
    const before = process.cpuUsage()
    call()
    const { user, system } = process.cpuUsage(before)
    return user + system
  })
  return Math.min(...times)
}

test('a text full of paths is read once: it takes little more time than plain text, and its last token is found', () => {
  const paths = `${'/webhooks/'.repeat(MB / 10)}agent?token=s3cret`
  const plain = 'plain text '.repeat(MB / 11)
  assert.ok(withoutTokens(paths).endsWith('/webhooks/agent?token=[redacted]'))
  // Measured: 5 times as long. With the plain rule, it is more than 1,000 times as long.
  const ratio = cpuTimeOf(() => withoutTokens(paths)) / cpuTimeOf(() => withoutTokens(plain))
  assert.ok(ratio < 50, `${ratio} times as long`)
})
