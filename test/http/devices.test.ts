import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestRequest, TestResponse } from '../support/http-client.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { forEachService, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

interface Device {
  id: string
  token: string
  platform: string
  created_at: string
  last_seen_at: string
  disabled_at: string | null
  disabled_reason: string | null
}

interface Page {
  data: Device[]
  has_more: boolean
  next_cursor: string | null
}

const BASE = '/v1/devices'
const GONE = { status: 404, code: 'not_found', message: 'No such device' } as const

const newUser = () => `user-${randomUUID()}`
/** Not to be compressed, as real ones are not. */
const tokenOf = (length: number) => randomBytes(length).toString('base64url').slice(0, length)

function callerOf(service: TestService, sub: string) {
  const token = service.tokenFor({ sub })
  const send = <Body = Device>(method: string, path: string, request: TestRequest = {}) =>
    service.request<Body>(method, path, { token, ...request })
  const register = (body: object, headers = {}) => send('POST', BASE, { body, headers })
  const add = async (deviceToken: string, platform = 'web') => {
    const answer = await register({ token: deviceToken, platform })
    assert.equal(answer.status, 201, answer.text)
    return answer.body
  }
  const list = async () => (await send<Page>('GET', `${BASE}?limit=100`)).body.data
  return { send, register, add, list }
}

async function countDevices({ db }: TestService): Promise<number> {
  const [row] = await db.query<{ devices: number }>(sql`select count(*) as devices from devices`)
  return row?.devices ?? 0
}

describe('devices', () => {
  forEachService((under) => {
    test('a device is registered with every field, listed, and its token never shown again', async () => {
      const service = await under.shared()
      const { register, send } = callerOf(service, newUser())
      const token = `${tokenOf(140)}:x9Qa7c`
      const at = new Date(service.clock.now()).toISOString()
      const created = await register({ token, platform: 'android' })
      assert.equal(created.status, 201, created.text)
      const { id } = created.body
      assert.match(id, /^dev_[0-9a-z]{26}$/)
      assert.equal(created.headers.location, `${BASE}/${id}`)
      const device = {
        id,
        token: '…x9Qa7c',
        platform: 'android',
        created_at: at,
        last_seen_at: at,
        disabled_at: null,
        disabled_reason: null,
      }
      assert.deepEqual(created.body, device)
      const listed = await send<Page>('GET', BASE)
      assert.deepEqual(listed.body, { data: [device], has_more: false, next_cursor: null })
      const read = await send('GET', String(created.headers.location))
      assert.deepEqual([read.status, read.body], [200, device])
      for (const { text } of [created, listed, read]) assert.ok(!text.includes(token.slice(0, 20)))
    })

    test('every platform is accepted, and tokens of up to 4 KB', async () => {
      const service = await under.shared()
      const { add, list } = callerOf(service, newUser())
      for (const platform of ['web', 'ios', 'android']) await add(tokenOf(163), platform)
      await add(tokenOf(4_096))
      await add('t')
      await add('é'.repeat(2_048))
      assert.equal((await list()).length, 6)
    })

    test('an invalid device is refused, and nothing is stored', async () => {
      const service = await under.shared()
      const { register } = callerOf(service, newUser())
      const before = await countDevices(service)
      const good = { token: tokenOf(100), platform: 'web' }
      const bad: [body: object, message: RegExp][] = [
        [{ ...good, token: '' }, /^body\/token must not be empty$/],
        [{ ...good, token: tokenOf(4_097) }, /^body\/token must be at most 4096/],
        [{ ...good, token: 'é'.repeat(2_049) }, /^body\/token must not be larger than 4096 bytes$/],
        [{ ...good, token: 'a\u0000b' }, /^body\/token/],
        [{ ...good, token: 'a\ud800' }, /^body\/token/],
        [{ ...good, token: 7 }, /^body\/token/],
        [{ ...good, token: null }, /^body\/token/],
        [{ platform: 'web' }, /"token"/],
        [{ token: good.token }, /"platform"/],
        [{ ...good, platform: 'windows' }, /^body\/platform must be one of web, ios, android$/],
        [{ ...good, platform: 'Web' }, /^body\/platform/],
        [{ ...good, platform: '' }, /^body\/platform/],
        [{ ...good, disabled_at: null }, /"disabled_at"/],
        [{ ...good, token: ' \t\n\u00a0' }, /body\/token must not be blank/],
        [[good], /^body/],
      ]
      for (const [body, message] of bad) {
        assertError(service, await register(body), { status: 400, code: 'invalid_request', message })
      }
      assert.equal(await countDevices(service), before)
      assertError(service, await service.request('GET', BASE), { status: 401, code: 'unauthorized' })
      assertError(service, await service.request('POST', BASE, { body: good }), { status: 401, code: 'unauthorized' })
    })

    test('a device that registers again keeps its id and is seen later', async () => {
      const service = await under.start()
      const { add, list } = callerOf(service, newUser())
      const token = tokenOf(100)
      const first = await add(token, 'web')
      await service.clock.advance(5_000)
      const second = await add(token, 'ios')
      const last_seen_at = new Date(service.clock.now()).toISOString()
      assert.deepEqual(second, { ...first, platform: 'ios', last_seen_at })
      const third = await add(token, 'ios')
      assert.ok(third.last_seen_at > last_seen_at, 'each sight is later than the one before, in one moment too')
      assert.deepEqual(await list(), [third])
    })

    test('a token moves to its newest owner', async () => {
      const service = await under.shared()
      const [ada, bob] = [callerOf(service, newUser()), callerOf(service, newUser())]
      const token = tokenOf(100)
      const adas = await ada.add(token)
      const bobs = await bob.add(token)
      assert.deepEqual(await ada.list(), [])
      assert.deepEqual(await bob.list(), [bobs])
      assert.notEqual(bobs.id, adas.id, 'what was meant for the one must not reach the other')
      assertError(service, await ada.send('DELETE', `${BASE}/${bobs.id}`), GONE)
      await ada.add(token)
      assert.deepEqual(await bob.list(), [])
    })

    test('a caller sees and removes only its own devices, even an admin', async () => {
      const service = await under.shared()
      const [ada, bob] = [callerOf(service, newUser()), callerOf(service, newUser())]
      const root = service.tokenFor({ sub: 'root', scopes: ['admin:*'] })
      const device = await ada.add(tokenOf(100))
      const path = `${BASE}/${device.id}`
      assert.deepEqual(await bob.list(), [])
      assertError(service, await bob.send('DELETE', path), GONE)
      assertError(service, await service.request('DELETE', path, { token: root }), GONE)
      assertError(service, await ada.send('DELETE', `${BASE}/dev_x`), GONE)
      assert.deepEqual(await ada.list(), [device])
      const removed = await ada.send('DELETE', path)
      assert.deepEqual([removed.status, removed.text], [204, ''])
      assert.deepEqual(await ada.list(), [])
      assertError(service, await ada.send('DELETE', path), GONE)
    })

    test('the list has the newest first, in pages', async () => {
      const service = await under.shared()
      const { add, send } = callerOf(service, newUser())
      const ids: string[] = []
      for (let n = 0; n < 5; n++) ids.unshift((await add(tokenOf(50))).id)
      const first = (await send<Page>('GET', `${BASE}?limit=3`)).body
      assert.equal(first.has_more, true)
      const second = (await send<Page>('GET', `${BASE}?limit=3&cursor=${first.next_cursor}`)).body
      assert.deepEqual([second.has_more, second.next_cursor], [false, null])
      assert.deepEqual(
        [...first.data, ...second.data].map(({ id }) => id),
        ids,
      )
      for (const query of ['limit=0', 'limit=101', 'cursor=x', 'all=true']) {
        assertError(service, await send('GET', `${BASE}?${query}`), { status: 400, code: 'invalid_request' })
      }
    })

    test('a registration under an Idempotency-Key is answered the same again', async () => {
      const service = await under.shared()
      const { register, list } = callerOf(service, newUser())
      const body = { token: tokenOf(100), platform: 'web' }
      const headers = { 'idempotency-key': randomUUID() }
      const first = await register(body, headers)
      const second: TestResponse<Device> = await register(body, headers)
      assert.deepEqual([second.status, second.body], [201, first.body])
      assert.deepEqual(await list(), [first.body])
      const other = await register({ ...body, platform: 'ios' }, headers)
      assertError(service, other, { status: 422, code: 'idempotency_key_reused' })
    })

    test('a device that the provider reports dead is kept with the reason, gets nothing, and is enabled when it registers again', async () => {
      const sender = new ScriptedSender()
      const service = await under.start({ pushSender: sender })
      const [sub, other] = [newUser(), newUser()]
      const { add, list } = callerOf(service, sub)
      const token = tokenOf(100)
      const device = await add(token)
      const root = service.tokenFor({ sub: 'root', scopes: ['admin:*'] })
      const notify = async (user = sub) => {
        const body = { users: [user], title: 'Hello', body: '' }
        const answer = await service.request<{ deliveries: object[] }>('POST', '/v1/notifications', {
          token: root,
          body,
        })
        return answer.body.deliveries.length
      }
      await service.clock.advance(1_000)
      // The outbox trusts a report of a dead device only after a message got through.
      await callerOf(service, other).add(tokenOf(101))
      await notify(other)
      await until(() => service.services.outbox.inFlight === 0 && sender.given.length === 1)
      sender.answer(() => ({ kind: 'disable', reason: 'unregistered', credentialsFault: null }))
      assert.equal(await notify(), 1)
      await until(async () => (await list())[0]?.disabled_at !== null)
      const disabled_at = new Date(service.clock.now()).toISOString()
      assert.deepEqual(await list(), [{ ...device, disabled_at, disabled_reason: 'unregistered' }])
      assert.equal(await notify(), 0)
      await service.clock.advance(1_000)
      const again = await add(token)
      assert.deepEqual(again, { ...device, last_seen_at: new Date(service.clock.now()).toISOString() })
      sender.answer(() => sender.sent())
      assert.equal(await notify(), 1)
      await until(() => sender.given.length === 3)
    })
  })
})
