import assert from 'node:assert/strict'
import { generateKeyPairSync, sign, X509Certificate } from 'node:crypto'
import { once } from 'node:events'
import { type IncomingMessage, request as requestPlain } from 'node:http'
import { connect } from 'node:http2'
import { request } from 'node:https'
import { after, before, beforeEach, test } from 'node:test'
import { selfSignedCertificate } from '../../src/sandbox/certificate.ts'
import type { PushFaults } from '../../src/sandbox/push-provider/faults.ts'
import { type SandboxPushProvider, startPushProvider } from '../../src/sandbox/push-provider/push-provider.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { assertStandsAlone } from '../support/sandbox-page.ts'

const GRANT = 'urn:ietf:params:oauth:grant-type:jwt-bearer'
const SCOPE = 'https://www.googleapis.com/auth/firebase.messaging'
const START_MS = Date.UTC(2026, 0, 1)
const clock = new ManualClock(START_MS)
let provider: SandboxPushProvider
let bearer: string

before(async () => {
  provider = await startPushProvider({ clock })
})
after(() => provider.close())
beforeEach(async () => {
  provider.reset()
  bearer = `Bearer ${(await exchange()).body.access_token}`
})

interface Answer {
  status: number
  body: Record<string, unknown>
}

async function post(path: string, body: string, headers: Record<string, string> = {}): Promise<Answer> {
  const response = await fetch(`${provider.plainUrl}${path}`, { method: 'POST', body, headers })
  const text = await response.text()
  return { status: response.status, body: text === '' ? {} : JSON.parse(text) }
}

function send(message: unknown, more: Record<string, unknown> = {}): Promise<Answer> {
  const path = `/v1/projects/${provider.credentials.projectId}/messages:send`
  return post(path, JSON.stringify({ message, ...more }), { authorization: bearer })
}

function assertionWith(claims: Record<string, unknown> = {}, key: string = provider.credentials.privateKey): string {
  const iat = clock.now() / 1000
  const all = {
    iss: provider.credentials.clientEmail,
    scope: SCOPE,
    aud: provider.tokenUrl,
    iat,
    exp: iat + 3600,
    ...claims,
  }
  const encode = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const input = `${encode({ alg: 'RS256', typ: 'JWT' })}.${encode(all)}`
  return `${input}.${sign('sha256', Buffer.from(input), key).toString('base64url')}`
}

function exchange(assertion = assertionWith(), grant = GRANT): Promise<Answer> {
  const headers = { 'content-type': 'application/x-www-form-urlencoded' }
  return post('/token', new URLSearchParams({ grant_type: grant, assertion }).toString(), headers)
}

const errorOf = ({ body }: Answer) =>
  body.error as { status: string; message: string; details?: Record<string, unknown>[] }
const codeOf = (answer: Answer) => errorOf(answer).details?.[0]?.errorCode

test('the certificate of the provider is its own authority, for loopback and nothing else', () => {
  const certificate = new X509Certificate(provider.ca)
  assert.ok(certificate.verify(certificate.publicKey))
  assert.ok(certificate.ca)
  assert.equal(certificate.checkIP('127.0.0.1'), '127.0.0.1')
  assert.equal(certificate.checkIP('::1'), '::1')
  assert.equal(certificate.checkHost('localhost'), 'localhost')
  assert.equal(certificate.checkHost('example.com'), undefined)
  assert.equal(certificate.checkIP('10.0.0.1'), undefined)
})

test('two certificates have nothing in common, and are read whatever their length', async () => {
  const long = await selfSignedCertificate(
    Array.from({ length: 100 }, (_, n) => `host-${n}.localhost`),
    Date.now(),
  )
  const certificate = new X509Certificate(long.cert)
  assert.equal(certificate.checkHost('host-99.localhost'), 'host-99.localhost')
  assert.notEqual(certificate.serialNumber, new X509Certificate(provider.ca).serialNumber)
})

test('a client chooses HTTP/2 or HTTP/1.1 on one port, and trusts it by its certificate alone', async () => {
  const session = connect(provider.url, { ca: provider.ca })
  const stream = session.request({ ':path': '/sandbox/stats' })
  const [headers] = await once(stream, 'response')
  assert.equal(headers[':status'], 200)
  session.destroy()
  const asked = request(`${provider.url}/sandbox/stats`, { ca: provider.ca, agent: false }).end()
  const [response] = await once(asked, 'response')
  assert.deepEqual([response.statusCode, response.httpVersion], [200, '1.1'])
  response.resume()
  await once(response, 'close')
})

test('a good assertion returns a token that lasts an hour', async () => {
  const { status, body } = await exchange()
  assert.equal(status, 200)
  assert.equal(body.token_type, 'Bearer')
  assert.equal(body.expires_in, 3600)
  assert.match(String(body.access_token), /^ya29\./)
})

const foreignKey = generateKeyPairSync('rsa', { modulusLength: 2048 })
  .privateKey.export({ type: 'pkcs8', format: 'pem' })
  .toString()
const badAssertions: [name: string, assertion: () => string, description: RegExp][] = [
  ['signed with another key', () => assertionWith({}, foreignKey), /Invalid JWT Signature/],
  ['of another account', () => assertionWith({ iss: 'other@example.com' }), /account not found/],
  ['for another endpoint', () => assertionWith({ aud: 'https://oauth2.googleapis.com/token' }), /audience/],
  ['for another scope', () => assertionWith({ scope: 'email' }), /scope/],
  ['that has expired', () => assertionWith({ iat: START_MS / 1000 - 7200, exp: START_MS / 1000 - 3600 }), /timeframe/],
  ['of tomorrow', () => assertionWith({ iat: START_MS / 1000 + 86_400, exp: START_MS / 1000 + 90_000 }), /timeframe/],
  ['that lives for a day', () => assertionWith({ exp: START_MS / 1000 + 86_400 }), /short-lived/],
  ['without times', () => assertionWith({ iat: undefined, exp: undefined }), /short-lived/],
  ['that is no JWT', () => 'nothing', /RS256/],
  ['that is empty', () => '', /RS256/],
]
for (const [name, assertion, description] of badAssertions) {
  test(`an assertion ${name} is an invalid grant`, async () => {
    const { status, body } = await exchange(assertion())
    assert.equal(status, 400)
    assert.equal(body.error, 'invalid_grant')
    assert.match(String(body.error_description), description)
  })
}

test('another grant is not supported', async () => {
  assert.equal((await exchange(assertionWith(), 'password')).body.error, 'unsupported_grant_type')
})

test('a message to a device arrives, with an id of its own', async () => {
  const message = { token: 'phone', notification: { title: 'Hi' }, android: { notification: { tag: 'ntf_1' } } }
  const first = await send(message)
  const second = await send(message)
  assert.equal(first.status, 200)
  assert.match(String(first.body.name), /^projects\/sandbox-project\/messages\/0:\d+%[0-9a-f]+$/)
  assert.notEqual(first.body.name, second.body.name)
  const [arrival, repeat] = provider.arrivals
  assert.deepEqual(arrival, {
    at: '2026-01-01T00:00:00.000Z',
    token: 'phone',
    tag: 'ntf_1',
    outcome: 'sent',
    status: 200,
    delivered: true,
    repeated: false,
    validate_only: false,
    protocol: 'http/1.1',
    message_id: first.body.name,
    message,
  })
  assert.equal(repeat?.repeated, true)
  assert.partialDeepStrictEqual(provider.stats, { sends: 2, delivered: 2, repeated: 1, outcomes: { sent: 2 } })
})

test('a message that is only validated reaches no device', async () => {
  const { status, body } = await send({ token: 'phone' }, { validate_only: true })
  assert.deepEqual([status, body.name], [200, 'projects/sandbox-project/messages/fake_message_id'])
  assert.partialDeepStrictEqual(provider.stats, { delivered: 0, validated: 1 })
  assert.equal((await send({ token: 'dead-1' }, { validate_only: true })).status, 404)
})

const byPrefix: [prefix: string, status: number, code: string | undefined, delivered: boolean][] = [
  ['dead-', 404, 'UNREGISTERED', false],
  ['bad-', 400, 'INVALID_ARGUMENT', false],
  ['mismatch-', 403, 'SENDER_ID_MISMATCH', false],
  ['thirdparty-', 401, 'THIRD_PARTY_AUTH_ERROR', false],
  ['quota-', 429, 'QUOTA_EXCEEDED', false],
  ['down-', 503, 'UNAVAILABLE', false],
  ['internal-', 500, 'INTERNAL', false],
  ['delivered503-', 503, 'UNAVAILABLE', true],
]
for (const [prefix, status, code, delivered] of byPrefix) {
  test(`a token that begins with ${prefix} is answered ${status} ${code}${delivered ? ', and delivered' : ''}`, async () => {
    const answer = await send({ token: `${prefix}1` })
    assert.deepEqual([answer.status, codeOf(answer)], [status, code])
    assert.equal(provider.arrivals[0]?.delivered, delivered)
  })
}

test('a missing, old or revoked access token is not accepted', async () => {
  const refused = async () => {
    const answer = await send({ token: 'phone' })
    assert.deepEqual([answer.status, errorOf(answer).status, codeOf(answer)], [401, 'UNAUTHENTICATED', undefined])
  }
  const good = bearer
  for (bearer of ['', 'Bearer x', good.replace('Bearer', 'Basic')]) await refused()
  bearer = good
  assert.equal((await send({ token: 'phone' })).status, 200)
  await clock.advance(3_600_000)
  await refused()
  bearer = `Bearer ${(await exchange()).body.access_token}`
  assert.equal((await send({ token: 'phone' })).status, 200)
  provider.revokeTokens()
  await refused()
  assert.deepEqual(provider.stats.refused, { 401: 5 })
})

test('another project is not found, without an error of the provider’s own', async () => {
  const answer = await post('/v1/projects/other/messages:send', '{}', { authorization: bearer })
  assert.deepEqual([answer.status, codeOf(answer)], [404, undefined])
})

const refusals: [refuse: PushFaults['refuse'], status: number, code: string | undefined][] = [
  ['wrong_project', 404, undefined],
  ['permission', 403, undefined],
  ['third_party_auth', 401, 'THIRD_PARTY_AUTH_ERROR'],
  ['mismatch', 403, 'SENDER_ID_MISMATCH'],
  ['unregistered', 404, 'UNREGISTERED'],
  ['quota', 429, 'QUOTA_EXCEEDED'],
  ['down', 503, 'UNAVAILABLE'],
]
for (const [refuse, status, code] of refusals) {
  test(`the provider refuses everything with ${refuse} if the setting says so`, async () => {
    provider.setFaults({ refuse })
    const answer = await send({ token: 'phone' })
    assert.deepEqual([answer.status, codeOf(answer)], [status, code])
    assert.equal(provider.stats.sends, 0)
  })
}

const badMessages: [name: string, message: unknown, field: string | undefined][] = [
  ['without a target', { notification: { title: 'x' } }, 'message'],
  ['with two targets', { token: 'a', topic: 'b' }, 'message'],
  ['with an empty token', { token: '' }, 'message.token'],
  ['with an unknown field', { token: 'a', colour: 'red' }, 'message'],
  ['with an unknown field inside', { token: 'a', android: { sound: 'x' } }, 'message.android'],
  ['with a part that is no object', { token: 'a', apns: 'x' }, 'message.apns'],
  ['with data of numbers', { token: 'a', data: { n: 1 } }, 'message.data'],
  ['with a list for data', { token: 'a', data: [] }, 'message.data'],
  ['with a reserved key', { token: 'a', data: { from: 'x' } }, 'message.data[0].key'],
  ['with a key of the provider’s', { token: 'a', data: { a: 'x', 'google.a': 'x' } }, 'message.data[1].key'],
  ['with a time to live in words', { token: 'a', android: { ttl: 'an hour' } }, 'message.android.ttl'],
  ['with a priority of its own', { token: 'a', android: { priority: 'urgent' } }, 'message.android.priority'],
  ['with a number for a header', { token: 'a', apns: { headers: { 'apns-priority': 5 } } }, 'message.apns.headers'],
  [
    'with a collapse id too long',
    { token: 'a', apns: { headers: { 'apns-collapse-id': 'x'.repeat(65) } } },
    'message.apns.headers',
  ],
  ['with a topic of blanks', { token: 'a', webpush: { headers: { Topic: 'a b' } } }, 'message.webpush.headers'],
  [
    'with a link that is not secure',
    { token: 'a', webpush: { fcm_options: { link: 'http://a.example' } } },
    'message.webpush.fcm_options.link',
  ],
  ['over 4,096 bytes', { token: 'a', data: { k: 'x'.repeat(4_096) } }, undefined],
  ['that is none', 'x', 'message'],
]
for (const [name, message, field] of badMessages) {
  test(`a message ${name} is refused`, async () => {
    const answer = await send(message)
    assert.equal(answer.status, 400)
    const violations = errorOf(answer).details?.[1]?.fieldViolations as { field: string }[] | undefined
    assert.equal(violations?.[0]?.field, field)
    assert.equal(provider.stats.sends, 0)
  })
}

test('a body that is no JSON, or far too long, is refused', async () => {
  const path = `/v1/projects/${provider.credentials.projectId}/messages:send`
  for (const body of ['', '{', '[]', 'x'.repeat(100_000)]) {
    assert.equal((await post(path, body, { authorization: bearer })).status, 400)
  }
})

test('failures have Retry-After if the setting says so', async () => {
  const ask = async () => {
    const path = `/v1/projects/${provider.credentials.projectId}/messages:send`
    const body = JSON.stringify({ message: { token: 'down-1' } })
    const response = await fetch(`${provider.plainUrl}${path}`, {
      method: 'POST',
      body,
      headers: { authorization: bearer },
    })
    await response.text()
    return response.headers.get('retry-after')
  }
  assert.equal(await ask(), null)
  provider.setFaults({ retry_after_seconds: 7 })
  assert.equal(await ask(), '7')
})

test('the latency of an answer passes on the injected clock', async () => {
  provider.setFaults({ latency_ms: 60 })
  const sending = send({ token: 'phone' })
  await clock.untilSleeping()
  assert.equal(provider.stats.sends, 0)
  await clock.advance(60)
  assert.equal((await sending).status, 200)
})

test('a fault setting that does not exist, or a value that is not allowed, is named, and nothing is changed', async () => {
  const patch = (body: string) => fetch(`${provider.plainUrl}/sandbox/faults`, { method: 'PATCH', body })
  for (const body of ['{"latency":1}', '{"latency_ms":-1}', '{"latency_ms":"1"}', '{"refuse":"x"}', '[]', 'x']) {
    const response = await patch(body)
    assert.equal(response.status, 400)
    assert.ok(((await response.json()) as { problems: string[] }).problems[0])
  }
  assert.throws(() => provider.setFaults({ refuse: 'x' as never }), /refuse must be one of/)
  const response = await patch('{"slow_ms":5,"exchange":"down"}')
  assert.partialDeepStrictEqual(await response.json(), { slow_ms: 5, exchange: 'down' })
  assert.equal((await exchange()).status, 503)
  provider.setFaults({ exchange: 'refused' })
  assert.equal((await exchange()).body.error, 'invalid_grant')
})

test('the messages that arrived are listed, newest first', async () => {
  await send({ token: 'first' })
  await send({ token: 'second' })
  const response = await fetch(`${provider.plainUrl}/sandbox/messages`)
  const { data } = (await response.json()) as { data: { token: string }[] }
  assert.deepEqual(
    data.map(({ token }) => token),
    ['second', 'first'],
  )
})

test('pages of other origins read nothing and change nothing', async () => {
  const response = await fetch(`${provider.plainUrl}/sandbox/messages`, { headers: { origin: 'https://evil.example' } })
  assert.equal(response.status, 403)
  await response.text()
  for (const path of ['/token', '/v1/projects/sandbox-project/messages:send', '/sandbox/faults']) {
    assert.equal(await statusWithHost(path, 'evil.example'), 403, path)
    assert.notEqual(await statusWithHost(path, 'localhost:1'), 403, path)
  }
  const own = await fetch(`${provider.plainUrl}/sandbox/reset`, {
    method: 'POST',
    headers: { origin: provider.plainUrl },
  })
  assert.equal(own.status, 200)
  await own.text()
  assert.equal((await post('/v1/other', '')).status, 404)
})

test('the page stands alone under a policy with a fresh nonce, and its scripts are sound', () =>
  assertStandsAlone(provider.plainUrl))

test('a provider that closes ends held requests', async () => {
  const other = await startPushProvider({ clock })
  other.setFaults({ exchange: 'hanging' })
  const held = fetch(`${other.plainUrl}/token`, { method: 'POST', body: 'x' })
  while (other.stats.exchanges < 1) await new Promise(setImmediate)
  const [outcome] = await Promise.all([Promise.allSettled([held]), other.close()])
  assert.deepEqual(
    outcome.map(({ status }) => status),
    ['rejected'],
  )
})

test('the provider listens on loopback and nowhere else', async () => {
  for (const host of ['0.0.0.0', '::', 'example.com', '192.168.1.2']) {
    await assert.rejects(startPushProvider({ host }), /loopback only/)
  }
})

async function statusWithHost(path: string, host: string): Promise<number | undefined> {
  const asking = requestPlain(`${provider.plainUrl}${path}`, { method: 'POST', headers: { host } }).end('{}')
  const [response] = (await once(asking, 'response')) as [IncomingMessage]
  response.resume()
  return response.statusCode
}
