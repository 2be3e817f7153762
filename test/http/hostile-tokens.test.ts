import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import { createServiceKey } from '../../src/auth/service-key.ts'
import { systemRandom } from '../../src/core/random.ts'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { assertError } from '../support/assert-error.ts'
import { goodTokens } from '../support/good-tokens.ts'
import { type HostileToken, hostileTokens } from '../support/hostile-tokens.ts'
import type { TestResponse } from '../support/http-client.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { forEachService, onOneService, type ServiceUnderTest, type TestService } from '../support/service.ts'

const clock = new ManualClock()
const idp = await startIdentityProvider({ clock })
const hostile = await hostileTokens(idp)
const good = goodTokens(idp)
after(() => idp.close())

const MISSING = { status: 401, code: 'unauthorized', message: 'Missing bearer token' } as const
const INVALID = { status: 401, code: 'unauthorized', message: 'Invalid or expired token' } as const
const INVALID_KEY = { status: 401, code: 'unauthorized', message: 'Invalid or expired API key' } as const

describe('hostile credentials at the gate', () => {
  onOneService((under) => {
    const start = sharedStart(under)

    test('every hostile token is refused', async () => {
      const service = await start()
      const sent = hostile.filter(({ token }) => canTravel(token))
      assert.ok(sent.length >= 150, `only ${sent.length} hostile tokens`)
      for (const attack of sent) {
        const answer = await sendToken(service, attack.token)
        try {
          assertRefused(service, attack, answer)
        } catch (error) {
          throw new Error(`The token with ${attack.name} was not refused rightly`, { cause: error })
        }
      }
    })

    test('a much too long token is a 401 as long as the headers fit', async () => {
      const service = await start()
      for (const length of [8_193, 16_384, 20_000, 32_000]) {
        assertError(service, await sendToken(service, 'x'.repeat(length)), INVALID)
      }
      const tooLarge = { status: 431, code: 'headers_too_large', message: 'The headers are too large' } as const
      assertError(service, await sendToken(service, 'x'.repeat(33_000)), tooLarge)
    })

    test('an unusual but valid token is accepted', async () => {
      const service = await start()
      for (const { name, token } of good) {
        const answer = await service.request('GET', '/v1/users/me', { token })
        assert.equal(answer.status, 200, `${name}: ${answer.text}`)
      }
    })

    test('the scheme may be written in any case, with any number of blanks', async () => {
      const service = await start()
      const token = service.tokenFor()
      for (const authorization of [`bearer ${token}`, `BEARER ${token}`, `Bearer   ${token}`, `Bearer ${token}   `]) {
        const answer = await service.request('GET', '/v1/users/me', { headers: { authorization } })
        assert.equal(answer.status, 200, authorization.replace(token, '…'))
      }
    })

    test('a header that is not of the bearer form counts as a missing token', async () => {
      const service = await start()
      const token = service.tokenFor()
      const values = ['', ' ', 'Bearer', 'Bearer ', 'Basic YTpi', token, `Token ${token}`, `Bearer: ${token}`]
      for (const authorization of [...values, `Bearer ${token} x`, `Bearer\t${token}`, `Bearer${token}`]) {
        const answer = await service.request('GET', '/v1/users/me', { headers: { authorization } })
        assertError(service, answer, MISSING)
        assert.equal(answer.headers['www-authenticate'], 'Bearer')
      }
    })

    test('two Authorization headers are refused, even when both are right', async () => {
      const service = await start()
      const token = service.tokenFor()
      const send = (...lines: string[]) =>
        service.exchange(['GET /v1/users/me HTTP/1.1', 'Host: x', ...lines, 'Connection: close', '', ''].join('\r\n'))
      const one = await send(`Authorization: Bearer ${token}`)
      assert.equal(one.status, 200, one.text)
      const right = `Authorization: Bearer ${token}`
      for (const [first, second] of [
        [right, right],
        [right, 'authorization: Bearer garbage'],
        ['AUTHORIZATION: Bearer garbage', right],
        [right, 'Authorization:'],
      ] as const) {
        assertError(service, await send(first, second), INVALID)
      }
      // The first is no bearer credential, so there is no token to speak of.
      assertError(service, await send('Authorization: Basic YTpi', right), MISSING)
    })

    test('a token in the query or the body is no credential', async () => {
      const service = await start()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      assertError(service, await service.request('GET', `/v1/projects?access_token=${token}`), MISSING)
      const raw = `access_token=${token}`
      const headers = { 'content-type': 'application/x-www-form-urlencoded' }
      assertError(service, await service.request('POST', '/v1/projects', { raw, headers }), MISSING)
    })
  })

  forEachService((under) => {
    const start = sharedStart(under)

    test('a hostile API key is refused before and after the database is asked', async () => {
      const service = await start()
      const { key } = await newAccount(service)
      assert.equal((await service.request('GET', '/v1/projects', { key })).status, 200)
      const unknown = createServiceKey(systemRandom)
      const attacks = {
        empty: '',
        'a bad checksum': key.slice(0, -1) + (key.endsWith('0') ? '1' : '0'),
        'a typo': key.replace(/^pak_./, (start) => (start === 'pak_a' ? 'pak_b' : 'pak_a')),
        'another prefix': key.replace('pak_', 'sk_'),
        'the prefix in capitals': key.replace('pak_', 'PAK_'),
        'a letter more': `${key}0`,
        'a letter less': key.slice(0, -1),
        'a key that was never created': unknown,
        'the key twice': `${key},${key}`,
        'the key as a bearer credential': `Bearer ${key}`,
        'statement text': `' or 1=1 --`,
        'letters beyond ASCII': 'pak_\u00e9\u00e8',
      }
      for (const [name, attack] of Object.entries(attacks)) {
        const answer = await service.request('GET', '/v1/projects', { key: attack })
        assertError(service, answer, INVALID_KEY)
        assert.match(String(answer.headers['www-authenticate']), /^Bearer error="invalid_token"/, name)
      }
      const asToken = await service.request('GET', '/v1/projects', { token: key })
      assertError(service, asToken, INVALID)
      const twice = await service.request('GET', '/v1/projects', { headers: { 'x-api-key': [key, key] } })
      assertError(service, twice, INVALID_KEY)
    })

    test('an expired or revoked API key is refused', async () => {
      const service = await start()
      const expires_at = new Date(clock.now() + 1_000).toISOString()
      const expiring = await newAccount(service, { expires_at })
      assert.equal((await service.request('GET', '/v1/projects', { key: expiring.key })).status, 200)
      await clock.leap(1_000)
      assertError(service, await service.request('GET', '/v1/projects', { key: expiring.key }), INVALID_KEY)

      const revoked = await newAccount(service)
      assert.equal((await service.request('GET', '/v1/projects', { key: revoked.key })).status, 200)
      await service.request('DELETE', revoked.path, { token: service.tokenFor({ scopes: ['admin:*'] }) })
      assertError(service, await service.request('GET', '/v1/projects', { key: revoked.key }), INVALID_KEY)
    })

    test('a request with a token and a key needs both to be right, and the token names the caller', async () => {
      const service = await start()
      const { key } = await newAccount(service, { scopes: ['write:projects'] })
      const token = service.tokenFor({ sub: 'both', scopes: ['read:projects'] })
      const read = await service.request('GET', '/v1/projects', { token, key })
      assert.equal(read.status, 200, 'the scope of the token counts')
      const write = await service.request('POST', '/v1/projects', { token, key, body: { name: 'x' } })
      assertError(service, write, { status: 403, code: 'forbidden', message: 'Insufficient scope' })
      const me = await service.request<{ sub: string }>('GET', '/v1/users/me', { token, key })
      assert.equal(me.body.sub, 'both')

      const attempt = (headers: Record<string, string>) => service.request('GET', '/v1/projects', { headers })
      const authorization = `Bearer ${token}`
      assertError(service, await attempt({ authorization, 'x-api-key': 'garbage' }), INVALID_KEY)
      assertError(service, await attempt({ authorization, 'x-api-key': '' }), INVALID_KEY)
      assertError(service, await attempt({ authorization: 'Bearer garbage', 'x-api-key': key }), INVALID)
      assertError(service, await attempt({ authorization: 'Basic YTpi', 'x-api-key': key }), MISSING)
      assertError(service, await attempt({ authorization: '', 'x-api-key': key }), MISSING)
    })
  })
})

/** One service for all tests of a block, with this file's clock and identity provider. */
function sharedStart(under: ServiceUnderTest): () => Promise<TestService> {
  let started: Promise<TestService> | undefined
  return () => {
    started ??= under.start({ clock, idp })
    return started
  }
}

/** False for a token with a line break: the header line ends there, and the part before it is a good token. */
function canTravel(token: string): boolean {
  return !/[\r\n]/.test(token)
}

/** Sends raw bytes, because HTTP clients refuse some of these tokens. A long token is cut: the server answers before its end. */
function sendToken(service: TestService, token: string): Promise<TestResponse> {
  const credential = `Authorization: Bearer ${token.slice(0, 40_000)}`
  const lines = ['GET /v1/users/me HTTP/1.1', 'Host: x', 'Connection: close', credential, '', '']
  return service.exchange(lines.join('\r\n'))
}

function assertRefused(service: TestService, { token }: HostileToken, answer: TestResponse): void {
  if (token.includes('\u0000')) {
    assertError(service, answer, { status: 400, code: 'invalid_request', message: 'The request is not valid HTTP' })
  } else if (token.length > 32_000) {
    assertError(service, answer, { status: 431, code: 'headers_too_large', message: 'The headers are too large' })
  } else if (/^ \S+$|^\S+ $/.test(token)) {
    // HTTP ignores blanks around a header value, so the server reads the good token.
    assert.equal(answer.status, 200)
  } else if (token === '' || /\s/.test(token)) {
    assertError(service, answer, MISSING)
    assert.equal(answer.headers['www-authenticate'], 'Bearer')
  } else {
    assertError(service, answer, INVALID)
    const expected = 'Bearer error="invalid_token", error_description="Invalid or expired token"'
    assert.equal(answer.headers['www-authenticate'], expected)
  }
}

async function newAccount(service: TestService, fields: object = {}): Promise<{ key: string; path: string }> {
  const token = service.tokenFor({ scopes: ['admin:*'] })
  const body = { name: 'Backend', scopes: ['read:projects'], ...fields }
  const created = await service.request<{ key: string }>('POST', '/v1/service-accounts', { token, body })
  assert.equal(created.status, 201, created.text)
  return { key: created.body.key, path: String(created.headers.location) }
}
