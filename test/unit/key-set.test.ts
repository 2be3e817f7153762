import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { KeySet, type KeySetOptions } from '../../src/auth/issuer/key-set.ts'
import { UnavailableError } from '../../src/core/errors.ts'
import { silentLog } from '../../src/core/log.ts'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { lendRsaPairs, rsaPair } from '../support/rsa-keys.ts'

const COOLDOWN_MS = 10_000
const TTL_MS = 600_000
const START_MS = Date.UTC(2026, 0, 1)

const cleanups: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

async function setUp(options: Partial<KeySetOptions> = {}) {
  const clock = new ManualClock(START_MS)
  const idp = await startIdentityProvider({ clock, makeKey: lendRsaPairs() })
  const keySet = new KeySet({ url: idp.jwksUrl, fetch, clock, log: silentLog, ...options })
  cleanups.push(
    () => idp.close(),
    () => keySet.close(),
  )
  return { clock, idp, keySet }
}

async function serve(listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1')
  await once(server, 'listening')
  cleanups.push(async () => {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
}

const unavailable = (error: unknown): boolean => {
  assert.ok(error instanceof UnavailableError)
  assert.equal(error.message, 'The identity provider is unavailable')
  assert.ok(Number(error.headers['retry-after']) >= 1)
  return true
}

const rsaJwk = (kid: string, pair = rsaPair('good')) => ({ ...pair.publicKey.export({ format: 'jwk' }), kid })

test('500 concurrent cold lookups make one fetch', async () => {
  const { idp, keySet } = await setUp()
  const keys = await Promise.all(Array.from({ length: 500 }, () => keySet.find(idp.kid)))
  assert.equal(idp.hits, 1)
  assert.equal(new Set(keys).size, 1)
  assert.equal(keys[0]?.kid, idp.kid)
})

test('500 concurrent cold lookups of a provider that is down make one fetch, and all get 503 with Retry-After', async () => {
  const { idp, keySet } = await setUp()
  idp.goDown()
  const outcomes = await Promise.allSettled(Array.from({ length: 500 }, () => keySet.find(idp.kid)))
  assert.equal(idp.hits, 1)
  for (const outcome of outcomes) {
    assert.ok(outcome.status === 'rejected')
    unavailable(outcome.reason)
  }
})

test('unknown kids refetch once per cooldown, however many arrive', async () => {
  const { clock, idp, keySet } = await setUp()
  await keySet.warmUp()
  const ask = () => Promise.all(Array.from({ length: 50 }, (_, index) => keySet.find(`unknown-${index}`)))
  await ask()
  assert.equal(idp.hits, 1)
  await clock.advance(COOLDOWN_MS - 1)
  await ask()
  assert.equal(idp.hits, 1)
  await clock.advance(1)
  assert.deepEqual(new Set(await ask()), new Set([undefined]))
  await ask()
  assert.equal(idp.hits, 2)
})

test('failed fetches are throttled too, before any key was fetched and after', async () => {
  const { clock, idp, keySet } = await setUp()
  idp.goDown()
  await assert.rejects(keySet.find(idp.kid), unavailable)
  await assert.rejects(keySet.find(idp.kid), unavailable)
  assert.equal(idp.hits, 1)
  await clock.advance(COOLDOWN_MS)
  await assert.rejects(keySet.find(idp.kid), unavailable)
  assert.equal(idp.hits, 2)

  idp.recover()
  await clock.advance(COOLDOWN_MS)
  assert.ok(await keySet.find(idp.kid))
  assert.equal(idp.hits, 3)

  idp.goDown()
  await clock.advance(COOLDOWN_MS)
  for (let i = 0; i < 20; i++) assert.equal(await keySet.find(`unknown-${i}`), undefined)
  assert.equal(idp.hits, 4)
})

test('Retry-After names the rest of the cooldown', async () => {
  const { clock, idp, keySet } = await setUp()
  idp.goDown()
  await keySet.warmUp()
  await clock.advance(3_500)
  await assert.rejects(keySet.find(idp.kid), { headers: { 'retry-after': '7' } })
})

test('known keys are not fetched again before their time', async () => {
  const { clock, idp, keySet } = await setUp()
  await keySet.warmUp()
  await clock.advance(TTL_MS - 1)
  assert.ok(await keySet.find(idp.kid))
  assert.ok(keySet.current(idp.kid))
  assert.equal(idp.hits, 1)
})

test('aged keys serve at once while a single renewal runs in the background', async () => {
  let fetches = 0
  const counting: typeof fetch = (...request) => {
    fetches += 1
    return fetch(...request)
  }
  const { clock, idp, keySet } = await setUp({ fetch: counting })
  const key = await keySet.find(idp.kid)
  await clock.advance(TTL_MS)
  idp.hang()
  for (let i = 0; i < 100; i++) {
    assert.equal(keySet.current(idp.kid), key)
    assert.equal(await keySet.find(idp.kid), key)
  }
  assert.equal(fetches, 2)
  idp.recover()
  await keySet.warmUp()
  assert.equal(fetches, 2)
  assert.equal(keySet.state().fetchedAtMs, START_MS + TTL_MS)
})

test('aged keys keep serving for as long as the provider is down, and it is asked once per cooldown', async () => {
  const { clock, idp, keySet } = await setUp()
  const key = await keySet.find(idp.kid)
  idp.goDown()
  await clock.advance(TTL_MS)
  for (let round = 0; round < 5; round++) {
    assert.equal(await keySet.find(idp.kid), key)
    await keySet.warmUp()
    assert.equal(keySet.current(idp.kid), key)
    await clock.advance(COOLDOWN_MS)
  }
  assert.equal(idp.hits, 6)
  assert.equal(keySet.isReady(), true)
  assert.match(keySet.state().lastError ?? '', /503/)
  await clock.advance(365 * 24 * 3_600_000)
  assert.equal(await keySet.find(idp.kid), key)
})

test('a clock set back neither stops the renewal nor stretches the cooldown', async () => {
  const { clock, idp, keySet } = await setUp()
  await keySet.warmUp()
  await clock.advance(-3_600_000)
  const kid = await idp.rotate()
  assert.equal((await keySet.find(kid))?.kid, kid)
})

test('a fetch from a provider that hangs times out', async () => {
  const { clock, idp, keySet } = await setUp()
  idp.hang()
  const lookup = assert.rejects(keySet.find(idp.kid), unavailable)
  await clock.advance(5_000)
  await lookup
  assert.match(keySet.state().lastError ?? '', /no answer within 5000 ms/)
})

test('a fetch with an endless body times out', async () => {
  const url = await serve((_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' }).write('{"keys":[')
  })
  const begun = Promise.withResolvers<void>()
  const watched: typeof fetch = async (...request) => {
    const response = await fetch(...request)
    begun.resolve()
    return response
  }
  const { clock, keySet } = await setUp({ url, fetch: watched })
  const lookup = assert.rejects(keySet.find('any'), unavailable)
  await begun.promise
  await clock.advance(5_000)
  await lookup
  assert.match(keySet.state().lastError ?? '', /no answer within 5000 ms/)
})

test('a key set that closes ends the fetch in progress and starts no other', async () => {
  const { clock, idp, keySet } = await setUp()
  idp.hang()
  const lookup = assert.rejects(keySet.find(idp.kid), unavailable)
  await keySet.close()
  await lookup
  idp.recover()
  await clock.advance(COOLDOWN_MS)
  await assert.rejects(keySet.find(idp.kid), unavailable)
  assert.equal(keySet.isReady(), false)
})

test('a provider that does not listen is unavailable, and the state says why', async () => {
  const { idp, keySet } = await setUp()
  await idp.close()
  await assert.rejects(keySet.find('any'), unavailable)
  assert.match(keySet.state().lastError ?? '', /fetch failed: .+/)
})

for (const status of [204, 301, 400, 404, 500, 503]) {
  test(`an answer of ${status} is a failed fetch and leaves the known keys alone`, async () => {
    const { clock, idp, keySet } = await setUp()
    const key = await keySet.find(idp.kid)
    idp.goDown({ status })
    await clock.advance(COOLDOWN_MS)
    assert.equal(await keySet.find('unknown'), undefined)
    assert.equal(idp.hits, 2)
    assert.notEqual(keySet.state().lastError, null)
    assert.equal(keySet.current(idp.kid), key)
  })
}

test('a redirect is not followed', async () => {
  const { idp, keySet } = await setUp()
  const other = await startIdentityProvider({ makeKey: lendRsaPairs() })
  cleanups.push(() => other.close())
  idp.goDown({ status: 302, headers: { location: other.jwksUrl } })
  await assert.rejects(keySet.find(other.kid), unavailable)
  assert.equal(other.hits, 0)
})

const brokenBodies: [name: string, body: (good: string) => string][] = [
  ['JSON cut short', (good) => good.slice(0, -1)],
  ['an HTML page', () => '<!doctype html><title>Sign in</title>'],
  ['nothing', () => ''],
  ['a list', (good) => `[${good}]`],
  ['null', () => 'null'],
  ['keys as an object', () => '{"keys":{}}'],
  ['no keys member', () => '{}'],
  ['an empty set', () => '{"keys":[]}'],
  ['a set of nothing usable', () => '{"keys":[null,1,"a",[],{},{"kty":"oct","kid":"a","k":"AAAA"}]}'],
  ['a set over 512 KB', (good) => good + ' '.repeat(512 * 1024)],
]
for (const [name, body] of brokenBodies) {
  test(`${name} is a failed fetch: cold it is unavailable, later the known keys stay`, async () => {
    const { clock, idp, keySet } = await setUp()
    idp.breakBody(body(JSON.stringify(idp.jwks)))
    await assert.rejects(keySet.find(idp.kid), unavailable)

    idp.recover()
    await clock.advance(COOLDOWN_MS)
    const key = await keySet.find(idp.kid)
    assert.ok(key)

    idp.breakBody(body(JSON.stringify(idp.jwks)))
    await clock.advance(COOLDOWN_MS)
    assert.equal(await keySet.find('unknown'), undefined)
    assert.equal(keySet.current(idp.kid), key)
    assert.equal(idp.hits, 3)
  })
}

test('a set of just under 512 KB is taken', async () => {
  const { idp, keySet } = await setUp()
  const good = JSON.stringify(idp.jwks)
  idp.breakBody(good + ' '.repeat(512 * 1024 - good.length))
  assert.ok(await keySet.find(idp.kid))
})

test('a body is measured after decompression', async () => {
  const url = await serve((_request, response) => {
    response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(' '.repeat(5_000_000)))
  })
  const { keySet } = await setUp({ url })
  await assert.rejects(keySet.find('any'), unavailable)
  assert.match(keySet.state().lastError ?? '', /over 524288 bytes/)
})

test('a new key is found at once when the cooldown is over, and the old one stays while published', async () => {
  const { clock, idp, keySet } = await setUp()
  const before = await keySet.find(idp.kid)
  const oldKid = idp.kid
  const kid = await idp.rotate()
  await clock.advance(COOLDOWN_MS)
  assert.equal((await keySet.find(kid))?.kid, kid)
  assert.equal(keySet.current(oldKid), before)
})

test('a key that left the set is gone after the next fetch', async () => {
  const { clock, idp, keySet } = await setUp()
  const oldKid = idp.kid
  await keySet.warmUp()
  await idp.rotate({ keepOld: false })
  await clock.advance(COOLDOWN_MS)
  await keySet.find(idp.kid)
  assert.equal(keySet.current(oldKid), undefined)
  assert.equal(await keySet.find(oldKid), undefined)
})

test('a key is the same object across renewals while its material stays, and another once it changes', async () => {
  const { clock, idp, keySet } = await setUp()
  const first = { ...rsaJwk('reused'), alg: 'RS256' }
  idp.breakBody(JSON.stringify({ keys: [first] }))
  const before = await keySet.find('reused')
  assert.ok(before)

  idp.breakBody(JSON.stringify({ keys: [{ n: first.n, e: first.e, kty: 'RSA', use: 'sig', kid: 'reused' }] }))
  await clock.advance(TTL_MS)
  await keySet.warmUp()
  assert.equal(keySet.current('reused'), before)

  idp.breakBody(JSON.stringify({ keys: [rsaJwk('reused', rsaPair('other'))] }))
  await clock.advance(TTL_MS)
  await keySet.warmUp()
  const after = keySet.current('reused')
  assert.ok(after)
  assert.notEqual(after, before)
})

test('bad keys in the set do not break the good ones', async () => {
  const { idp, keySet } = await setUp()
  const good = rsaJwk('good')
  const bad: Record<string, unknown>[] = [
    rsaJwk('1024 bits', rsaPair('weak', { bits: 1024 })),
    { ...good, kid: '' },
    { ...good, kid: 7 },
    { ...good, kid: 'k'.repeat(257) },
    { ...good, kid: 'enc', use: 'enc' },
    { ...good, kid: 'ps', alg: 'PS256' },
    { ...good, kid: 'ops', key_ops: ['sign'] },
    { ...good, kid: 'ops-text', key_ops: 'verify' },
    { ...good, kid: 'private', d: 'AAAA' },
    { ...good, kid: 'no n', n: undefined },
    { ...good, kid: 'n number', n: 12 },
    { ...good, kid: 'n padded', n: `${good.n}==` },
    { ...good, kid: 'n zeros', n: Buffer.alloc(256).toString('base64url') },
    { ...good, kid: 'n even', n: Buffer.alloc(256, 0xfe).toString('base64url') },
    {
      ...good,
      kid: 'n zeros in front',
      n: Buffer.concat([Buffer.alloc(200), Buffer.alloc(56, 255)]).toString('base64url'),
    },
    { ...good, kid: 'n huge', n: Buffer.alloc(1025, 255).toString('base64url') },
    { ...good, kid: 'e one', e: 'AQ' },
    { ...good, kid: 'e three', e: 'Aw' },
    { ...good, kid: 'e even', e: 'AQAC' },
    { ...good, kid: 'e huge', e: Buffer.alloc(9, 255).toString('base64url') },
    { ...good, kid: 'e empty', e: '' },
    { kty: 'EC', kid: 'ec', crv: 'P-256', x: 'AAAA', y: 'AAAA' },
    { kty: 'oct', kid: 'oct', k: 'AAAA' },
  ]
  idp.breakBody(JSON.stringify({ keys: [null, [], 'key', ...bad, good] }))
  assert.equal((await keySet.find('good'))?.kid, 'good')
  assert.equal(keySet.state().keys, 1)
})

test('the first usable one of two keys under one kid counts', async () => {
  const { idp, keySet } = await setUp()
  const [first, second] = [rsaJwk('twice'), rsaJwk('twice', rsaPair('other'))]
  idp.breakBody(JSON.stringify({ keys: [{ ...second, use: 'enc' }, first, second] }))
  assert.ok((await keySet.find('twice'))?.material.includes(String(first.n)))
})

test('no more than 100 keys are taken', async () => {
  const { idp, keySet } = await setUp()
  const good = rsaJwk('good')
  idp.breakBody(JSON.stringify({ keys: Array.from({ length: 150 }, (_, index) => ({ ...good, kid: `key-${index}` })) }))
  assert.ok(await keySet.find('key-99'))
  assert.equal(keySet.state().keys, 100)
  assert.equal(keySet.current('key-100'), undefined)
})

test('the boot does not fail without the provider, and the state shows it', async () => {
  const { clock, idp, keySet } = await setUp()
  assert.deepEqual(keySet.state(), { keys: 0, fetchedAtMs: null, lastError: null })
  idp.goDown()
  await keySet.warmUp()
  assert.equal(keySet.isReady(), false)
  assert.deepEqual(keySet.state(), { keys: 0, fetchedAtMs: null, lastError: 'the response was 503' })
  idp.recover()
  await clock.advance(COOLDOWN_MS)
  await keySet.warmUp()
  assert.equal(keySet.isReady(), true)
  assert.deepEqual(keySet.state(), { keys: 1, fetchedAtMs: START_MS + COOLDOWN_MS, lastError: null })
})

test('the log has the outcomes and never a key', async () => {
  const lines: { event: string; fields: object }[] = []
  const record = (fields: object, event: string) => void lines.push({ event, fields })
  const log = { debug: record, info: record, warn: record, error: record }
  const { clock, idp, keySet } = await setUp({ log })
  await keySet.warmUp()
  idp.goDown()
  await clock.advance(COOLDOWN_MS)
  await keySet.warmUp()
  assert.deepEqual(lines, [
    { event: 'key_set.fetched', fields: { keys: 1, ignored: 0 } },
    { event: 'key_set.fetch_failed', fields: { error: 'the response was 503', keys: 1 } },
  ])
})
