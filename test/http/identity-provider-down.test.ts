import assert from 'node:assert/strict'
import { after, beforeEach, describe, test } from 'node:test'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { assertError } from '../support/assert-error.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { onOneService, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

const idp = await startIdentityProvider()
after(() => idp.close())

const ME = '/v1/users/me'
const COOLDOWN_MS = 10_000
const TTL_MS = 10 * 60_000
const DOWN = { status: 503, code: 'service_unavailable', message: 'The identity provider is unavailable' } as const
const INVALID = { status: 401, code: 'unauthorized', message: 'Invalid or expired token' } as const

interface Ready {
  checks: { identity_provider: { state: string; detail: string } }
}

describe('while the identity provider is down', () => {
  onOneService((under) => {
    beforeEach(() => idp.recover())
    const start = async () => under.start({ idp, clock: new ManualClock(), db: (await under.shared()).db })
    const lasting = (service: TestService, sub = 'ada') => service.tokenFor({ sub, expiresInSeconds: 7_200 })

    test('a service that never saw a key boots, and answers tokens with 503 rather than 401', async () => {
      idp.goDown()
      const service = await start()
      const answer = await service.request('GET', ME, { token: lasting(service) })
      assertError(service, answer, DOWN)
      assert.equal(answer.headers['retry-after'], '10')
      assert.equal(answer.headers['www-authenticate'], undefined)
      const ready = await service.request<Ready>('GET', '/readyz')
      assert.equal(ready.status, 503)
      assert.partialDeepStrictEqual(ready.body.checks.identity_provider, {
        state: 'down',
        detail: 'no keys fetched yet',
      })
      assert.equal(ready.headers['retry-after'], '1')
      assert.equal((await service.request('GET', '/healthz')).status, 200)
      await service.clock.leap(4_000)
      const later = await service.request('GET', ME, { token: lasting(service) })
      assert.equal(later.headers['retry-after'], '6', 'until the provider is asked again')
    })

    test('faults of a credential that need no key are still reported as 401', async () => {
      idp.goDown()
      const service = await start()
      assertError(service, await service.request('GET', ME), { ...INVALID, message: 'Missing bearer token' })
      assertError(service, await service.request('GET', ME, { token: 'garbage' }), INVALID)
      assertError(
        service,
        await service.request('GET', ME, { token: service.tokenFor({ expiresInSeconds: 0 }) }),
        INVALID,
      )
      const { key } = await service.db.transaction((tx) =>
        service.services.serviceAccounts.create(
          tx,
          { name: 'Backend', scopes: ['read:projects'], createdBy: 'test', expiresAtMs: null },
          { actor: { kind: 'user', id: 'test' }, address: null, requestId: null },
        ),
      )
      assert.equal((await service.request('GET', '/v1/projects', { key })).status, 200)
      assert.equal((await service.request('GET', '/openapi.json')).status, 200)
    })

    test('the identity provider gets one fetch per cooldown while it is down, with any number of requests', async () => {
      idp.goDown()
      const service = await start()
      const hitsBefore = idp.hits
      const send = () => service.request('GET', ME, { token: lasting(service) })
      const burst = await Promise.all(Array.from({ length: 20 }, send))
      for (const answer of burst) assertError(service, answer, DOWN)
      await service.request('GET', '/readyz')
      assert.equal(idp.hits - hitsBefore, 1)
      await service.clock.leap(COOLDOWN_MS)
      await send()
      assert.equal(idp.hits - hitsBefore, 2)
    })

    test('the service recovers by itself', async () => {
      idp.goDown()
      const service = await start()
      const token = lasting(service)
      assertError(service, await service.request('GET', ME, { token }), DOWN)
      idp.recover()
      await service.clock.leap(COOLDOWN_MS)
      assert.equal((await service.request('GET', ME, { token })).status, 200)
      const ready = await service.request<Ready>('GET', '/readyz')
      assert.equal(ready.status, 200)
      assert.equal(ready.body.checks.identity_provider.state, 'ok')
    })

    test('a readiness probe alone is enough to recover', async () => {
      idp.goDown()
      const service = await start()
      assert.equal((await service.request('GET', '/readyz')).status, 503)
      idp.recover()
      await service.clock.leap(COOLDOWN_MS)
      assert.equal((await service.request('GET', '/readyz')).status, 200)
    })

    test('a readiness probe answers within 2 s while the identity provider hangs and no key was ever fetched', async () => {
      idp.hang()
      const clock = new ManualClock()
      const service = await under.start({ idp, clock, db: (await under.shared()).db })
      const sleeping = clock.sleeping
      const asked = service.request<Ready>('GET', '/readyz')
      let status: number | null = null
      void asked.then((answer) => {
        status = answer.status
      })
      // The time on the way to the service does not count.
      await until(() => clock.sleeping > sleeping)
      let passedMs = 0
      await until(async () => {
        if (passedMs < 2_000) {
          await clock.advance(100)
          passedMs += 100
        }
        return status !== null
      })
      const down = { state: 'down', detail: 'no keys fetched yet' }
      assert.partialDeepStrictEqual((await asked).body.checks.identity_provider, down)
      assert.equal(status, 503)
    })

    for (const [what, fail] of [
      ['an error', () => idp.goDown({ status: 500 })],
      ['a redirect', () => idp.goDown({ status: 302, headers: { location: idp.jwksUrl } })],
      ['half a document', () => idp.breakBody()],
      ['an empty set', () => idp.breakBody('{"keys":[]}')],
    ] as const) {
      test(`keys once fetched keep serving while the identity provider answers with ${what}`, async () => {
        const service = await start()
        const [seen, unseen] = [lasting(service), lasting(service, 'grace')]
        assert.equal((await service.request('GET', ME, { token: seen })).status, 200)
        fail()
        await service.clock.leap(TTL_MS)
        for (const token of [seen, unseen]) {
          assert.equal((await service.request('GET', ME, { token })).status, 200)
        }
        await service.services.keySet.warmUp()
        const ready = await service.request<Ready>('GET', '/readyz')
        assert.equal(ready.status, 200)
        const serving = {
          state: 'degraded',
          detail: 'the issuer does not answer: the service uses the keys that it has',
        }
        assert.partialDeepStrictEqual(ready.body.checks.identity_provider, serving)
        const unknown = service.idp.mint({ kid: 'unknown', claims: { exp: service.clock.now() / 1000 + 60 } })
        assertError(service, await service.request('GET', ME, { token: unknown }), INVALID)
      })
    }

    test('known keys serve while the identity provider hangs', async () => {
      const service = await start()
      const [seen, unseen] = [lasting(service), lasting(service, 'grace')]
      assert.equal((await service.request('GET', ME, { token: seen })).status, 200)
      idp.hang()
      await service.clock.leap(TTL_MS)
      for (const token of [seen, unseen, seen]) {
        assert.equal((await service.request('GET', ME, { token })).status, 200)
      }
    })

    test('a new key is found, and tokens of one that left the set are refused', async () => {
      const service = await start()
      const old = lasting(service)
      assert.equal((await service.request('GET', ME, { token: old })).status, 200)
      await idp.rotate({ keepOld: false })
      const young = lasting(service)
      assertError(service, await service.request('GET', ME, { token: young }), INVALID)
      await service.clock.leap(COOLDOWN_MS)
      assert.equal((await service.request('GET', ME, { token: young })).status, 200)
      assertError(service, await service.request('GET', ME, { token: old }), INVALID)
    })
  })
})
