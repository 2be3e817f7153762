import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { assertError } from '../support/assert-error.ts'
import { forEachService, type TestService } from '../support/service.ts'

interface Delivery {
  id: string
  state: string
  notification_id: string
  device_id: string
  user: string | null
  job_id: string | null
  platform: string | null
  attempts: number
  last_error: string | null
}
interface Page<Item> {
  data: Item[]
  has_more: boolean
  next_cursor: string | null
}

describe('GET /v1/deliveries', () => {
  forEachService((under) => {
    const admin = (service: TestService) => service.tokenFor({ sub: 'root', scopes: ['admin:*'] })

    async function send(service: TestService, sub: string) {
      const device = await service.request<{ id: string }>('POST', '/v1/devices', {
        token: service.tokenFor({ sub }),
        body: { token: `token-of-${sub}-${Math.random()}`, platform: 'ios' },
      })
      const sent = await service.request<{ id: string }>('POST', '/v1/notifications', {
        token: admin(service),
        body: { devices: [device.body.id], title: 'Hello', body: sub },
      })
      return { device: device.body.id, notification: sent.body.id }
    }

    const list = async (service: TestService, query: string) => {
      const token = service.tokenFor({ sub: 'watcher', scopes: ['read:operations'] })
      const answer = await service.request<Page<Delivery>>('GET', `/v1/deliveries?${query}`, { token })
      assert.equal(answer.status, 200, answer.text)
      return answer.body
    }

    test('the list has deliveries by state, user and job, and notifications with their counts', async () => {
      const service = await under.start()
      const first = await send(service, 'ada')
      const second = await send(service, 'eve')
      await service.db.query(sql`
        update deliveries set state = 'failed', next_attempt_at = null, lease_token = null, last_error = 'refused'
        where notification_id = ${second.notification}`)
      await service.db.query(sql`
        update notifications set job_id = 'job_1', cause = 'job_1:1:completed' where id = ${second.notification}`)
      const failed = await list(service, 'state=failed')
      assert.deepEqual(failed.data, [
        {
          ...failed.data[0],
          state: 'failed',
          notification_id: second.notification,
          device_id: second.device,
          user: 'eve',
          job_id: 'job_1',
          platform: 'ios',
          last_error: 'refused',
        },
      ])
      assert.match(String(failed.data[0]?.id), /^dlv_[0-9a-z]{52}$/)
      const devicesOf = async (query: string) => (await list(service, query)).data.map(({ device_id }) => device_id)
      assert.deepEqual(await devicesOf('user=ada'), [first.device])
      assert.deepEqual(await devicesOf('job=job_1'), [second.device])
      assert.deepEqual(await devicesOf('job=job_1&user=ada'), [])
      assert.deepEqual(await devicesOf('user=unknown'), [])
      assert.deepEqual(await devicesOf(`device=${first.device}`), [first.device])
      assert.deepEqual(await devicesOf(`notification=${second.notification}`), [second.device])
      assert.deepEqual(await devicesOf(`notification=${second.notification}&device=${first.device}`), [])
      const one = await list(service, 'limit=1')
      assert.deepEqual([one.data[0]?.device_id, one.has_more], [second.device, true])
      assert.deepEqual(await devicesOf(`limit=1&cursor=${one.next_cursor}`), [first.device])
      const token = admin(service)
      const notifications = await service.request<Page<{ id: string; counts: Record<string, number> }>>(
        'GET',
        '/v1/notifications',
        { token },
      )
      assert.deepEqual(
        notifications.body.data.map(({ id, counts }) => [id, counts.failed]),
        [
          [second.notification, 1],
          [first.notification, 0],
        ],
      )
      const odd = await service.request('GET', '/v1/deliveries?state=odd', { token })
      assertError(under, odd, { status: 400, code: 'invalid_request', message: /querystring\/state/ })
      const forged = Buffer.from('["deliveries","dlv_1"]').toString('base64url')
      const cursor = await service.request('GET', `/v1/deliveries?cursor=${forged}`, { token })
      assertError(under, cursor, { status: 400, code: 'invalid_request', message: /cursor/ })
    })

    test('a failed delivery is sent again, once, which is audited; another one is a conflict', async () => {
      const service = await under.start()
      const { device, notification } = await send(service, 'ada')
      const token = admin(service)
      const id = `dlv_${notification.slice(4)}${device.slice(4)}`
      const resend = () => service.request<Delivery>('POST', `/v1/deliveries/${id}/resend`, { token })
      await service.db.query(sql`
        update deliveries set state = 'failed', attempts = 3, next_attempt_at = null, lease_token = null, last_error = 'refused'`)
      const sent = await resend()
      assert.deepEqual(
        [sent.status, sent.body.state, sent.body.attempts, sent.body.last_error],
        [200, 'pending', 0, null],
      )
      assertError(under, await resend(), { status: 409, code: 'conflict' })
      const audit = await service.request<Page<{ action: string; before: unknown }>>('GET', `/v1/audit?object=${id}`, {
        token,
      })
      assert.deepEqual(
        audit.body.data.map(({ action, before }) => [action, before]),
        [['delivery.resent', { state: 'failed' }]],
      )
      await service.db.query(sql`update deliveries set state = 'failed', next_attempt_at = null, lease_token = null`)
      await service.db.query(sql`update devices set disabled_at = 1`)
      assertError(under, await resend(), { status: 409, code: 'conflict', message: 'The device is disabled' })
      await service.db.query(sql`delete from devices`)
      assertError(under, await resend(), { status: 409, code: 'conflict', message: 'The device was deleted' })
      const none = await service.request('POST', '/v1/deliveries/dlv_none/resend', { token })
      assertError(under, none, { status: 404, code: 'not_found', message: 'No such delivery' })
    })

    test('a delivery to a user who has turned push off is not sent again before the user turns it on', async () => {
      const service = await under.start()
      const { device, notification } = await send(service, 'ada')
      await service.db.query(sql`update deliveries set state = 'failed', next_attempt_at = null, lease_token = null`)
      const own = service.tokenFor({ sub: 'ada' })
      const setPush = (on: boolean) =>
        service.request('PATCH', '/v1/users/me', { token: own, body: { push_enabled: on } })
      const path = `/v1/deliveries/dlv_${notification.slice(4)}${device.slice(4)}/resend`
      const resend = () => service.request<Delivery>('POST', path, { token: admin(service) })
      await setPush(false)
      assertError(under, await resend(), { status: 409, code: 'conflict', message: 'The user has turned push off' })
      const [kept] = (await list(service, 'state=failed')).data
      assert.equal(kept?.notification_id, notification, 'it stays as it was')
      await setPush(true)
      assert.deepEqual([(await resend()).status, (await list(service, 'state=failed')).data], [200, []])
    })
  })
})
