import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { createServiceKey } from '../../src/auth/service-key.ts'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import { FAILED_CHECKS_PER_SECOND } from '../../src/http/admission/spent-addresses.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestRequest, TestResponse } from '../support/http-client.ts'
import { rawExchange } from '../support/raw-exchange.ts'
import { type RedisServer, startRedis } from '../support/redis.ts'
import { forEachServiceAndVariant, onOneService, type ServiceUnderTest, type TestService } from '../support/service.ts'
import { needsRedis } from '../support/services.ts'
import { TokenForge } from '../support/token-forge.ts'
import { WatchedDatabase } from '../support/watched-database.ts'

const LIMITS = { RATE_LIMIT_UNAUTHENTICATED: '5', RATE_LIMIT_AUTHENTICATED: '7', RATE_LIMIT_SERVICE: '9' }
const SPENT = { status: 429, code: 'rate_limit_exceeded', message: 'Too many requests' } as const
const WINDOW_MS = 60_000
const ME = '/v1/users/me'

interface Standing {
  limit: number
  remaining: number
}

/** Which budget an answer was charged to and what is left of it, by its headers; null when it was not charged. */
function standing({ headers }: TestResponse): Standing | null {
  for (const name of Object.keys(headers)) assert.doesNotMatch(name, /^x-ratelimit/)
  const limit = headers['ratelimit-limit']
  if (limit === undefined) {
    assert.ok(!Object.keys(headers).some((name) => name.startsWith('ratelimit')))
    return null
  }
  assert.equal(headers['ratelimit-policy'], `${limit};w=60`)
  assert.match(String(headers['ratelimit-reset']), /^[1-9]\d?$/)
  return { limit: Number(limit), remaining: Number(headers['ratelimit-remaining']) }
}

async function newAccount(service: TestService) {
  const token = service.tokenFor({ sub: crypto.randomUUID(), scopes: ['admin:*'] })
  const body = { name: 'Backend', scopes: ['admin:*'] }
  const created = await service.request<{ key: string }>('POST', '/v1/service-accounts', { token, body })
  return { key: created.body.key, path: String(created.headers.location) }
}

/** A valid token with other contents, whose signature is therefore wrong. */
function forged(service: TestService, change: { header?: object; claims?: object }): string {
  const [header, payload, signature] = TokenForge.split(service.tokenFor())
  const parts = [
    { ...TokenForge.decode(header), ...change.header },
    { ...TokenForge.decode(payload), ...change.claims },
  ]
  return [...parts.map(TokenForge.encode), signature].join('.')
}

describe('rate limits', () => {
  onOneService((under) => {
    let limited: Promise<TestService> | undefined
    /** The same service for all, in a window that begins with the test. */
    const fresh = async () => {
      limited ??= under.start({ env: LIMITS })
      const service = await limited
      await service.clock.leap(WINDOW_MS)
      return service
    }

    test('the address of a request without a credential is charged, on every path but the exempt ones', async () => {
      const service = await fresh()
      const left: unknown[] = []
      for (const path of ['/openapi.json', '/docs', '/nothing', '/v1/nothing', '/v1/projects']) {
        left.push(standing(await service.request('GET', path)))
      }
      assert.deepEqual(
        left,
        [4, 3, 2, 1, 0].map((remaining) => ({ limit: 5, remaining })),
      )
      for (const path of ['/openapi.json', '/v1/projects', '/nothing']) {
        const answer = await service.request('GET', path)
        assertError(service, answer, SPENT)
        assert.deepEqual(standing(answer), { limit: 5, remaining: 0 })
        assert.equal(answer.headers['retry-after'], '60')
      }
    })

    test('the sub of a token is charged, whichever token of that sub it is, and no other sub', async () => {
      const service = await fresh()
      const tokens = [service.tokenFor({ sub: 'ada' }), service.tokenFor({ sub: 'ada', expiresInSeconds: 600 })]
      for (let n = 0; n < 7; n++) {
        const answer = await service.request('GET', ME, { token: String(tokens[n % 2]) })
        assert.equal(answer.status, 200)
        assert.deepEqual(standing(answer), { limit: 7, remaining: 6 - n })
      }
      for (const token of tokens) assertError(service, await service.request('GET', ME, { token }), SPENT)
      const other = await service.request('GET', ME, { token: service.tokenFor({ sub: 'grace' }) })
      assert.deepEqual(standing(other), { limit: 7, remaining: 6 })
      assert.deepEqual(standing(await service.request('GET', '/nothing')), { limit: 5, remaining: 4 })
    })

    test('the key of a request is charged, also in place of the token that is sent with it', async () => {
      const service = await fresh()
      const { key, path } = await newAccount(service)
      const token = service.tokenFor({ sub: 'heavy' })
      for (let n = 0; n < 9; n++) {
        const answer = await service.request('GET', '/v1/users', n % 2 ? { key } : { key, token })
        assert.deepEqual(standing(answer), { limit: 9, remaining: 8 - n })
      }
      assertError(service, await service.request('GET', '/v1/users', { key }), SPENT)
      assertError(service, await service.request('GET', ME, { key, token }), SPENT)
      assert.deepEqual(standing(await service.request('GET', ME, { token })), { limit: 7, remaining: 6 })
      const admin = service.tokenFor({ sub: 'rotator', scopes: ['admin:*'] })
      const rotated = await service.request<{ key: string }>('POST', `${path}/rotate`, { token: admin })
      const next = await service.request('GET', '/v1/users', { key: rotated.body.key })
      assert.deepEqual(standing(next), { limit: 9, remaining: 8 }, 'another key is another budget')
    })

    test('each request is charged to exactly one tier, with any outcome', async () => {
      const service = await fresh()
      const token = service.tokenFor({ sub: 'clumsy', scopes: ['write:projects'] })
      const mishaps: [string, string, TestRequest][] = [
        ['GET', '/v1/projects', {}],
        ['GET', '/v1/nothing', {}],
        ['PUT', '/v1/projects', {}],
        ['POST', '/v1/projects', { body: {} }],
        ['POST', '/v1/projects', { raw: '{', headers: { 'content-type': 'application/json' } }],
        ['POST', '/v1/projects', { body: { name: 'Well' } }],
      ]
      const statuses: number[] = []
      for (const [n, [method, path, options]] of mishaps.entries()) {
        const answer = await service.request(method, path, { token, ...options })
        statuses.push(answer.status)
        assert.deepEqual(standing(answer), { limit: 7, remaining: 6 - n })
      }
      assert.deepEqual(statuses, [403, 404, 405, 400, 400, 201])
      assert.deepEqual(standing(await service.request('GET', '/nothing')), { limit: 5, remaining: 4 })
    })

    test('a failed credential is charged to its address; over the limit it is not checked any more', async () => {
      const service = await fresh()
      const { key } = await newAccount(service)
      const token = service.tokenFor({ sub: 'victim' })
      const headers = (authorization: string) => ({ headers: { authorization } })
      const attempts: TestRequest[] = [
        { token: 'garbage' },
        { key: 'garbage' },
        { token, key: 'garbage' },
        { token: 'garbage', key },
        headers('Basic YTpi'),
      ]
      for (const [n, attempt] of attempts.entries()) {
        const answer = await service.request('GET', ME, attempt)
        assert.equal(answer.status, 401)
        assert.deepEqual(standing(answer), { limit: 5, remaining: 4 - n })
      }
      for (const attempt of [...attempts, {}]) {
        const answer = await service.request('GET', ME, attempt)
        assertError(service, answer, SPENT)
        assert.equal(answer.headers['www-authenticate'], undefined)
      }
      const good = await service.request('GET', ME, { token })
      assert.equal(good.status, 200, 'who has a credential is not held for others behind the same address')
      assert.deepEqual(standing(good), { limit: 7, remaining: 6 }, 'and no other caller spent its budget')
      assert.equal((await service.request('GET', '/v1/users', { key })).status, 200)
    })

    test('an address over its limit: known credentials pass, 200 unknown ones a second may fail, others get 429 without work', async () => {
      const database = new WatchedDatabase(await under.engine.openDatabase())
      const service = await under.start({ env: LIMITS, db: database.db })
      const { key } = await newAccount(service)
      const known = service.tokenFor({ sub: 'known' })
      assert.equal((await service.request('GET', ME, { token: known })).status, 200)
      assert.equal((await service.request('GET', '/v1/users', { key })).status, 200)
      for (let n = 0; n < 6; n++) await service.request('GET', '/nothing')
      database.forget()
      for (let n = 0; n < FAILED_CHECKS_PER_SECOND + 10; n++) {
        const answer = await service.request('GET', ME, { key: createServiceKey(systemRandom) })
        assertError(service, answer, SPENT)
        assert.deepEqual(standing(answer), { limit: 5, remaining: 0 })
        assert.equal(answer.headers['retry-after'], '60')
      }
      assert.equal(database.count(/from service_keys/), FAILED_CHECKS_PER_SECOND)
      const newcomer = service.tokenFor({ sub: 'newcomer' })
      assertError(service, await service.request('GET', ME, { token: newcomer }), SPENT)
      assertError(service, await service.request('GET', ME, { token: newcomer, key }), SPENT)
      assert.equal((await service.request('GET', ME, { token: known })).status, 200)
      assert.equal((await service.request('GET', '/v1/users', { key })).status, 200)
      await service.clock.leap(1_000)
      assert.equal((await service.request('GET', ME, { token: newcomer })).status, 200, 'the next second checks it')
      await service.clock.leap(WINDOW_MS)
      database.forget()
      for (let n = 0; n < 5; n++) await service.request('GET', ME, { key: createServiceKey(systemRandom) })
      assert.equal(database.count(/from service_keys/), 5, 'the next window checks them all')
    })

    test('no unproven body is read from a spent address', async () => {
      const service = await under.start({ env: { ...LIMITS, WEBHOOK_SECRET: 'a-secret-of-the-runtime' } })
      for (let n = 0; n < 6; n++) await service.request('GET', '/nothing')
      const head = ['POST /webhooks/agent HTTP/1.1', 'Host: x', 'Webhook-Signature: v1,x', 'Content-Length: 10000000']
      const [answer] = await rawExchange(service.url, [...head, 'Connection: close', '', ''].join('\r\n'))
      assert.equal(answer?.status, 429, 'the answer came without a byte of the body')
      assert.equal(answer?.headers['retry-after'], '60')
      const proven = { headers: { 'x-webhook-secret': 'a-secret-of-the-runtime' }, raw: '{}' }
      assert.equal((await service.request('POST', '/webhooks/agent', proven)).status, 400, 'a proven one is read')
    })

    test('probes and static assets are never charged, and answer when the limit is exceeded', async () => {
      const service = await fresh()
      for (let n = 0; n < 6; n++) await service.request('GET', '/nothing')
      for (const path of ['/healthz', '/readyz', '/docs/start.js', '/docs/reference.js']) {
        const answer = await service.request('GET', path)
        assert.equal(answer.status, 200)
        assert.equal(standing(answer), null)
      }
    })

    test('a window lasts a minute from its first request, and a spent one lets in again after Retry-After', async () => {
      const service = await fresh()
      const token = service.tokenFor({ sub: 'patient' })
      const send = () => service.request('GET', ME, { token })
      const resets: unknown[] = [(await send()).headers['ratelimit-reset']]
      for (const ms of [1, 29_999, 29_000, 999]) {
        await service.clock.leap(ms)
        resets.push((await send()).headers['ratelimit-reset'])
      }
      assert.deepEqual(resets, ['60', '60', '30', '1', '1'])
      await send()
      await send()
      const spent = await send()
      assertError(service, spent, SPENT)
      assert.equal(spent.headers['retry-after'], '1')
      await service.clock.leap(1)
      assert.deepEqual(standing(await send()), { limit: 7, remaining: 6 })
    })

    test('no more than the limit of many concurrent requests are admitted', async () => {
      const service = await fresh()
      const token = service.tokenFor({ sub: 'burst' })
      const burst = await Promise.all(Array.from({ length: 30 }, () => service.request('GET', ME, { token })))
      assert.equal(burst.filter(({ status }) => status === 200).length, 7)
      assert.equal(burst.filter(({ status }) => status === 429).length, 23)
    })

    test('a forged X-Forwarded-For changes nothing', async () => {
      const service = await fresh()
      const names = ['x-forwarded-for', 'x-real-ip', 'forwarded', 'x-client-ip', 'cf-connecting-ip', 'true-client-ip']
      const remaining: unknown[] = []
      for (const name of names) {
        const value = name === 'forwarded' ? 'for=203.0.113.9' : '203.0.113.9'
        remaining.push(standing(await service.request('GET', '/nothing', { headers: { [name]: value } }))?.remaining)
      }
      assert.deepEqual(remaining, [4, 3, 2, 1, 0, 0])
    })

    sweepProxies(under)
    sweepSettings(under)
  })
})

function sweepProxies(under: ServiceUnderTest): void {
  test('the client behind a trusted proxy is charged, IPv6 by its /64', async () => {
    const db = (await under.shared()).db
    const service = await under.start({ db, env: { ...LIMITS, TRUST_PROXY: '127.0.0.1, 10.0.0.0/8' } })
    const left = async (forwarded: string | string[]) => {
      const headers = { 'x-forwarded-for': forwarded }
      return standing(await service.request('GET', '/nothing', { headers }))?.remaining
    }
    assert.equal(await left('203.0.113.1'), 4)
    assert.equal(await left('203.0.113.2'), 4, 'another client')
    assert.equal(await left('198.51.100.7, 203.0.113.1'), 3, 'what the client itself wrote does not count')
    assert.equal(await left('203.0.113.1, 10.1.2.3'), 2, 'a trusted hop is passed over')
    assert.equal(await left(['6.6.6.6', '203.0.113.1']), 1, 'two headers are one list')
    assert.equal(await left('::ffff:203.0.113.1'), 0, 'one address has one name')
    assert.equal(await left('2001:db8::1'), 4)
    assert.equal(await left('2001:db8::ffff:1:2:3'), 3)
    assert.equal(await left('2001:0DB8:0000:0000:1::'), 2)
    assert.equal(await left('2001:db8:0:1::1'), 4)
    assert.equal(await left('unknown'), 4, 'those without an address share one budget')
    assert.equal(await left('_hidden'), 3)
    assert.equal(await left(`'; drop table`), 2)
    assert.equal(await left(''), 4, 'the proxy itself')
  })

  test('a forwarded address with a port counts as its address, and so does a trusted hop with one', async () => {
    const db = (await under.shared()).db
    const service = await under.start({ db, env: { ...LIMITS, TRUST_PROXY: '127.0.0.1, 10.0.0.0/8' } })
    const left = async (forwarded: string) => {
      const headers = { 'x-forwarded-for': forwarded }
      return standing(await service.request('GET', '/nothing', { headers }))?.remaining
    }
    assert.equal(await left('203.0.113.1:4112'), 4)
    assert.equal(await left('203.0.113.2:4112'), 4, 'another client')
    assert.equal(await left('203.0.113.1:4113'), 3)
    assert.equal(await left('203.0.113.1'), 2)
    assert.equal(await left('203.0.113.1:4114, 10.1.2.3:8080'), 1)
    assert.equal(await left('[2001:db8::1]:443'), 4)
    assert.equal(await left('[2001:db8::2]:80'), 3, 'the same /64')
    assert.equal(await left('[2001:db8:0:1::1]:443'), 4, 'another /64')
    assert.equal(await left('[fe80::1%eth0]:443'), 4)
    assert.equal(await left('fe80::2%eth1'), 3)
  })

  test('the headers of a proxy that is not on the list are ignored', async () => {
    const db = (await under.shared()).db
    const service = await under.start({ db, env: { ...LIMITS, TRUST_PROXY: '192.0.2.0/24' } })
    for (const remaining of [4, 3]) {
      const headers = { 'x-forwarded-for': `203.0.113.${remaining}` }
      assert.equal(standing(await service.request('GET', '/nothing', { headers }))?.remaining, remaining)
    }
  })
}

function sweepSettings(under: ServiceUnderTest): void {
  test('the default limits are 100, 1,000 and 10,000 a minute', async () => {
    const db = (await under.shared()).db
    const unset = { RATE_LIMIT_UNAUTHENTICATED: '', RATE_LIMIT_AUTHENTICATED: '', RATE_LIMIT_SERVICE: '' }
    const service = await under.start({ db, env: unset })
    const { key } = await newAccount(service)
    const policy = async (options: TestRequest) =>
      (await service.request('GET', '/v1/users', options)).headers['ratelimit-policy']
    assert.equal(await policy({}), '100;w=60')
    assert.equal(await policy({ token: service.tokenFor() }), '1000;w=60')
    assert.equal(await policy({ key }), '10000;w=60')
  })

  test('the newer form of the headers names the tier', async () => {
    const db = (await under.shared()).db
    const service = await under.start({ db, env: { ...LIMITS, RATE_LIMIT_HEADERS: 'draft-8' } })
    const { key } = await newAccount(service)
    const shown = async (options: TestRequest) => {
      const { headers } = await service.request('GET', '/v1/users', options)
      const names = Object.keys(headers).filter((name) => /ratelimit/.test(name))
      return Object.fromEntries(names.map((name) => [name, headers[name]]))
    }
    const cases: [tier: string, limit: number, options: TestRequest][] = [
      ['unauthenticated', 5, {}],
      ['authenticated', 7, { token: service.tokenFor() }],
      ['service', 9, { key }],
    ]
    for (const [tier, limit, options] of cases) {
      assert.deepEqual(await shown(options), {
        'ratelimit-policy': `"${tier}";q=${limit};w=60`,
        ratelimit: `"${tier}";r=${limit - 1};t=60`,
      })
    }
    await service.clock.leap(45_500)
    for (let n = 0; n < 4; n++) await service.request('GET', '/nothing')
    const spent = await service.request('GET', '/v1/users')
    assertError(service, spent, SPENT)
    assert.equal(spent.headers.ratelimit, '"unauthenticated";r=0;t=15')
    assert.equal(spent.headers['retry-after'], '15')
  })
}

describe('credentials from a spent address', () => {
  forEachServiceAndVariant((under) => {
    test('a flood of tokens and keys that fail without a signature check locks no fresh valid credential out', async () => {
      const service = await under.start({ env: LIMITS })
      const { key } = await newAccount(service)
      const flood: TestRequest[] = [
        { token: 'x' },
        { token: `${service.tokenFor()}=` },
        { token: forged(service, { claims: { iss: 'https://elsewhere.test' } }) },
        { token: forged(service, { claims: { exp: 1 } }) },
        { token: forged(service, { header: { kid: 'unknown' } }) },
        { key: 'pak_x' },
      ]
      for (let n = 0; n < FAILED_CHECKS_PER_SECOND * 2; n++) {
        const answer = await service.request('GET', ME, flood[n % flood.length] ?? {})
        assert.equal(answer.status, n < 5 ? 401 : 429)
      }
      const fresh = await Promise.all(
        Array.from({ length: 100 }, (_, n) =>
          service.request('GET', ME, { token: service.tokenFor({ sub: `fresh-${n}` }) }),
        ),
      )
      assert.deepEqual(new Set(fresh.map(({ status }) => status)), new Set([200]))
      assert.equal((await service.request('GET', '/v1/users', { key })).status, 200)
    })

    test('of a spent address 200 signature checks a second may fail, and the checks of valid tokens do not count', async () => {
      const service = await under.start({ env: LIMITS })
      const enter = (sub: string) => service.request('GET', ME, { token: service.tokenFor({ sub }) })
      for (let n = 0; n < 6; n++) await service.request('GET', '/nothing')
      for (let n = 0; n < FAILED_CHECKS_PER_SECOND - 1; n++) {
        const token = forged(service, { claims: { sub: `forged-${n}` } })
        assertError(service, await service.request('GET', ME, { token }), SPENT)
      }
      for (let n = 0; n < 5; n++) assert.equal((await enter(`early-${n}`)).status, 200)
      const last = forged(service, { claims: { sub: 'forged' } })
      assertError(service, await service.request('GET', ME, { token: last }), SPENT)
      assertError(service, await enter('late'), SPENT)
      assert.equal((await enter('early-1')).status, 200, 'it is known')
      await service.clock.leap(1_000)
      assert.equal((await enter('late')).status, 200)
    })
  })
})

describe('rate limits on Redis', needsRedis(), () => {
  let redis: RedisServer
  before(async () => {
    redis = await startRedis()
  })
  after(() => redis.stop())

  onOneService((under) => {
    const start = async () => {
      const db = (await under.shared()).db
      const env = { ...LIMITS, REDIS_URL: redis.url }
      let losses = 0
      const warn = (_fields: object, event: string) => {
        if (event === 'limiter.redis_lost') losses += 1
      }
      const log = { ...silentLog, warn }
      const nodes = [await under.start({ db, env, log }), await under.start({ db, env, log })] as const
      /**
       * What is sent while no node loses Redis. Redis has 250 ms for a reply: on a busy machine one may come later, and its
       * hits are then counted locally. So this sends again, for another user, at most five times.
       */
      const undisturbed = async <Sent>(send: (sub: string) => Promise<Sent>, firstSub: string): Promise<Sent> => {
        let sub = firstSub
        for (let left = 5; ; left--) {
          for (const node of nodes) await untilLimiter(node, { degraded: false })
          const before = losses
          const sent = await send(sub)
          if (losses === before) return sent
          assert.ok(left > 1, 'Redis was lost each time')
          sub = crypto.randomUUID()
        }
      }
      return { nodes, undisturbed }
    }

    test('two nodes count together, then each alone while Redis is gone, then together again', async () => {
      const { nodes, undisturbed } = await start()
      const [here, there] = nodes
      const sendAs = (node: TestService, sub: string) => node.request('GET', ME, { token: node.tokenFor({ sub }) })
      const { sub, counted, refused } = await undisturbed(async (sub) => {
        const counted: TestResponse[] = []
        for (const node of [here, there, here, there, here, there, here]) counted.push(await sendAs(node, sub))
        return { sub, counted, refused: [await sendAs(here, sub), await sendAs(there, sub)] }
      }, crypto.randomUUID())
      const send = (node: TestService) => sendAs(node, sub)
      for (const [n, answer] of counted.entries()) {
        assert.equal(answer.status, 200)
        assert.deepEqual(standing(answer), { limit: 7, remaining: 6 - n })
      }
      for (const answer of refused) assertError(here, answer, SPENT)

      await redis.kill()
      for (const node of [here, there]) await untilLimiter(node, { degraded: true })
      for (const node of [here, there]) {
        for (let n = 0; n < 7; n++) assert.deepEqual(standing(await send(node)), { limit: 7, remaining: 6 - n })
        assertError(node, await send(node), SPENT)
        assert.partialDeepStrictEqual(await rateLimitCheck(node), {
          state: 'degraded',
          detail: 'Redis cannot be used: each node counts rate limits alone',
        })
      }

      await redis.restart()
      for (const node of [here, there]) await untilLimiter(node, { degraded: false })
      assert.deepEqual(await rateLimitCheck(here), { state: 'ok', detail: 'redis', since: null })
      const together = await undisturbed(async (sub) => [await sendAs(here, sub), await sendAs(there, sub)], sub)
      assert.deepEqual(
        together.map(standing),
        [6, 5].map((remaining) => ({ limit: 7, remaining })),
      )
    })

    test('a node that starts while Redis is down serves from its first request', async () => {
      const db = (await under.shared()).db
      const service = await under.start({ db, env: { ...LIMITS, REDIS_URL: 'redis://127.0.0.1:1' } })
      const answer = await service.request('GET', ME, { token: service.tokenFor() })
      assert.equal(answer.status, 200)
      assert.deepEqual(standing(answer), { limit: 7, remaining: 6 })
      assert.equal((await rateLimitCheck(service)).state, 'degraded')
    })
  })
})

/** `/readyz` is ready either way: counting alone is no reason to send no traffic. */
async function rateLimitCheck(service: TestService): Promise<{ state: string; detail: string }> {
  // A report holds for a second.
  await service.clock.leap(1_000)
  const ready = await service.request<{ checks: { rate_limits: { state: string; detail: string } } }>('GET', '/readyz')
  assert.equal(ready.status, 200, ready.text)
  return ready.body.checks.rate_limits
}

/** Asks again until it is so; the test runner's own timeout is the bound. */
async function untilLimiter(service: TestService, { degraded }: { degraded: boolean }): Promise<void> {
  while (service.services.limiter.state().degraded !== degraded) await service.request('GET', '/healthz')
}
