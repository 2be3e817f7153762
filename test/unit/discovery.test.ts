import assert from 'node:assert/strict'
import { afterEach, test } from 'node:test'
import { connectIssuer } from '../../src/auth/issuer/connect-issuer.ts'
import { discover, discoveryUrl } from '../../src/auth/issuer/discovery.ts'
import { KeySet } from '../../src/auth/issuer/key-set.ts'
import { UnavailableError } from '../../src/core/errors.ts'
import { type Log, silentLog } from '../../src/core/log.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { rsaPair } from '../support/rsa-keys.ts'
import { until } from '../support/until.ts'

const ISSUER = 'https://login.example.com/tenant/'
const DISCOVERY = 'https://login.example.com/tenant/.well-known/openid-configuration'
const FIXED = 'https://login.example.com/tenant/.well-known/jwks.json'
const KEYS = 'https://keys.example.net/certs'
const COOLDOWN_MS = 10_000
const TTL_MS = 600_000
const KEY = { ...rsaPair('discovered').publicKey.export({ format: 'jwk' }), kid: 'one' }

type Answer = { status?: number; body: unknown } | 'hang' | 'reset'

const closings: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const close of closings.splice(0)) await close()
})

/** A provider whose answers the test chooses, by address; any other address is 404. */
function setUp(
  answers: Record<string, Answer>,
  { issuerUrl = ISSUER, log = silentLog }: { issuerUrl?: string; log?: Log } = {},
) {
  const clock = new ManualClock(Date.UTC(2026, 0, 1))
  const asked: string[] = []
  const answer: typeof fetch = (input, init) => {
    const url = String(input)
    if (init?.signal?.aborted) return Promise.reject(init.signal.reason)
    asked.push(url)
    const { promise, resolve, reject } = Promise.withResolvers<Response>()
    init?.signal?.addEventListener('abort', () => reject(init.signal?.reason))
    const given = answers[url] ?? { status: 404, body: 'Not found' }
    if (given === 'reset') reject(new TypeError('fetch failed', { cause: new Error('ECONNRESET') }))
    else if (given !== 'hang') {
      const text = typeof given.body === 'string' ? given.body : JSON.stringify(given.body)
      resolve(new Response(text, { status: given.status ?? 200 }))
    }
    return promise
  }
  const connected = connectIssuer({ issuerUrl, algorithms: ['RS256'], fetch: answer, clock, log })
  closings.push(
    () => connected.discovery.close(),
    () => connected.keySet.close(),
  )
  return { clock, asked, answers, ...connected }
}

const document = (more: object = {}) => ({ body: { issuer: ISSUER, jwks_uri: KEYS, ...more } })
const keys = (...all: object[]) => ({ body: { keys: all } })

test('the keys of a provider are where its discovery document says', async () => {
  const { keySet, asked } = setUp({ [DISCOVERY]: document(), [KEYS]: keys(KEY) })
  assert.equal((await keySet.find('one'))?.kid, 'one')
  assert.deepEqual(asked, [DISCOVERY, KEYS])
})

test('without a discovery document, or without a jwks_uri in it, the keys are at the fixed path', async () => {
  for (const given of [{ status: 404, body: '' }, { body: { issuer: ISSUER } }]) {
    const { keySet, asked } = setUp({ [DISCOVERY]: given, [FIXED]: keys(KEY) })
    assert.ok(await keySet.find('one'))
    assert.deepEqual(asked, [DISCOVERY, FIXED])
  }
})

test('a discovery document that is not there yet is used as soon as it is', async () => {
  const { keySet, answers, clock } = setUp({ [KEYS]: keys(KEY) })
  await assert.rejects(keySet.find('one'), UnavailableError)
  answers[DISCOVERY] = document()
  await clock.leap(11_000)
  assert.equal((await keySet.find('one'))?.kid, 'one')
})

test('an address that only the console needs does not spoil the document: it is left out', async () => {
  const unsafe = { authorization_endpoint: 'javascript:alert(1)', end_session_endpoint: 'http://internal.example' }
  const { keySet, discovery } = setUp({ [DISCOVERY]: document(unsafe), [KEYS]: keys(KEY) })
  assert.equal((await keySet.find('one'))?.kid, 'one')
  assert.deepEqual(await discovery.get(), { jwks_uri: KEYS })
})

for (const host of ['cognito-idp.eu-central-1.amazonaws.com', 'issuer-cognito-idp.eu-central-1.amazonaws.com']) {
  test(`the keys of a Cognito pool at ${host} are at the fixed path, and no other document is fetched`, async () => {
    const issuerUrl = `https://${host}/eu-central-1_AbC`
    const url = `${issuerUrl}/.well-known/jwks.json`
    const { keySet, asked } = setUp({ [url]: keys(KEY) }, { issuerUrl })
    assert.ok(await keySet.find('one'))
    assert.deepEqual(asked, [url])
  })
}

const UNUSABLE: [name: string, answer: Answer, reason: RegExp][] = [
  ['of another issuer', document({ issuer: 'https://evil.example.com' }), /names the issuer "https:\/\/evil\.example/],
  ['of the issuer without its slash', document({ issuer: ISSUER.slice(0, -1) }), /names the issuer/],
  ['without an issuer', document({ issuer: undefined }), /names the issuer undefined/],
  ['with keys over http', document({ jwks_uri: 'http://keys.example.net/certs' }), /jwks_uri is not an https address/],
  ['with keys over http on loopback', document({ jwks_uri: 'http://127.0.0.1:9/certs' }), /is not an https address/],
  ['with keys in a file', document({ jwks_uri: 'file:///etc/keys.json' }), /jwks_uri is not an https address/],
  ['with keys at a list', document({ jwks_uri: [KEYS] }), /jwks_uri is not an https address/],
  ['with a relative address', document({ jwks_uri: '/certs' }), /jwks_uri is not an https address/],
  ['that is a list', { body: [] }, /not a JSON object/],
  ['that is no JSON', { body: '<html>' }, /JSON/],
]
for (const [name, answer, reason] of UNUSABLE) {
  test(`a discovery document ${name} is never used: no key is fetched, and the reason is kept`, async () => {
    const { keySet, asked } = setUp({ [DISCOVERY]: answer, [KEYS]: keys(KEY), [FIXED]: keys(KEY) })
    await assert.rejects(keySet.find('one'), UnavailableError)
    assert.deepEqual(asked, [DISCOVERY])
    assert.match(keySet.state().lastError ?? '', reason)
  })
}

const ABSENT: [name: string, answer: Answer][] = [
  ['behind a redirect', { status: 302, body: '' }],
  ['behind an error', { status: 500, body: '' }],
  ['that is forbidden', { status: 403, body: '' }],
  ['over 512 KB', { body: ' '.repeat(512 * 1024 + 1) }],
  ['that cannot be reached', 'reset'],
]
for (const [name, answer] of ABSENT) {
  test(`a discovery document ${name} leaves the fixed path, until the document can be fetched`, async () => {
    const { clock, keySet, asked, answers } = setUp({ [DISCOVERY]: answer, [FIXED]: keys(KEY) })
    assert.ok(await keySet.find('one'))
    assert.deepEqual(asked, [DISCOVERY, FIXED])
    answers[DISCOVERY] = document()
    answers[KEYS] = keys({ ...KEY, kid: 'two' })
    await clock.advance(COOLDOWN_MS)
    assert.ok(await keySet.find('two'))
  })
}

test('keys over http are used on loopback only, and only if the issuer is there, too', async () => {
  const issuerUrl = 'http://127.0.0.1:8/'
  const hosts = { '127.0.0.1:9': true, 'localhost:9': true, '[::1]:9': true, 'keys.example.net': false }
  for (const [host, isUsed] of Object.entries(hosts)) {
    const url = `http://${host}/certs`
    const answers = { [discoveryUrl(issuerUrl)]: document({ issuer: issuerUrl, jwks_uri: url }), [url]: keys(KEY) }
    const { keySet, asked } = setUp(answers, { issuerUrl })
    assert.equal(await keySet.find('one').then(Boolean, () => false), isUsed, host)
    assert.equal(asked.includes(url), isUsed)
  }
})

test('a discovery document that hangs times out after 5 s', async () => {
  const { clock, keySet, discovery } = setUp({ [DISCOVERY]: 'hang', [FIXED]: keys(KEY) })
  const fetched = keySet.warmUp()
  await clock.advance(5_000)
  await fetched
  assert.ok(keySet.current('one'))
  assert.match(discovery.lastError ?? '', /no answer within 5000 ms/)
})

test('requests wait for the keys for 5 s in all, and the fetch goes on while they get 503', async () => {
  const { clock, keySet, answers } = setUp({ [DISCOVERY]: 'hang', [FIXED]: 'hang' })
  let refused = 0
  const look = () => {
    void keySet.find('one').catch((error: unknown) => {
      assert.ok(error instanceof UnavailableError)
      refused += 1
    })
  }
  look()
  await clock.advance(4_000)
  look()
  await clock.advance(1_000)
  await until(() => refused === 2)
  look()
  await until(() => refused === 3)
  assert.equal(keySet.state().lastError, null, 'the fetch from the fixed address is in progress')
  await clock.advance(5_000)
  await until(() => keySet.state().lastError !== null)
  answers[FIXED] = keys(KEY)
  await clock.advance(COOLDOWN_MS)
  look()
  await clock.advance(5_000)
  await until(() => keySet.current('one') !== undefined)
})

test('a failing discovery document is fetched once per cooldown, however many requests need it', async () => {
  const { clock, asked, answers, keySet, discovery } = setUp({
    [DISCOVERY]: { status: 503, body: '' },
    [KEYS]: keys(KEY),
  })
  const ask = () =>
    Promise.allSettled([...Array.from({ length: 50 }, () => keySet.find('one')), discovery.get(), discovery.get()])
  await ask()
  await ask()
  assert.deepEqual(asked, [DISCOVERY, FIXED])
  await clock.advance(COOLDOWN_MS)
  await ask()
  assert.deepEqual(asked.slice(2), [DISCOVERY, FIXED])
  answers[DISCOVERY] = document()
  await clock.advance(COOLDOWN_MS)
  assert.ok(await keySet.find('one'))
})

test('the last good discovery document stays in use while the provider is down, and a warning is logged', async () => {
  const warnings: string[] = []
  const log = { ...silentLog, warn: (_fields: object, event: string) => void warnings.push(event) }
  const { clock, asked, answers, keySet, discovery } = setUp({ [DISCOVERY]: document(), [KEYS]: keys(KEY) }, { log })
  await keySet.warmUp()
  for (const broken of [
    { status: 404, body: '' },
    'reset',
    document({ issuer: 'https://evil.example.com' }),
  ] as const) {
    answers[DISCOVERY] = broken
    answers[KEYS] = keys(KEY, { ...KEY, kid: `after ${asked.length}` })
    await clock.advance(TTL_MS)
    assert.equal((await discovery.get()).jwks_uri, KEYS)
    await keySet.warmUp()
    assert.equal(asked.at(-1), KEYS)
    assert.equal(keySet.state().keys, 2)
  }
  await discovery.renew()
  assert.deepEqual(new Set(warnings), new Set(['discovery.fetch_failed']))
})

test('a provider that moves its keys is followed', async () => {
  const { clock, asked, answers, keySet } = setUp({ [DISCOVERY]: document(), [KEYS]: keys(KEY) })
  await keySet.warmUp()
  const moved = 'https://keys.example.net/moved'
  answers[DISCOVERY] = document({ jwks_uri: moved })
  answers[moved] = keys({ ...KEY, kid: 'two' })
  await clock.advance(TTL_MS)
  await keySet.warmUp()
  assert.equal(asked.at(-1), KEYS, 'the known address serves while the document is renewed')
  await clock.advance(COOLDOWN_MS)
  assert.equal((await keySet.find('two'))?.kid, 'two')
  assert.equal(asked.at(-1), moved)
})

test('a document that closes ends the fetch in progress and starts no other', async () => {
  const { asked, keySet, discovery } = setUp({ [DISCOVERY]: 'hang' })
  const lookup = assert.rejects(keySet.find('one'), UnavailableError)
  await Promise.all([discovery.close(), keySet.close()])
  await lookup
  await assert.rejects(discovery.get(), UnavailableError)
  assert.equal(asked.length, 1)
})

test('a key set without a discovery document uses its address alone', async () => {
  const { clock } = setUp({})
  const found = async () => new Response(JSON.stringify({ keys: [KEY] }))
  const keySet = new KeySet({ url: FIXED, fetch: found, clock, log: silentLog })
  assert.ok(await keySet.find('one'))
  const discovery = discover({ issuerUrl: ISSUER, fetch: found, clock, log: silentLog })
  await assert.rejects(discovery.get(), UnavailableError)
})
