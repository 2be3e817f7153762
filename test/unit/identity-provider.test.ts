import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { createLocalJWKSet, type JSONWebKeySet, jwtVerify } from 'jose'
import { type IdentityProvider, startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { lendRsaPairs } from '../support/rsa-keys.ts'
import { assertStandsAlone } from '../support/sandbox-page.ts'
import { TokenForge } from '../support/token-forge.ts'

const START_MS = Date.UTC(2026, 0, 1)
let idp: IdentityProvider

before(async () => {
  idp = await startIdentityProvider({ clock: new ManualClock(START_MS), apiUrl: 'http://127.0.0.1:9999' })
})
after(() => idp.close())

const ask = (form: Record<string, string> | string) =>
  fetch(idp.tokenUrl, { method: 'POST', body: new URLSearchParams(form) })

async function issued(form: Record<string, string>): Promise<Record<string, unknown>> {
  const response = await ask(form)
  assert.equal(response.status, 200)
  const { access_token: token, token_type: type } = (await response.json()) as Record<string, string>
  assert.equal(type, 'Bearer')
  assert.ok(token)
  const keys = (await (await fetch(idp.jwksUrl)).json()) as JSONWebKeySet
  const options = { issuer: idp.issuer, algorithms: ['RS256'], currentDate: new Date(START_MS) }
  return (await jwtVerify(token, createLocalJWKSet(keys), options)).payload
}

async function untilHits(provider: IdentityProvider, hits: number): Promise<void> {
  while (provider.hits < hits) await new Promise(setImmediate)
}

test('discovery leads to the key set and the token endpoint', async () => {
  const response = await fetch(`${idp.issuer}/.well-known/openid-configuration`)
  const document = (await response.json()) as Record<string, string>
  assert.equal(document.issuer, idp.issuer)
  assert.equal(document.jwks_uri, `${idp.issuer}/.well-known/jwks.json`)
  assert.equal(document.token_endpoint, idp.tokenUrl)
})

test('the key set shows public halves only', async () => {
  const { keys } = (await (await fetch(idp.jwksUrl)).json()) as { keys: Record<string, unknown>[] }
  assert.deepEqual(Object.keys(keys[0] ?? {}).sort(), ['alg', 'e', 'kid', 'kty', 'n', 'use'])
})

test('the password grant gives a seeded user a token like that of a pool', async () => {
  const claims = await issued({ grant_type: 'password', username: 'ada', password: 'any' })
  assert.deepEqual(Object.keys(claims).sort(), [
    'auth_time',
    'client_id',
    'custom:scopes',
    'email',
    'event_id',
    'exp',
    'iat',
    'iss',
    'jti',
    'origin_jti',
    'scope',
    'sub',
    'token_use',
    'username',
    'version',
  ])
  assert.equal(claims['custom:scopes'], 'read:projects write:projects')
  assert.equal(claims.email, 'ada@example.com')
  assert.equal(claims.token_use, 'access')
  assert.equal(claims.iat, START_MS / 1000)
  assert.equal(claims.exp, START_MS / 1000 + 3600)
})

test('the seeded users hold their scopes', async () => {
  const scopes = async (username: string) => (await issued({ grant_type: 'password', username }))['custom:scopes']
  assert.equal(await scopes('grace'), 'read:projects read:users')
  assert.equal(await scopes('admin'), 'admin:*')
})

test('the client credentials grant uses the subject and scopes of the form', async () => {
  const claims = await issued({
    grant_type: 'client_credentials',
    client_id: 'backend',
    sub: 'u-1',
    email: 'u@example.com',
    scope: 'read:users admin:*',
    expires_in: '60',
  })
  assert.equal(claims.sub, 'u-1')
  assert.equal(claims.client_id, 'backend')
  assert.equal(claims.email, 'u@example.com')
  assert.equal(claims['custom:scopes'], 'read:users admin:*')
  assert.equal(claims.exp, START_MS / 1000 + 60)
})

test('the client credentials grant alone names the client, without email and scopes', async () => {
  const claims = await issued({ grant_type: 'client_credentials', client_id: 'backend' })
  assert.equal(claims.sub, 'backend')
  assert.equal('email' in claims, false)
  assert.equal('custom:scopes' in claims, false)
})

test('a form may change what a seeded user holds', async () => {
  const claims = await issued({ grant_type: 'password', username: 'ada', email: '', scope: '' })
  assert.equal(claims.username, 'ada')
  assert.equal('email' in claims, false)
  assert.equal('custom:scopes' in claims, false)
})

const badForms: [name: string, form: string, error: string][] = [
  ['an empty form', '', 'invalid_request'],
  ['another grant', 'grant_type=implicit', 'unsupported_grant_type'],
  ['an unknown user', 'grant_type=password&username=unknown', 'invalid_grant'],
  ['no user', 'grant_type=password', 'invalid_grant'],
  ['a parameter given twice', 'grant_type=password&username=ada&username=admin', 'invalid_request'],
  ['a lifetime of zero', 'grant_type=client_credentials&expires_in=0', 'invalid_request'],
  ['a lifetime that is no number', 'grant_type=client_credentials&expires_in=soon', 'invalid_request'],
  ['a lifetime of a year', 'grant_type=client_credentials&expires_in=31536000', 'invalid_request'],
  ['an empty subject', 'grant_type=client_credentials&sub=', 'invalid_request'],
  ['a subject too long', `grant_type=client_credentials&sub=${'s'.repeat(256)}`, 'invalid_request'],
  ['a scope with a quote', 'grant_type=client_credentials&scope=a%22b', 'invalid_scope'],
  ['a form over 16 KB', `grant_type=client_credentials&x=${'x'.repeat(1 << 20)}`, 'invalid_request'],
]
for (const [name, form, error] of badForms) {
  test(`${name} is answered with 400 and why`, async () => {
    const response = await ask(form)
    assert.equal(response.status, 400)
    const body = (await response.json()) as Record<string, string>
    assert.equal(body.error, error)
    assert.ok(body.error_description)
  })
}

test('a body that is no form, another method and another path are refused in JSON', async () => {
  const json = await fetch(idp.tokenUrl, {
    method: 'POST',
    body: '{}',
    headers: { 'content-type': 'application/json' },
  })
  assert.equal(json.status, 400)
  const wrongMethod = await fetch(idp.tokenUrl)
  assert.equal(wrongMethod.status, 405)
  assert.equal(wrongMethod.headers.get('allow'), 'POST, OPTIONS')
  assert.equal((await fetch(`${idp.url}/constructor`)).status, 404)
  assert.ok(await wrongMethod.json())
})

const TOKEN_FORM = 'grant_type=password&username=ada'

/** With headers that only a browser sends, or no client: `fetch` sets some of them itself. */
async function askWith(method: string, url: string, headers: Record<string, string>): Promise<IncomingMessage> {
  const type = { 'content-type': 'application/x-www-form-urlencoded' }
  const asking = request(url, { method, headers: { ...type, ...headers } }).end(method === 'POST' ? TOKEN_FORM : '')
  const [response] = (await once(asking, 'response')) as [IncomingMessage]
  response.resume()
  return response
}

test('a page of this machine may fetch a token, whatever its port', async () => {
  const own = new URL(idp.url).host
  for (const origin of ['http://localhost:5173', 'http://127.0.0.1:3000', 'https://[::1]:8443', `http://${own}`]) {
    for (const method of ['OPTIONS', 'POST']) {
      const { statusCode, headers } = await askWith(method, idp.tokenUrl, { origin, 'sec-fetch-site': 'cross-site' })
      assert.equal(statusCode, method === 'POST' ? 200 : 204, origin)
      assert.equal(headers['access-control-allow-origin'], origin)
      assert.equal(headers.vary, 'origin')
    }
  }
  const { statusCode, headers } = await askWith('POST', idp.tokenUrl, {})
  assert.equal(statusCode, 200, 'a program sends no origin')
  assert.equal(headers['access-control-allow-origin'], undefined)
  assert.equal(headers['cache-control'], 'no-store')
})

test('a page of another site gets no token, no key and no page', async () => {
  const foreign: Record<string, string>[] = [
    { origin: 'https://evil.example' },
    { origin: 'null' },
    { origin: 'http://localhost.evil.example' },
    { origin: 'http://127.0.0.1.evil.example' },
    { origin: 'https://evil.example', 'sec-fetch-mode': 'navigate' },
    { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors' },
    { host: 'evil.example' },
    { host: `evil.example:${new URL(idp.url).port}`, origin: 'http://localhost:3000' },
  ]
  for (const headers of foreign) {
    for (const [method, url] of [
      ['POST', idp.tokenUrl],
      ['OPTIONS', idp.tokenUrl],
      ['GET', idp.jwksUrl],
      ['GET', idp.url],
    ] as const) {
      const response = await askWith(method, url, headers)
      assert.equal(response.statusCode, 403, `${method} ${url} ${JSON.stringify(headers)}`)
      assert.equal(response.headers['access-control-allow-origin'], undefined)
    }
  }
})

test('a link from anywhere opens the page', async () => {
  const headers = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate' }
  assert.equal((await askWith('GET', idp.url, headers)).statusCode, 200)
})

test('the page stands alone under a policy with a fresh nonce, and its scripts are sound', () =>
  assertStandsAlone(idp.url))

test('a value in the page’s configuration cannot end its script', async () => {
  const users = [{ username: '</script><b>', name: '$& $1', sub: 's', email: 'e', scopes: [] }]
  const provider = await startIdentityProvider({ users, makeKey: lendRsaPairs() })
  try {
    const html = await (await fetch(provider.url)).text()
    const [, config = ''] = /<script type="application\/json"[^>]*>([\s\S]*?)<\/script>/.exec(html) ?? []
    assert.deepEqual(JSON.parse(config).users, users)
  } finally {
    await provider.close()
  }
})

test('mint can override every claim and header of a valid token', () => {
  const token = idp.mint({
    user: 'grace',
    claims: { email: undefined, x: [1] },
    header: { typ: 'JWT', kid: undefined },
  })
  const [header, payload] = TokenForge.split(token)
  assert.deepEqual(TokenForge.decode(header), { alg: 'RS256', typ: 'JWT' })
  const claims = TokenForge.decode(payload)
  assert.deepEqual(claims.x, [1])
  assert.equal('email' in claims, false)
  assert.equal(claims['custom:scopes'], 'read:projects read:users')
  assert.throws(() => idp.mint({ user: 'unknown' }), /No such sandbox user: unknown/)
})

test('a subject alone is a user without email and scopes', () => {
  const claims = TokenForge.decode(TokenForge.split(idp.mint({ sub: 'u-1' }))[1])
  assert.equal(claims.sub, 'u-1')
  assert.equal('email' in claims, false)
  assert.equal('custom:scopes' in claims, false)
})

test('rotation signs anew and keeps or drops the old key, which can still be asked to sign', async () => {
  const provider = await startIdentityProvider({ makeKey: lendRsaPairs() })
  try {
    const first = provider.kid
    const second = await provider.rotate()
    assert.equal(provider.kid, second)
    assert.deepEqual(
      provider.jwks.keys.map(({ kid }) => kid),
      [first, second],
    )
    const third = await provider.rotate({ keepOld: false })
    assert.deepEqual(
      provider.jwks.keys.map(({ kid }) => kid),
      [third],
    )
    assert.equal(TokenForge.decode(TokenForge.split(provider.mint({ kid: first }))[0]).kid, first)
  } finally {
    await provider.close()
  }
})

test('the provider injects faults, counts requests for keys, and recovers', async () => {
  const provider = await startIdentityProvider({ makeKey: lendRsaPairs() })
  try {
    provider.goDown()
    assert.equal((await fetch(provider.jwksUrl)).status, 503)
    assert.equal((await fetch(provider.url)).status, 503)
    provider.recover()
    provider.breakBody()
    assert.throws(JSON.parse.bind(null, await (await fetch(provider.jwksUrl)).text()), SyntaxError)
    provider.hang()
    const held = fetch(provider.jwksUrl)
    await untilHits(provider, 3)
    provider.recover()
    assert.deepEqual(await (await held).json(), provider.jwks)
    assert.equal(provider.hits, 3)
  } finally {
    await provider.close()
  }
})

test('a provider that closes ends held requests', async () => {
  const provider = await startIdentityProvider({ makeKey: lendRsaPairs() })
  provider.hang()
  const held = Promise.allSettled([fetch(provider.jwksUrl)])
  await untilHits(provider, 1)
  await provider.close()
  assert.deepEqual(
    (await held).map(({ status }) => status),
    ['rejected'],
  )
})

test('the provider listens on loopback and nowhere else', async () => {
  for (const host of ['0.0.0.0', '::', 'example.com', '192.168.1.2']) {
    await assert.rejects(startIdentityProvider({ host }), /loopback only/)
  }
})

describe('the authorization code grant', () => {
  const verifier = 'v'.repeat(43)
  const challenge = createHash('sha256').update(verifier).digest('base64url')
  const redirectUri = 'http://127.0.0.1:8080/console/signed-in'
  const good = {
    response_type: 'code',
    client_id: 'console',
    redirect_uri: redirectUri,
    state: 's1',
    code_challenge: challenge,
    code_challenge_method: 'S256',
  }
  const authorize = (changes: Record<string, string> = {}, headers: Record<string, string> = {}) =>
    fetch(`${idp.issuer}/oauth2/authorize?${new URLSearchParams({ ...good, ...changes })}`, {
      redirect: 'manual',
      headers,
    })
  const signIn = async () => {
    const response = await authorize({ login_hint: 'admin' })
    assert.equal(response.status, 302)
    const target = new URL(response.headers.get('location') ?? '')
    assert.equal(target.searchParams.get('state'), 's1')
    return { code: target.searchParams.get('code') ?? '', cookie: response.headers.get('set-cookie') ?? '' }
  }
  const redeem = (code: string, changes: Record<string, string> = {}) =>
    ask({
      grant_type: 'authorization_code',
      code,
      client_id: 'console',
      redirect_uri: redirectUri,
      code_verifier: verifier,
      ...changes,
    })

  test('a code becomes a token and a refresh token, once', async () => {
    const { code } = await signIn()
    const response = await redeem(code)
    assert.equal(response.status, 200)
    const { refresh_token: refreshToken } = (await response.json()) as { refresh_token: string }
    const claims = await issued({ grant_type: 'refresh_token', refresh_token: refreshToken, client_id: 'console' })
    assert.deepEqual([claims['custom:scopes'], claims.client_id], ['admin:*', 'console'])
    assert.equal((await redeem(code)).status, 400)
  })

  test('a code is refused with another verifier, client or address', async () => {
    for (const change of [
      { code_verifier: 'w'.repeat(43) },
      { client_id: 'other' },
      { redirect_uri: 'http://127.0.0.1:8080/elsewhere' },
    ]) {
      const { code } = await signIn()
      assert.equal((await redeem(code, change)).status, 400, JSON.stringify(change))
    }
  })

  test('a session signs in without a question until the user signs out', async () => {
    const { cookie } = await signIn()
    const session = { cookie: cookie.split(';', 1)[0] ?? '' }
    assert.equal((await authorize({ prompt: 'none' }, session)).status, 302)
    const logout = `${idp.issuer}/logout?client_id=console&logout_uri=${encodeURIComponent('http://127.0.0.1:8080/console')}`
    assert.equal((await fetch(logout, { redirect: 'manual', headers: session })).status, 302)
    const refused = await authorize({ prompt: 'none' }, session)
    assert.match(refused.headers.get('location') ?? '', /error=login_required/)
    await assertStandsAlone(`${idp.issuer}/oauth2/authorize?${new URLSearchParams(good)}`)
  })

  test('a bad request is refused and never redirected', async () => {
    for (const change of [
      { response_type: 'token' },
      { redirect_uri: 'https://evil.example.com/' },
      { code_challenge: 'short' },
      { code_challenge_method: 'plain' },
      { client_id: '' },
    ]) {
      assert.equal((await authorize(change)).status, 400, JSON.stringify(change))
    }
  })
})
