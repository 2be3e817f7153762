import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { MAX_KID_LENGTH } from '../../src/auth/issuer/jwk.ts'
import { TokenFault } from '../../src/auth/token-fault.ts'
import { parseToken } from '../../src/auth/token-format.ts'

const encode = (text: string | Buffer) => Buffer.from(text).toString('base64url')
const HEADER = { alg: 'RS256', kid: 'key-1' }
const tokenOf = (header: string | object, payload: string | object = '{"sub":"ada"}') =>
  [...[header, payload].map((part) => encode(typeof part === 'string' ? part : JSON.stringify(part))), 'c2ln'].join('.')

function refuses(token: string, reason: string, message: RegExp): void {
  assert.throws(
    () => parseToken(token),
    (error) => {
      assert.ok(error instanceof TokenFault)
      assert.equal(error.reason, reason, error.message)
      assert.match(error.message, message)
      return true
    },
  )
}

describe('the spelling of a token', () => {
  test('a well-formed token gives its kid and its claims', () => {
    assert.deepEqual(parseToken(tokenOf(HEADER)), { alg: 'RS256', kid: 'key-1', claims: { sub: 'ada' } })
    for (const typ of ['JWT', 'jwt', 'at+jwt', 'AT+JWT', 'application/at+jwt', 'Application/AT+JWT'])
      assert.equal(parseToken(tokenOf({ ...HEADER, typ })).kid, 'key-1')
    assert.equal(parseToken(tokenOf({ ...HEADER, x5t: 'thumbprint' })).kid, 'key-1')
    const longest = 'k'.repeat(MAX_KID_LENGTH)
    assert.equal(parseToken(tokenOf({ ...HEADER, kid: longest })).kid, longest)
  })

  test('a token has exactly three parts', () => {
    const [header = '', payload = ''] = tokenOf(HEADER).split('.')
    for (const token of ['', header, `${header}.${payload}`, `${tokenOf(HEADER)}.c2ln`, `${tokenOf(HEADER)}.`]) {
      refuses(token, 'malformed', /three parts/)
    }
  })

  test('each part is canonical base64url', () => {
    const [header = '', payload = ''] = tokenOf(HEADER).split('.')
    for (const signature of ['', 'c2ln=', 'c2 ln', 'c2+n', 'c2/n', 'c2lnA', 'c2l', '\u00e9c2ln']) {
      refuses(`${header}.${payload}.${signature}`, 'malformed', /canonical base64url/)
    }
    refuses(`${header}=.${payload}.c2ln`, 'malformed', /canonical base64url/)
    refuses(`${header}.${payload} .c2ln`, 'malformed', /canonical base64url/)
  })

  test('header and payload are JSON objects in UTF-8', () => {
    for (const text of ['{', 'no', '\ufeff{"sub":"ada"}', Buffer.from([0x22, 0xff, 0x22])]) {
      refuses(`${encode(JSON.stringify(HEADER))}.${encode(text)}.c2ln`, 'malformed', /not JSON in UTF-8/)
    }
    for (const text of ['null', '[]', '"text"', '7']) refuses(tokenOf(HEADER, text), 'malformed', /not a JSON object/)
    refuses(tokenOf('[]'), 'malformed', /not a JSON object/)
  })

  test('no name is given twice, on the first level', () => {
    for (const text of [
      '{"sub":"a","sub":"b"}',
      '{"a":{"x":1},"a":2}',
      '{"a":[{"x":1}],"b":1,"b":2}',
      '{"\\u0061":1,"a":2}',
    ]) {
      refuses(tokenOf(HEADER, text), 'malformed', /repeats a name/)
    }
    const fine = [
      '{}',
      '{"a":":","b":"x:y"}',
      '{"a":"\\":","b":{"x":1,"y":{"z":2}},"c":[1,{"d":3}]}',
      '{"a\\\\":1,"b:":2}',
      '{"a":"]}","b":1}',
    ]
    fine.push(`{"a":${'['.repeat(200)}${']'.repeat(200)},"b":1}`)
    for (const text of fine) assert.deepEqual(parseToken(tokenOf(HEADER, text)).claims, JSON.parse(text))
  })

  test('the algorithm is RS256 and nothing else', () => {
    for (const alg of ['none', 'HS256', 'rs256', 'RS512', '', null, 7, ['RS256']]) {
      refuses(tokenOf({ ...HEADER, alg }), 'algorithm', /not RS256/)
    }
    refuses(tokenOf({ kid: 'key-1' }), 'algorithm', /not RS256/)
  })

  test('parameters that change what is verified are refused with any content', () => {
    for (const name of ['crit', 'b64', 'jwk', 'jku', 'x5u', 'x5c']) {
      for (const value of [null, [], 'x', true]) {
        refuses(tokenOf({ ...HEADER, [name]: value }), 'header', new RegExp(`parameter ${name} is not accepted`))
      }
    }
  })

  test('a type, if given, is that of an access token', () => {
    for (const typ of ['JWS', '', 7, null, 'id+jwt', 'application/jwt', ['jwt']])
      refuses(tokenOf({ ...HEADER, typ }), 'header', /The type/)
  })

  test('the kid is a text of bounded length', () => {
    for (const kid of [undefined, '', 7, null, 'k'.repeat(MAX_KID_LENGTH + 1), ['key-1']]) {
      refuses(tokenOf({ ...HEADER, kid }), 'header', /kid is missing or not acceptable/)
    }
  })
})
