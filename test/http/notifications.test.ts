import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import type { PushVerdict } from '../../src/push/push-provider.ts'
import { assertError } from '../support/assert-error.ts'
import { NOT_HTTPS_URLS } from '../support/https-urls.ts'
import { type JobWorld, RUN_MS, startJobWorld } from '../support/job-world.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { forEachService, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

interface Notification {
  id: string
  title: string
  body: string
  data: Record<string, string>
  link: string | null
  priority: string
  ttl_seconds: number
  dry_run: boolean
  job_id: string | null
  created_by: string | null
  created_at: string
  counts: Record<string, number>
  deliveries: {
    device_id: string
    state: string
    attempts: number
    provider_message_id: string | null
    last_error: string | null
    updated_at: string
  }[]
}

const BASE = '/v1/notifications'
const DAY_MS = 86_400_000
const NONE = { pending: 0, sent: 0, failed: 0, disabled: 0, expired: 0, no_credentials: 0 }

const newUser = () => `user-${randomUUID()}`

const asAdmin = (service: TestService) => service.tokenFor({ sub: 'root', scopes: ['admin:*'] })

function post(service: TestService, body: object, headers = {}) {
  return service.request<Notification>('POST', BASE, { token: asAdmin(service), body, headers })
}

async function send(service: TestService, fields: object): Promise<Notification> {
  const answer = await post(service, { title: 'Maintenance', body: 'Tonight at ten.', ...fields })
  assert.equal(answer.status, 201, answer.text)
  return answer.body
}

async function read(service: TestService, id: string): Promise<Notification> {
  const answer = await service.request<Notification>('GET', `${BASE}/${id}`, { token: asAdmin(service) })
  assert.equal(answer.status, 200, answer.text)
  return answer.body
}

/** Waits until none of its deliveries is pending. */
async function settled(service: TestService, id: string): Promise<Notification> {
  let notification = await read(service, id)
  await until(async () => {
    notification = await read(service, id)
    return notification.counts.pending === 0
  })
  return notification
}

async function addDevice(service: TestService, sub: string, platform = 'web'): Promise<string> {
  const body = { token: randomUUID(), platform }
  const answer = await service.request<{ id: string }>('POST', '/v1/devices', {
    token: service.tokenFor({ sub }),
    body,
  })
  assert.equal(answer.status, 201, answer.text)
  return answer.body.id
}

async function wantNoPush(service: TestService, sub: string): Promise<void> {
  const answer = await service.request('PATCH', '/v1/users/me', {
    token: service.tokenFor({ sub }),
    body: { push_enabled: false },
  })
  assert.equal(answer.status, 200, answer.text)
}

async function countQueued({ db }: TestService): Promise<number[]> {
  const [row] = await db.query<{ notifications: number; deliveries: number }>(sql`
    select (select count(*) from notifications) as notifications, (select count(*) from deliveries) as deliveries`)
  return [row?.notifications ?? -1, row?.deliveries ?? -1]
}

const devicesOf = ({ deliveries }: Notification) => deliveries.map(({ device_id }) => device_id)

describe('notifications', () => {
  forEachService((under) => {
    test('a notification goes to every device of its users and to single devices, each once, at once', async () => {
      const sender = new ScriptedSender()
      const service = await under.start({ pushSender: sender })
      const [ada, bob, eve] = [newUser(), newUser(), newUser()]
      const devices = [
        await addDevice(service, ada),
        await addDevice(service, ada, 'ios'),
        await addDevice(service, bob),
      ]
      await addDevice(service, eve)
      const body = {
        users: [ada, 'unknown-user'],
        devices: [devices[0], devices[2], 'dev_x'],
        title: 'Maintenance ✓',
        body: '',
        data: { kind: 'maintenance', from_team: 'ops' },
        link: 'https://status.example.com/7',
        priority: 'high',
        ttl_seconds: 600,
      }
      const created = await post(service, body)
      assert.equal(created.status, 201, created.text)
      const { id } = created.body
      assert.match(id, /^ntf_[0-9a-z]{26}$/)
      assert.equal(created.headers.location, `${BASE}/${id}`)
      const at = new Date(service.clock.now()).toISOString()
      const { users, devices: _, ...content } = body
      assert.deepEqual(created.body, {
        id,
        ...content,
        dry_run: false,
        job_id: null,
        created_by: 'root',
        created_at: at,
        counts: { ...NONE, pending: 3 },
        deliveries: devices.map((device_id) => ({
          device_id,
          state: 'pending',
          attempts: 0,
          provider_message_id: null,
          last_error: null,
          updated_at: at,
        })),
      })
      const done = await settled(service, id)
      assert.deepEqual(done.counts, { ...NONE, sent: 3 })
      assert.deepEqual(devicesOf(done), devices)
      for (const delivery of done.deliveries) {
        assert.deepEqual([delivery.state, delivery.attempts], ['sent', 1])
        assert.match(String(delivery.provider_message_id), /^projects\/test\/messages\/\d$/)
      }
      assert.equal(sender.given.length, 3)
      for (const message of sender.given) {
        const { token, ...rest } = message
        assert.deepEqual(rest, {
          title: body.title,
          body: '',
          data: body.data,
          tag: id,
          link: body.link,
          priority: 'high',
          ttlSeconds: 600,
          dryRun: false,
        })
        assert.ok(!created.text.includes(token))
      }
    })

    test('omitted fields of a notification have their defaults, and an unknown target makes no delivery', async () => {
      const service = await under.shared()
      const notification = await send(service, { users: [newUser()] })
      assert.deepEqual(
        { ...notification, id: '', created_at: '' },
        {
          id: '',
          title: 'Maintenance',
          body: 'Tonight at ten.',
          data: {},
          link: null,
          priority: 'normal',
          ttl_seconds: 86_400,
          dry_run: false,
          job_id: null,
          created_by: 'root',
          created_at: '',
          counts: NONE,
          deliveries: [],
        },
      )
      assert.deepEqual(await read(service, notification.id), notification)
    })

    test('a user who turned push off gets none, addressed as a user or by device', async () => {
      const service = await under.shared()
      const sub = newUser()
      const device = await addDevice(service, sub)
      assert.deepEqual(devicesOf(await send(service, { users: [sub] })), [device])
      await wantNoPush(service, sub)
      for (const target of [{ users: [sub] }, { devices: [device] }, { users: [sub], devices: [device] }]) {
        assert.deepEqual(devicesOf(await send(service, target)), [])
      }
    })

    test('an Android device that was idle for 270 days is skipped, and other platforms are not', async () => {
      const service = await under.shared()
      const sub = newUser()
      const [android, idle, web] = [
        await addDevice(service, sub, 'android'),
        await addDevice(service, sub, 'android'),
        await addDevice(service, sub, 'web'),
      ]
      const longAgo = service.clock.now() - 270 * DAY_MS
      const setSeen = (id: string, atMs: number) =>
        service.db.query(sql`update devices set last_seen_at = ${atMs} where id = ${id}`)
      await setSeen(idle, longAgo)
      await setSeen(web, longAgo)
      await setSeen(android, longAgo + 1)
      assert.deepEqual(devicesOf(await send(service, { users: [sub] })), [android, web])
      assert.deepEqual(devicesOf(await send(service, { devices: [idle] })), [])
    })

    test('notifications need admin:*, and are hidden from other callers', async () => {
      const service = await under.shared()
      const { id } = await send(service, { users: [newUser()] })
      const token = service.tokenFor({ scopes: ['write:users', 'write:projects'] })
      const forbidden = { status: 403, code: 'forbidden', message: 'Insufficient scope' } as const
      const body = { users: ['x'], title: 'x', body: '' }
      assertError(service, await service.request('POST', BASE, { token, body }), forbidden)
      assertError(service, await service.request('GET', `${BASE}/${id}`, { token }), forbidden)
      const gone = await service.request('GET', `${BASE}/ntf_x`, { token: asAdmin(service) })
      assertError(service, gone, { status: 404, code: 'not_found', message: 'No such notification' })
    })

    test('a notification without targets, or that the provider would refuse, is refused before anything is queued', async () => {
      const service = await under.shared()
      const sub = newUser()
      await addDevice(service, sub)
      const good = { users: [sub], title: 'Hello', body: 'World' }
      const before = await countQueued(service)
      const many = (count: number) => Array.from({ length: count }, (_, n) => `user-${n}`)
      const bad: [body: object, message: RegExp][] = [
        [{ title: 'Hello', body: 'World' }, /^body must have at least one of "users" and "devices"$/],
        [{ ...good, users: [] }, /at least one of/],
        [{ ...good, users: [], devices: [] }, /at least one of/],
        [{ ...good, users: [''] }, /^body\/users\/0/],
        [{ ...good, users: sub }, /^body\/users/],
        [{ ...good, users: many(501) }, /^body\/users/],
        [{ ...good, users: [sub, sub] }, /^body\/users/],
        [{ ...good, devices: [7] }, /^body\/devices\/0/],
        [{ ...good, title: '' }, /^body\/title must not be empty$/],
        [{ ...good, title: 'x'.repeat(201) }, /^body\/title/],
        [{ users: [sub], body: 'World' }, /"title"/],
        [{ users: [sub], title: 'Hello' }, /"body"/],
        [{ ...good, body: 'x'.repeat(1_001) }, /^body\/body/],
        [{ ...good, body: null }, /^body\/body/],
        [{ ...good, data: { n: 1 } }, /^body\/data\/n/],
        [{ ...good, data: { n: null } }, /^body\/data\/n/],
        [{ ...good, data: { deep: { n: '1' } } }, /^body\/data\/deep/],
        [{ ...good, data: { 'a\nb': 1 } }, /^body\/data/],
        [{ ...good, data: ['x'] }, /^body\/data/],
        [{ ...good, data: { from: 'x' } }, /^body\/data\/from is reserved/],
        [{ ...good, data: { message_type: 'x' } }, /^body\/data\/message_type is reserved/],
        [{ ...good, data: { 'google.x': 'x' } }, /^body\/data\/google\.x is reserved/],
        [{ ...good, data: { 'gcm.notification.x': 'x' } }, /^body\/data\/gcm\.notification\.x is reserved/],
        [{ ...good, data: { a: 'x'.repeat(2_000), b: 'x'.repeat(2_000) } }, /^body makes a message larger than 3584/],
        [{ ...good, data: null }, /^body\/data must be object$/],
        [{ ...good, data: 'x' }, /^body\/data must be object$/],
        [{ ...good, data: { '': 'x' } }, /^body\/data must not have an empty key$/],
        [{ ...good, data: { 'a\u0000': 'x' } }, /^body\/data has a key with NUL/],
        [{ ...good, data: { '\ud800b': 'x' } }, /^body\/data has a key with NUL or unpaired surrogates$/],
        [{ ...good, body: '🧮'.repeat(900) }, /^body makes a message larger than 3584/],
        [{ ...good, link: 'http://example.com' }, /^body\/link must be an https URL$/],
        [{ ...good, link: 'javascript:alert(1)' }, /^body\/link/],
        ...NOT_HTTPS_URLS.map((link): [object, RegExp] => [{ ...good, link }, /^body\/link must be an https URL$/]),
        [{ ...good, priority: 'urgent' }, /^body\/priority must be one of high, normal$/],
        [{ ...good, ttl_seconds: -1 }, /^body\/ttl_seconds/],
        [{ ...good, ttl_seconds: 1.5 }, /^body\/ttl_seconds/],
        [{ ...good, ttl_seconds: 28 * 86_400 + 1 }, /^body\/ttl_seconds/],
        [{ ...good, dry_run: 'yes' }, /^body\/dry_run/],
        [{ ...good, topic: 'all' }, /"topic"/],
      ]
      for (const [body, message] of bad) {
        assertError(service, await post(service, body), { status: 400, code: 'invalid_request', message })
      }
      assert.deepEqual(await countQueued(service), before)
    })

    test('a dry run goes to the provider only to be checked', async () => {
      const sender = new ScriptedSender()
      const service = await under.start({ pushSender: sender })
      const sub = newUser()
      await addDevice(service, sub)
      const { id, dry_run } = await send(service, { users: [sub], dry_run: true })
      assert.equal(dry_run, true)
      assert.equal((await settled(service, id)).counts.sent, 1)
      assert.deepEqual(
        sender.given.map(({ dryRun }) => dryRun),
        [true],
      )
    })

    test('a notification under an Idempotency-Key is sent once, however often it is requested', async () => {
      const service = await under.shared()
      const sub = newUser()
      await addDevice(service, sub)
      const body = { users: [sub], title: 'Once', body: '' }
      const headers = { 'idempotency-key': randomUUID() }
      const [notifications = 0, deliveries = 0] = await countQueued(service)
      const first = await post(service, body, headers)
      const again = await post(service, body, headers)
      assert.deepEqual([again.status, again.body], [201, first.body])
      assert.equal(again.headers['idempotency-replayed'], 'true')
      assert.deepEqual(await countQueued(service), [notifications + 1, deliveries + 1])
      const other = await post(service, { ...body, title: 'Twice' }, headers)
      assertError(service, other, { status: 422, code: 'idempotency_key_reused' })
    })

    test('deliveries wait without credentials, and /readyz reports it', async () => {
      const service = await under.shared()
      const sub = newUser()
      await addDevice(service, sub)
      const { id } = await send(service, { users: [sub] })
      assert.deepEqual((await settled(service, id)).counts, { ...NONE, no_credentials: 1 })
      type Ready = { checks: { push: { state: string; detail: string } } }
      const { status, body } = await service.request<Ready>('GET', '/readyz')
      assert.equal(status, 200)
      assert.partialDeepStrictEqual(body.checks.push, {
        state: 'degraded',
        detail: 'no push credentials: deliveries wait',
      })
    })

    const faults: [verdict: PushVerdict, detail: string, reason: string][] = [
      [
        { kind: 'halt', reason: 'no such project: projects/inner-name' },
        'halted: deliveries wait',
        'no such project: projects/inner-name',
      ],
      [
        { kind: 'drop', alert: true, reason: '401 no key of inner-name' },
        'dropping: messages to a platform are lost',
        'messages to web are lost: 401 no key of inner-name',
      ],
    ]
    for (const [verdict, detail, reason] of faults) {
      const [state = ''] = detail.split(':')
      test(`/readyz reports that push is ${state} without the words of the provider, which operators get`, async () => {
        const sender = new ScriptedSender()
        sender.answer(() => verdict)
        const service = await under.start({ pushSender: sender })
        const sub = newUser()
        await addDevice(service, sub)
        await send(service, { users: [sub] })
        await until(() => service.services.outbox.state === state)
        const { text } = await service.request('GET', '/readyz')
        assert.ok(text.includes(`${detail}; operators find the reason at /v1/push`), text)
        assert.doesNotMatch(text, /inner-name/)
        const token = service.tokenFor({ sub: 'reader', scopes: ['read:operations'] })
        assert.deepEqual((await service.request('GET', '/v1/push', { token })).body, { state, reason })
        assertError(service, await service.request('GET', '/v1/push', { token: service.tokenFor({ sub }) }), {
          status: 403,
          code: 'forbidden',
        })
      })
    }

    test('each delivery shows what became of it', async () => {
      const sender = new ScriptedSender()
      const service = await under.start({ pushSender: sender })
      const sub = newUser()
      for (let n = 0; n < 4; n++) await addDevice(service, sub)
      await service.clock.advance(1_000)
      sender.answer(() => {
        switch (sender.given.length) {
          case 2:
            return { kind: 'drop', reason: '400 INVALID_ARGUMENT', alert: false }
          case 3:
            return { kind: 'retry', reason: '503 UNAVAILABLE', afterMs: 60_000 }
          case 4:
            return { kind: 'disable', reason: 'unregistered', credentialsFault: null }
          default:
            return sender.sent()
        }
      })
      const { id } = await send(service, { users: [sub] })
      const shows = async (counts: object) => {
        const { counts: shown } = await read(service, id)
        return Object.entries(counts).every(([state, count]) => shown[state] === count)
      }
      await until(() => shows({ disabled: 1, failed: 1, pending: 1, sent: 1 }))
      const waiting = (await read(service, id)).deliveries.find(({ state }) => state === 'pending')
      assert.deepEqual([waiting?.attempts, waiting?.last_error], [1, 'the push provider did not accept the message'])
      await until(async () => {
        await service.clock.advance(5_000)
        return shows({ sent: 2, pending: 0 })
      })
      const retried = (await read(service, id)).deliveries.find(({ attempts }) => attempts === 2)
      assert.deepEqual([retried?.state, retried?.last_error], ['sent', null])
    })

    test('a change of a project notifies its creator where that is configured', async () => {
      const sender = new ScriptedSender()
      const deleted = { title: 'Gone', body: 'A project was deleted.' }
      const service = await under.start({ pushSender: sender, projectNotifications: { deleted } })
      const sub = newUser()
      await addDevice(service, sub)
      const token = service.tokenFor({ sub, scopes: ['write:projects'] })
      const created = await service.request<{ id: string }>('POST', '/v1/projects', { token, body: { name: 'Brief' } })
      await service.request('DELETE', `/v1/projects/${created.body.id}`, { token })
      await until(() => sender.given.length === 1)
      const [message] = sender.given
      assert.deepEqual([message?.title, message?.body], [deleted.title, deleted.body])
      assert.deepEqual(message?.data, { project_id: created.body.id, name: 'Brief' })
      assert.equal((await countQueued(service))[1], 1)
    })

    describe('the end of a job', () => {
      async function startWorld(sender: ScriptedSender): Promise<JobWorld> {
        return startJobWorld(under, { pushSender: sender })
      }

      async function notificationsOf({ service }: JobWorld, jobId: string): Promise<Notification[]> {
        const rows = await service.db.query<{ id: string }>(sql`select id from notifications where job_id = ${jobId}`)
        return Promise.all(rows.map(({ id }) => settled(service, id)))
      }

      test('the end of a job notifies each reachable device of the owner once, and the notification is in the timeline of the job', async (t) => {
        const sender = new ScriptedSender()
        const world = await startWorld(sender)
        t.after(() => world.runtime.close())
        const { service } = world
        const [ada, bob] = [newUser(), newUser()]
        const live = [
          await addDevice(service, ada),
          await addDevice(service, ada, 'ios'),
          await addDevice(service, ada),
        ]
        const [idle, off] = [await addDevice(service, ada, 'android'), await addDevice(service, ada)]
        await addDevice(service, bob)
        await service.db.query(sql`update devices set last_seen_at = 0 where id = ${idle}`)
        await service.db.query(sql`update devices set disabled_at = 1, disabled_reason = 'x' where id = ${off}`)
        const job = await world.start('report', { sub: ada })
        await world.pass(RUN_MS)
        const payload = {
          thread_id: job.thread_id,
          run_id: (await world.get(job.id)).run_id,
          status: 'success',
          values: {},
        }
        const late = await world.callback('report', payload)
        assert.deepEqual([late.status, late.body.outcome], [200, 'duplicate'])
        const [notification, ...more] = await notificationsOf(world, job.id)
        assert.ok(notification && more.length === 0)
        assert.deepEqual([notification.title, notification.job_id], ['Your result is ready', job.id])
        assert.equal(notification.created_by, null)
        assert.deepEqual(notification.data, { job_id: job.id, type: 'report', status: 'completed' })
        assert.deepEqual(devicesOf(notification), live)
        assert.deepEqual(notification.counts, { ...NONE, sent: 3 })
        assert.equal(sender.given.length, 3)
        for (const { tag, priority } of sender.given) assert.deepEqual([tag, priority], [job.id, 'high'])
        const timeline = await world.request<{ data: TimelineEntry[] }>('GET', `/jobs/${job.id}/timeline`, ada)
        const deliveries = timeline.body.data.filter(({ kind }) => kind === 'delivery').map(({ detail }) => detail)
        assert.deepEqual(
          deliveries,
          live.map((device_id) => ({
            notification_id: notification.id,
            device_id,
            state: 'sent',
            attempts: 1,
            error: null,
          })),
        )
      })

      test('the end of a job notifies no owner who turned push off or has no device', async (t) => {
        const sender = new ScriptedSender()
        const world = await startWorld(sender)
        t.after(() => world.runtime.close())
        const [ada, bob, eve] = [newUser(), newUser(), newUser()]
        await addDevice(world.service, ada)
        await wantNoPush(world.service, ada)
        await addDevice(world.service, eve)
        const jobs = [await world.start('report', { sub: ada }), await world.start('report', { sub: bob })]
        const heard = await world.start('throwing', { sub: eve })
        await world.pass(RUN_MS)
        await until(() => sender.given.length === 1)
        assert.equal(sender.given[0]?.tag, heard.id)
        assert.equal(sender.given[0]?.title, 'Something went wrong')
        for (const job of jobs) {
          assert.equal((await world.get(job.id)).status, 'completed')
          assert.deepEqual(await notificationsOf(world, job.id), [])
        }
      })
    })
  })
})
