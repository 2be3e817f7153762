import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { Project } from '../../src/projects/project-schema.ts'
import type { ServiceAccountWithKey } from '../../src/service-accounts/service-account-schema.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestResponse } from '../support/http-client.ts'
import { forEachService, type TestService } from '../support/service.ts'

const DAY_MS = 24 * 60 * 60_000
const REUSED = {
  status: 422,
  code: 'idempotency_key_reused',
  message: 'This Idempotency-Key was used with a different request',
} as const
const IN_FLIGHT = {
  status: 409,
  code: 'conflict',
  message: 'A request with this Idempotency-Key is still in flight',
} as const

interface Post {
  key?: string
  sub?: string
  path?: string
  body?: unknown
}

function post<Body = Project>(service: TestService, { key, sub = 'ada', path, body }: Post) {
  return service.request<Body>('POST', path ?? '/v1/projects', {
    token: service.tokenFor({ sub, scopes: ['admin:*'] }),
    headers: key === undefined ? {} : { 'idempotency-key': key },
    body: body ?? { name: 'Once' },
  })
}

function assertReplay(again: TestResponse, first: TestResponse): void {
  assert.equal(again.status, first.status)
  assert.deepEqual(again.body, first.body)
  assert.equal(again.headers.location, first.headers.location)
  assert.equal(again.headers.etag, first.headers.etag)
  assert.equal(again.headers['idempotency-replayed'], 'true')
  assert.equal(first.headers['idempotency-replayed'], undefined)
}

async function countProjects(service: TestService, name: string): Promise<number> {
  const rows = await service.db.query(sql`select id from projects where name = ${name}`)
  return rows.length
}

describe('idempotency keys', () => {
  forEachService((under) => {
    test('a repeat gets the first answer again and creates nothing', async () => {
      const service = await under.shared()
      const body = { name: 'Repeated', description: '日本 🧮', metadata: { a: 'a\u0000\ud800', b: [1, 2] } }
      const first = await post(service, { key: 'repeat', body })
      assert.equal(first.status, 201)
      assert.ok(first.headers.etag)
      for (let n = 0; n < 3; n++) assertReplay(await post(service, { key: 'repeat', body }), first)
      assert.equal(await countProjects(service, 'Repeated'), 1)
      const path = String(first.headers.location)
      const token = service.tokenFor({ sub: 'ada', scopes: ['admin:*'] })
      await service.request('PATCH', path, { token, body: { name: 'Renamed' } })
      assertReplay(await post(service, { key: 'repeat', body }), first)
      await service.request('DELETE', path, { token })
      assertReplay(await post(service, { key: 'repeat', body }), first)
    })

    test('every request without a key creates', async () => {
      const service = await under.shared()
      const body = { name: 'Every time' }
      const [one, two] = [await post(service, { body }), await post(service, { body })]
      assert.notEqual(one.body.id, two.body.id)
      assert.equal(one.headers['idempotency-replayed'], undefined)
    })

    test('the same document in another order or spacing is the same request', async () => {
      const service = await under.shared()
      const token = service.tokenFor({ sub: 'ada', scopes: ['admin:*'] })
      const headers = { 'idempotency-key': 'spelling', 'content-type': 'application/json' }
      const send = (raw: string) => service.request('POST', '/v1/projects', { token, headers, raw })
      const first = await send('{"name":"Spelt","metadata":{"a":1,"b":{"c":2,"d":3}}}')
      assertReplay(await send(' {"metadata" : {"b":{"d":3,"c":2}, "a":1},\n"name":"Sp\\u0065lt"}'), first)
      assertError(service, await send('{"name":"Spelt","metadata":{"a":1.0,"b":{"c":2,"d":3}}}'), REUSED)
    })

    test('another body or another path under the same key is a 422', async () => {
      const service = await under.shared()
      const first = await post(service, { key: 'reused', body: { name: 'First' } })
      assertError(service, await post(service, { key: 'reused', body: { name: 'Second' } }), REUSED)
      assertError(service, await post(service, { key: 'reused', body: { name: 'First', description: null } }), REUSED)
      const elsewhere = { key: 'reused', path: '/v1/service-accounts', body: { name: 'First', scopes: [] } }
      assertError(service, await post(service, elsewhere), REUSED)
      assertReplay(await post(service, { key: 'reused', body: { name: 'First' } }), first)
      assert.equal(await countProjects(service, 'Second'), 0)
    })

    test('each principal has keys of its own', async () => {
      const service = await under.shared()
      const ada = await post(service, { key: 'mine', sub: 'ada' })
      const grace = await post(service, { key: 'mine', sub: 'grace', body: { name: 'Other' } })
      assert.equal(grace.status, 201)
      assert.notEqual(grace.body.id, ada.body.id)
      assert.equal(grace.headers['idempotency-replayed'], undefined)
    })

    test('a key counts for a day and is then free again', async () => {
      const service = await under.shared()
      const first = await post(service, { key: 'daily' })
      await service.clock.leap(DAY_MS - 1)
      assertReplay(await post(service, { key: 'daily' }), first)
      await service.clock.leap(1)
      const second = await post(service, { key: 'daily', body: { name: 'Another day' } })
      assert.equal(second.status, 201, second.text)
      assert.notEqual(second.body.id, first.body.id)
      assertReplay(await post(service, { key: 'daily', body: { name: 'Another day' } }), second)
    })

    test('stored answers older than a day are deleted', async () => {
      const [service, database] = await Promise.all([under.shared(), under.watched()])
      await post(service, { key: 'swept' })
      await service.clock.leap(DAY_MS)
      await database.idle()
      await service.clock.leap(10 * 60_000)
      await database.idle()
      const now = service.clock.now()
      const left = await service.db.query(sql`select expires_at from idempotency_keys where expires_at <= ${now}`)
      assert.deepEqual(left, [])
    })

    test('exactly one of twenty concurrent requests with one key creates, and all get the same answer', async () => {
      const service = await under.shared()
      const body = { name: 'Raced' }
      const race = await Promise.all(Array.from({ length: 20 }, () => post(service, { key: 'race', body })))
      assertOneCreated(service, race)
      assert.equal(await countProjects(service, 'Raced'), 1)
      const later = await post(service, { key: 'race', body })
      assert.equal(later.status, 201, 'once it is over, the key replays')
    })

    test('exactly one of twenty concurrent requests with one key creates, also on two nodes', async () => {
      const here = await under.shared()
      const there = await under.start({ db: here.db, clock: here.clock })
      const body = { name: 'Raced on two nodes' }
      const race = await Promise.all(
        Array.from({ length: 20 }, (_, n) => post(n % 2 ? here : there, { key: 'two-nodes', body })),
      )
      assertOneCreated(here, race)
      assert.equal(await countProjects(here, 'Raced on two nodes'), 1)
    })

    test('the key of a failed request can be used again', async () => {
      const service = await under.shared()
      const refused = await post(service, { key: 'unburnt', body: { name: '' } })
      assertError(service, refused, { status: 400, code: 'invalid_request' })
      const tooBig = { name: 'x', metadata: { a: 'x'.repeat(20_000) } }
      assertError(service, await post(service, { key: 'unburnt', body: tooBig }), {
        status: 400,
        code: 'invalid_request',
      })
      const absent = await post(service, { key: 'unburnt', path: '/v1/service-accounts/svc_none/rotate', body: {} })
      assertError(service, absent, { status: 404, code: 'not_found' })
      assert.equal((await post(service, { key: 'unburnt' })).status, 201)
    })

    test('an invalid key is a 400', async () => {
      const service = await under.shared()
      const message = 'headers/idempotency-key must be 1 to 255 visible ASCII characters'
      for (const key of ['', 'a b', 'x'.repeat(256), 'é', 'a\tb']) {
        assertError(service, await post(service, { key }), { status: 400, code: 'invalid_request', message })
      }
      const token = service.tokenFor({ sub: 'ada', scopes: ['admin:*'] })
      const headers = { 'idempotency-key': ['a', 'b'] }
      const twice = await service.request('POST', '/v1/projects', { token, headers, body: { name: 'x' } })
      assertError(service, twice, { status: 400, code: 'invalid_request', message })
      assert.equal((await post(service, { key: '~'.repeat(255) })).status, 201)
      assert.equal((await post(service, { key: "';--{}[]%00\\" })).status, 201)
    })

    test('a repeat shows no service key again, and makes none', async () => {
      const service = await under.shared()
      const request = { key: 'account', path: '/v1/service-accounts', body: { name: 'Backend', scopes: [] } }
      const first = await post<ServiceAccountWithKey>(service, request)
      assert.equal(typeof first.body.key, 'string')
      const again = await post<ServiceAccountWithKey>(service, request)
      assertReplay(again, { ...first, body: { ...first.body, key: null } })

      const rotation = { key: 'rotation', path: `${first.headers.location}/rotate`, body: { grace_seconds: 60 } }
      const rotated = await post<ServiceAccountWithKey>(service, rotation)
      const repeated = await post<ServiceAccountWithKey>(service, rotation)
      assertReplay(repeated, { ...rotated, body: { ...rotated.body, key: null } })
      const id = first.body.id
      const keys = await service.db.query(sql`select id from service_keys where account_id = ${id}`)
      assert.equal(keys.length, 2)
    })
  })
})

/** One request did the work; an earlier duplicate got 409, a later one got the same answer. */
function assertOneCreated(service: TestService, race: TestResponse<Project>[]): void {
  const created = race.filter(({ status }) => status === 201)
  const fresh = created.filter(({ headers }) => headers['idempotency-replayed'] === undefined)
  assert.equal(fresh.length, 1)
  for (const { body } of created) assert.deepEqual(body, fresh[0]?.body)
  for (const answer of race) {
    if (answer.status === 201) continue
    assertError(service, answer, IN_FLIGHT)
    assert.equal(answer.headers['retry-after'], '1')
  }
}
