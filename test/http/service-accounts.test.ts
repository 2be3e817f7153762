import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { describe, test } from 'node:test'
import { isWellFormedServiceKey } from '../../src/auth/service-key.ts'
import { sql } from '../../src/db/sql.ts'
import type { ServiceAccount, ServiceAccountWithKey } from '../../src/service-accounts/service-account-schema.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestRequest } from '../support/http-client.ts'
import { forEachService, type TestService } from '../support/service.ts'

interface Page {
  data: ServiceAccount[]
  has_more: boolean
  next_cursor: string | null
}

const BASE = '/v1/service-accounts'
const DAY_MS = 24 * 60 * 60_000

const invalid = (message: string | RegExp) => ({ status: 400, code: 'invalid_request', message }) as const
const GONE = { status: 404, code: 'not_found', message: 'No such service account' } as const
const REFUSED = { status: 401, code: 'unauthorized', message: 'Invalid or expired API key' } as const

function asAdmin(service: TestService) {
  const send = <Body = ServiceAccountWithKey>(method: string, path: string, options: TestRequest = {}) =>
    service.request<Body>(method, path, { token: service.tokenFor({ sub: 'root', scopes: ['admin:*'] }), ...options })
  const create = async (fields: object = {}) => {
    const answer = await send('POST', BASE, { body: { name: 'Backend', scopes: ['read:projects'], ...fields } })
    assert.equal(answer.status, 201, answer.text)
    return { ...answer.body, key: String(answer.body.key), path: String(answer.headers.location) }
  }
  const rotate = async (path: string, body?: object) => {
    const answer = await send('POST', `${path}/rotate`, { body })
    assert.equal(answer.status, 201, answer.text)
    return String(answer.body.key)
  }
  const use = (key: string) => service.request('GET', '/v1/projects', { key })
  return { send, create, rotate, use }
}

describe('service accounts', () => {
  forEachService((under) => {
    test('a token whose sub is the id of a service account is refused, and gets nothing of the account', async () => {
      const service = await under.shared()
      const { id, key } = await asAdmin(service).create()
      const device = { token: `device-${id}`, platform: 'web' }
      assert.equal((await service.request('POST', '/v1/devices', { key, body: device })).status, 201)
      const token = service.tokenFor({ sub: id })
      for (const path of ['/v1/devices', '/jobs', '/v1/usage', '/v1/users/me']) {
        assertError(service, await service.request('GET', path, { token }), {
          status: 401,
          code: 'unauthorized',
          message: 'Invalid or expired token',
        })
      }
    })

    test('an account is created with a key that works, and is listed without it', async () => {
      const service = await under.shared()
      const { send, use } = asAdmin(service)
      const expires_at = new Date(service.clock.now() + DAY_MS).toISOString()
      const body = { name: 'Nightly 🌙 jobs', scopes: ['write:projects', 'read:projects'], expires_at }
      const created = await send('POST', BASE, { body })
      assert.equal(created.status, 201)
      const { id, key, key_hint } = created.body
      assert.match(id, /^svc_[0-9a-z]{26}$/)
      assert.ok(key !== null && isWellFormedServiceKey(key))
      assert.equal(key_hint, key.slice(-4))
      assert.equal(created.headers.location, `${BASE}/${id}`)
      const account = {
        id,
        ...body,
        key_hint,
        created_by: 'root',
        created_at: new Date(service.clock.now()).toISOString(),
        revoked_at: null,
        last_used_at: null,
      }
      assert.deepEqual(created.body, { ...account, key })
      const listed = await send<Page>('GET', `${BASE}?limit=1`)
      assert.deepEqual(listed.body.data, [account])
      // The log names the key, and the list finds its account.
      const [used] = await service.db.query<{ id: string }>(sql`select id from service_keys where account_id = ${id}`)
      const found = async (wanted = '') => (await send<Page>('GET', `${BASE}?id=${wanted}`)).body.data
      assert.deepEqual([await found(id), await found(used?.id), await found('key_none')], [[account], [account], []])
      const read = await send('GET', String(created.headers.location))
      assert.deepEqual([read.status, read.body], [200, account])
      for (const { text } of [listed, read]) assert.ok(!text.includes(key))
      assertError(service, await send('GET', `${BASE}/svc_nobody`), GONE)
      assert.equal((await use(key)).status, 200)
    })

    test('the database holds the hash of a key and never the key', async () => {
      const service = await under.shared()
      const { send } = asAdmin(service)
      const headers = { 'idempotency-key': 'look-in-the-database' }
      const body = { name: 'Secretive', scopes: [] }
      const { key, id } = (await send('POST', BASE, { body, headers })).body
      const rotated = (await send('POST', `${BASE}/${id}/rotate`, { headers: { 'idempotency-key': 'again' } })).body.key
      assert.ok(key && rotated)
      const dump = JSON.stringify([
        await service.db.query(sql`select * from service_keys`),
        await service.db.query(sql`select * from service_accounts`),
        await service.db.query(sql`select * from idempotency_keys`),
      ])
      for (const secret of [key, rotated]) {
        assert.ok(!dump.includes(secret))
        assert.ok(!dump.includes(secret.slice(4, -6)))
        assert.ok(dump.includes(createHash('sha256').update(secret).digest('hex')))
      }
    })

    test('each fault of the body is named with its place', async () => {
      const service = await under.shared()
      const { send } = asAdmin(service)
      const scopes: string[] = []
      const names = 'read:projects, write:projects, read:users, write:users, read:operations, admin:*'
      const date = 'must be an RFC 3339 date and time, such as 2026-01-31T12:00:00Z'
      const faults: [body: object, message: string | RegExp][] = [
        [{ scopes }, 'body must have the field "name"'],
        [{ name: 'x' }, 'body must have the field "scopes"'],
        [{ name: '', scopes }, 'body/name must not be empty'],
        [{ name: 'x'.repeat(201), scopes }, 'body/name must be at most 200 characters long'],
        [{ name: 'a\u0000', scopes }, 'body/name must not contain NUL or unpaired surrogates'],
        [{ name: 'a\ud800', scopes }, 'body/name must not contain NUL or unpaired surrogates'],
        [{ name: 'x', scopes: 'admin:*' }, 'body/scopes must be array'],
        [{ name: 'x', scopes: ['everything'] }, `body/scopes/0 must be one of ${names}`],
        [{ name: 'x', scopes: ['admin:*\u0000'] }, `body/scopes/0 must be one of ${names}`],
        [{ name: 'x', scopes: ['read:users admin:*'] }, `body/scopes/0 must be one of ${names}`],
        [{ name: 'x', scopes: ['read:users', 'read:users'] }, 'body/scopes must not contain the same item twice'],
        [{ name: 'x', scopes, expires_at: 'tomorrow' }, `body/expires_at ${date}`],
        [{ name: 'x', scopes, expires_at: '2026-13-01T00:00:00Z' }, `body/expires_at ${date}`],
        [{ name: 'x', scopes, expires_at: '2026-01-01T00:00:00Z\u0000' }, `body/expires_at ${date}`],
        [{ name: 'x', scopes, expires_at: '2026-01-01' }, `body/expires_at ${date}`],
        [{ name: 'x', scopes, expires_at: '2026-02-30T00:00:00Z' }, `body/expires_at ${date}`],
        [{ name: 'x', scopes, expires_at: '2026-01-31T24:00:00Z' }, `body/expires_at ${date}`],
        [{ name: 'x', scopes, expires_at: '9999-12-31T23:59:59-01:00' }, `body/expires_at ${date}`],
        [{ name: 'x', scopes, expires_at: '0000-01-01T00:00:00+01:00' }, `body/expires_at ${date}`],
        [{ name: 'x', scopes, expires_at: 1 }, 'body/expires_at must be string,null'],
        [{ name: 'x', scopes, key: 'pak_mine' }, 'body must not have the field "key"'],
      ]
      for (const [body, message] of faults) assertError(service, await send('POST', BASE, { body }), invalid(message))
    })

    test('rotation gives a new key, and the old one keeps working for its grace', async () => {
      const service = await under.shared()
      const { create, rotate, use, send } = asAdmin(service)
      const { key: first, path, id } = await create()
      const second = await rotate(path, { grace_seconds: 60 })
      assert.notEqual(second, first)
      assert.equal((await use(first)).status, 200)
      assert.equal((await use(second)).status, 200)
      const [listed] = (await send<Page>('GET', `${BASE}?limit=1`)).body.data
      assert.equal(listed?.id, id)
      assert.equal(listed?.key_hint, second.slice(-4))
      await service.clock.leap(59_999)
      assert.equal((await use(first)).status, 200)
      await service.clock.leap(1)
      assertError(service, await use(first), REFUSED)
      assert.equal((await use(second)).status, 200)
    })

    test('a grace of 0 ends the old key at once, and another rotation never prolongs a grace', async () => {
      const service = await under.shared()
      const { create, rotate, use } = asAdmin(service)
      const { key: first, path } = await create()
      assert.equal((await use(first)).status, 200, 'and is now in the cache')
      const second = await rotate(path, { grace_seconds: 10 })
      const third = await rotate(path, { grace_seconds: 1_000 })
      await service.clock.leap(10_000)
      assertError(service, await use(first), REFUSED)
      assert.equal((await use(second)).status, 200)
      const fourth = await rotate(path, { grace_seconds: 0 })
      for (const ended of [first, second, third]) assertError(service, await use(ended), REFUSED)
      assert.equal((await use(fourth)).status, 200)
    })

    test('the grace of a rotation without a body is a day', async () => {
      const service = await under.shared()
      const { create, rotate, use } = asAdmin(service)
      const { key, path } = await create()
      await rotate(path)
      await service.clock.leap(DAY_MS - 1)
      assert.equal((await use(key)).status, 200)
      await service.clock.leap(1)
      assertError(service, await use(key), REFUSED)
    })

    test('an invalid rotation is refused', async () => {
      const service = await under.shared()
      const { create, send } = asAdmin(service)
      const { path } = await create()
      const faults: [body: object, message: string][] = [
        [{ grace_seconds: -1 }, 'body/grace_seconds must be >= 0'],
        [{ grace_seconds: 30 * 86_400 + 1 }, 'body/grace_seconds must be <= 2592000'],
        [{ grace_seconds: 1.5 }, 'body/grace_seconds must be integer'],
        [{ grace_seconds: '60' }, 'body/grace_seconds must be integer'],
        [{ grace: 60 }, 'body must not have the field "grace"'],
        [[], 'body must be object,null'],
      ]
      for (const [body, message] of faults) {
        assertError(service, await send('POST', `${path}/rotate`, { body }), invalid(message))
      }
      assertError(service, await send('POST', `${BASE}/svc_nobody/rotate`), GONE)
      const nul = 'params/id must not contain NUL or unpaired surrogates'
      assertError(service, await send('POST', `${BASE}/%00/rotate`), invalid(nul))
      assertError(service, await send('DELETE', `${BASE}/%00`), invalid(nul))
      await send('DELETE', path)
      const message = 'The service account is revoked'
      assertError(service, await send('POST', `${path}/rotate`), { status: 409, code: 'conflict', message })
    })

    test('a revocation ends all keys at once, stays in the list and keeps its first date', async () => {
      const service = await under.shared()
      const { create, rotate, use, send } = asAdmin(service)
      const { key: first, path, id } = await create()
      const second = await rotate(path)
      for (const key of [first, second]) assert.equal((await use(key)).status, 200)
      const revoked_at = new Date(service.clock.now()).toISOString()
      const revoked = await send<string>('DELETE', path)
      assert.equal(revoked.status, 204)
      assert.equal(revoked.text, '')
      for (const key of [first, second]) assertError(service, await use(key), REFUSED)
      await service.clock.leap(1_000)
      assert.equal((await send('DELETE', path)).status, 204, 'again is no harm')
      const [listed] = (await send<Page>('GET', `${BASE}?limit=1`)).body.data
      assert.equal(listed?.id, id)
      assert.equal(listed?.revoked_at, revoked_at)
      assertError(service, await send('DELETE', `${BASE}/svc_nobody`), GONE)
    })

    test('an account ends at its expiry, even if it is cached', async () => {
      const service = await under.shared()
      const { create, rotate, use } = asAdmin(service)
      const expires_at = new Date(service.clock.now() + 5_000).toISOString()
      const { key, path } = await create({ expires_at })
      const rotated = await rotate(path)
      for (const live of [key, rotated]) assert.equal((await use(live)).status, 200)
      await service.clock.leap(4_999)
      assert.equal((await use(key)).status, 200)
      await service.clock.leap(1)
      for (const ended of [key, rotated]) assertError(service, await use(ended), REFUSED)
      const past = await create({ expires_at: '2020-02-29T23:59:59.123456+05:30' })
      assert.equal(past.expires_at, '2020-02-29T18:29:59.123Z')
      const last = await create({ expires_at: '9999-12-31T23:59:59.999Z' })
      assert.equal(last.expires_at, '9999-12-31T23:59:59.999Z')
      assertError(service, await use(past.key), REFUSED)
    })

    test('an account without scopes is let in only where none is needed', async () => {
      const service = await under.shared()
      const { create, use } = asAdmin(service)
      const { key } = await create({ scopes: [] })
      assertError(service, await use(key), { status: 403, code: 'forbidden', message: 'Insufficient scope' })
    })

    test('an account with admin:* manages accounts, and is named as their creator', async () => {
      const service = await under.shared()
      const { create } = asAdmin(service)
      const { key, id } = await create({ scopes: ['admin:*'] })
      const body = { name: 'Child', scopes: [] }
      const child = await service.request<ServiceAccountWithKey>('POST', BASE, { key, body })
      assert.equal(child.status, 201)
      assert.equal(child.body.created_by, id)
    })

    test('the list is newest first, in pages that hold while others are added', async () => {
      const service = await under.shared()
      const { create, send } = asAdmin(service)
      const made: string[] = []
      for (let n = 0; n < 7; n++) made.unshift((await create({ name: `Account ${n}` })).id)
      const created = (await send<Page>('GET', `${BASE}?limit=100`)).body.data.map(({ id }) => id)
      assert.deepEqual(created.slice(0, 7), made)
      const seen: string[] = []
      let query = '?limit=3'
      for (;;) {
        const page = (await send<Page>('GET', `${BASE}${query}`)).body
        seen.push(...page.data.map(({ id }) => id))
        await create()
        if (page.next_cursor === null) break
        query = `?limit=3&cursor=${page.next_cursor}`
      }
      assert.deepEqual(seen, created)
      for (const name of ['x', 'y']) await send('POST', '/v1/projects', { body: { name } })
      const foreign = (await send<Page>('GET', '/v1/projects?limit=1')).body.next_cursor
      for (const cursor of [foreign, 'x', '%00']) {
        const answer = await send('GET', `${BASE}?cursor=${cursor}`)
        assertError(service, answer, invalid('querystring/cursor is not a cursor of this list'))
      }
      for (const limit of ['0', '101', 'abc']) {
        assertError(service, await send('GET', `${BASE}?limit=${limit}`), invalid(/^querystring\/limit must be/))
      }
    })

    test('a key is looked up at most once in thirty seconds, a bad one too', async () => {
      const [database, service] = await Promise.all([under.watched(), under.shared()])
      const { create, rotate, use } = asAdmin(service)
      const { key, path } = await create()
      const dead = key
      const live = await rotate(path, { grace_seconds: 0 })
      database.forget()
      for (const [given, status] of [
        [live, 200],
        [dead, 401],
      ] as const) {
        database.forget()
        const many = await Promise.all(Array.from({ length: 10 }, () => use(given)))
        assert.deepEqual(new Set(many.map((answer) => answer.status)), new Set([status]))
        await service.clock.leap(29_999)
        await use(given)
        assert.equal(database.count(/from service_keys k/), 1)
        await service.clock.leap(1)
        await use(given)
        assert.equal(database.count(/from service_keys k/), 2)
      }
      await use('pak_typo')
      assert.equal(database.count(/from service_keys k/), 2, 'a typo never reaches the database')
    })

    test('last_used_at is written at most once a minute, off the request path', async () => {
      const [database, service] = await Promise.all([under.watched(), under.shared()])
      const { create, use, send } = asAdmin(service)
      const accounts = [await create(), await create()]
      // Write the pending updates of earlier tests first.
      await service.clock.leap(60_000)
      await database.idle()
      database.forget()
      const lastUsed = async () =>
        (await send<Page>('GET', `${BASE}?limit=2`)).body.data.map((account) => account.last_used_at)
      for (const { key } of accounts) for (let n = 0; n < 5; n++) await use(key)
      assert.equal(database.count(/update service_accounts/), 0, 'not by the requests themselves')
      assert.deepEqual(await lastUsed(), [null, null])
      await service.clock.leap(60_000)
      await database.idle()
      assert.equal(database.count(/update service_accounts/), 1, 'one write for both')
      for (const at of await lastUsed()) assert.ok(service.clock.now() - Date.parse(String(at)) < 60_000, String(at))
      await service.clock.leap(180_000)
      await database.idle()
      assert.equal(database.count(/update service_accounts/), 1, 'unused, nothing is written')
    })

    test('a revocation on another node takes effect within thirty seconds', async () => {
      const here = await under.shared()
      const there = await under.start({ db: here.db, clock: here.clock })
      const { create, use, send } = asAdmin(here)
      const { key, path } = await create()
      assert.equal((await asAdmin(there).use(key)).status, 200)
      await send('DELETE', path)
      assertError(here, await use(key), REFUSED)
      await here.clock.leap(30_000)
      assertError(there, await asAdmin(there).use(key), REFUSED)
    })
  })
})
