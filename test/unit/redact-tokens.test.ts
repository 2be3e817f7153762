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

const OWN = 'aB3-_zK9nU0x7Qw2Er5Ty8Ui1Op4As6Df-Gh_JkLmN0'
/** Every nth character as an escape of JSON. */
const escaped = (text: string, nth: number) =>
  Array.from(text, (char, n) => (n % nth ? char : `\\u00${char.charCodeAt(0).toString(16)}`)).join('')

test('the token that a callback came with is redacted where it stands alone, in every spelling', () => {
  const upper = escaped(OWN, 1).replace(/(?<=00.)[a-f]/g, (digit) => digit.toUpperCase())
  for (const spelling of [OWN, escaped(OWN, 1), escaped(OWN, 2), escaped(OWN, 7), upper]) {
    const text = `{"a":"${spelling}","b":["see \\"${spelling}\\" or C:\\\\${spelling}"],"${spelling}":"\\u0041"}`
    const redacted = { a: '[redacted]', '[redacted]': 'A' }
    const { b, ...rest } = JSON.parse(withoutTokens(text, OWN)) as { b: string[] }
    assert.deepEqual(rest, redacted, text)
    assert.match(String(b), /^see "\[redacted\]" or C:\\?\[redacted\]$/)
    const nested = JSON.stringify({ log: JSON.stringify({ log: text }) })
    assert.equal(withoutTokens(nested, OWN).split('[redacted]').length, 5, nested)
  }
  const other = `{"a":"${OWN.slice(1)}","b":"${escaped(OWN.slice(0, -1), 2)}"}`
  assert.equal(withoutTokens(other, OWN), other, 'a part of the token is no token')
})

const MB = 1024 * 1024

test('in a text full of paths, the last token is found', () => {
  const paths = `${'/webhooks/'.repeat(MB / 10)}agent?token=s3cret`
  assert.ok(withoutTokens(paths).endsWith('/webhooks/agent?token=[redacted]'))
})

// A search that began anew at every backslash would take hours, and the test would reach its time limit.
test('a text full of backslashes is read once, also where the callback’s own token is searched', () => {
  const backslashes = `\\u0041${'\\'.repeat(4 * MB)}`
  assert.equal(withoutTokens(`${backslashes} ${OWN}`, OWN), `${backslashes} [redacted]`)
})
