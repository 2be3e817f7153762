import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { before, describe, test } from 'node:test'
import type { Log } from '../../src/core/log.ts'
import { sql } from '../../src/db/sql.ts'
import { assertError } from '../support/assert-error.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { forEachService, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'
import { accept, answerWith, isSignedWith, startReceiver, type WebhookReceiver } from '../support/webhook-receiver.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

interface Endpoint {
  id: string
  url: string
  enabled: boolean
  disabled_reason: string | null
  failing_since: string | null
  waiting: number
  missed_events: number
  secret: string
}
interface Delivery {
  id: string
  event_id: string
  event_type: string
  state: string
  attempts: number
  last_error: string | null
  next_attempt_at: string | null
  log: { status: number | null; error: string | null; answer: string; duration_ms: number }[]
}

/** A log whose lines a test can read. */
function keptLog() {
  const kept: { fields: object; event: string }[] = []
  const note = (fields: object, event: string) => void kept.push({ fields, event })
  const log: Log = { debug: note, info: note, warn: note, error: note }
  return { log, lines: (event: string) => kept.filter((line) => line.event === event).map(({ fields }) => fields) }
}

describe('webhooks', () => {
  let receiver: WebhookReceiver
  let paths = 0

  before(async () => {
    receiver = await startReceiver()
  })

  forEachService((under) => {
    const start = (options: Parameters<typeof under.start>[0] = {}) =>
      under.start({
        ...options,
        webhookCa: receiver.certificate.cert,
        env: { EGRESS_ALLOW: '127.0.0.1', ...options.env },
      })
    const root = (service: TestService) => service.tokenFor({ sub: 'root', scopes: ['admin:*'] })

    async function ask<Body>(service: TestService, method: string, path: string, body?: object) {
      const answer = await service.request<Body>(method, path, { token: root(service), ...(body && { body }) })
      assert.ok(answer.status < 300, `${method} ${path}: ${answer.text}`)
      return answer.body
    }

    async function create(service: TestService, fields: object = {}): Promise<Endpoint & { path: string }> {
      const path = `/hook-${++paths}`
      const body = { url: receiver.url(path), events: ['project.created'], ...fields }
      return { ...(await ask<Endpoint>(service, 'POST', '/v1/webhook-endpoints', body)), path }
    }
    const addProject = (service: TestService, name = 'P') =>
      ask<{ id: string }>(service, 'POST', '/v1/projects', { name })
    const show = (service: TestService, id: string) => ask<Endpoint>(service, 'GET', `/v1/webhook-endpoints/${id}`)
    const deliveriesOf = async (service: TestService, id: string, query = '') =>
      (await ask<{ data: Delivery[] }>(service, 'GET', `/v1/webhook-endpoints/${id}/deliveries${query}`)).data
    const untilState = async (service: TestService, id: string, state: string) => {
      await until(async () => (await deliveriesOf(service, id)).every((one) => one.state === state))
      return deliveriesOf(service, id)
    }
    /** After a long pause, work begins when the heartbeat of the node is fresh again. */
    const pass = async (service: TestService, ms: number) => {
      await service.clock.leap(ms)
      await until(() => service.services.node.isAlive)
      await service.clock.advance(5_000)
    }
    /** Until the last attempt of the newest delivery is written. */
    const untilAttempts = (service: TestService, id: string, attempts: number) =>
      until(async () => (await deliveriesOf(service, id))[0]?.log.length === attempts)

    test('an event arrives signed, as the stream sends it, and only at the endpoints that ask for it', async () => {
      const service = await start()
      const wanted = await create(service)
      const other = await create(service, { events: ['job.completed'] })
      const project = await addProject(service, 'Ada’s')
      const [webhook] = await receiver.until(wanted.path, 1)
      assert.ok(webhook)
      const event = JSON.parse(webhook.body) as { id: string; created_at: string }
      assert.equal(
        webhook.body,
        JSON.stringify({ ...event, type: 'project.created', data: { project_id: project.id, name: 'Ada’s' } }),
      )
      assert.equal(webhook.headers['webhook-id'], event.id)
      assert.equal(webhook.headers['webhook-timestamp'], String(Math.floor(service.clock.now() / 1_000)))
      assert.equal(webhook.headers['content-type'], 'application/json')
      assert.ok(isSignedWith(wanted.secret, webhook))
      assert.match(wanted.secret, /^whsec_[A-Za-z0-9+/]{43}=$/)
      const [delivery] = await untilState(service, wanted.id, 'sent')
      assert.deepEqual(
        [delivery?.event_id, delivery?.event_type, delivery?.log[0]?.status, delivery?.log[0]?.answer],
        [event.id, 'project.created', 200, 'thanks'],
      )
      assert.deepEqual(await deliveriesOf(service, other.id), [])
      assert.deepEqual(receiver.at(other.path), [])
    })

    test('an endpoint is listed without its secret, changed and deleted, and each change is audited', async () => {
      const service = await start()
      const project = await addProject(service)
      const { id } = await create(service, { description: 'Billing' })
      const shown = await show(service, id)
      assert.equal('secret' in shown, false)
      const changed = await ask<Endpoint>(service, 'PATCH', `/v1/webhook-endpoints/${id}`, {
        events: ['job.failed', 'usage.threshold'],
        types: ['agent'],
        project_id: project.id,
        description: null,
      })
      const fields = { events: ['job.failed', 'usage.threshold'], types: ['agent'], project_id: project.id }
      assert.deepEqual(changed, { ...shown, ...fields, description: null })
      assert.deepEqual((await ask<{ data: Endpoint[] }>(service, 'GET', '/v1/webhook-endpoints')).data, [changed])
      const base = `/v1/webhook-endpoints/${id}`
      await ask(service, 'POST', `${base}/rotate`)
      await ask(service, 'POST', `${base}/test`)
      const [test] = await untilState(service, id, 'sent')
      await ask(service, 'POST', `/v1/webhook-deliveries/${test?.id}/resend`)
      await ask(service, 'POST', `${base}/recover`, { since: '2025-01-01T00:00:00Z' })
      await ask(service, 'DELETE', base)
      assertError(service, await service.request('GET', `/v1/webhook-endpoints/${id}`, { token: root(service) }), {
        status: 404,
        code: 'not_found',
      })
      const audit = await ask<{ data: { action: string }[] }>(service, 'GET', `/v1/audit?object=${id}`)
      assert.deepEqual(
        audit.data.map(({ action }) => action),
        ['deleted', 'recovered', 'tested', 'rotated', 'changed', 'created'].map((one) => `webhook_endpoint.${one}`),
      )
      const resent = await ask<{ data: { action: string }[] }>(service, 'GET', `/v1/audit?object=${test?.id}`)
      assert.deepEqual(
        resent.data.map(({ action }) => action),
        ['webhook_delivery.resent'],
      )
      assert.ok(!JSON.stringify(audit.data).includes('whsec_'))
    })

    test('an endpoint that cannot work is refused, and there are at most 50', async () => {
      const service = await start()
      const post = (body: object) =>
        service.request('POST', '/v1/webhook-endpoints', {
          token: root(service),
          body: { url: receiver.url(), events: ['job.failed'], ...body },
        })
      const FAULTS: [object, string][] = [
        [{ url: 'https://10.0.0.1/' }, 'body/url must have a public address'],
        [{ url: 'https://0x7f.0.0.2/' }, 'body/url must have a public address'],
        [{ url: 'https://a:b@example.com/' }, 'body/url must not contain a user name or a password'],
        [{ url: 'nonsense' }, 'body/url must be a URL'],
        [{ types: ['unheard-of'] }, 'body/types names no job type: unheard-of'],
        [{ project_id: 'prj_none' }, 'body/project_id names no project'],
      ]
      for (const [body, message] of FAULTS)
        assertError(service, await post(body), { status: 400, code: 'invalid_request', message })
      for (const body of [{ events: [] }, { events: ['webhook.test'] }, { events: ['job.failed', 'job.failed'] }]) {
        assertError(service, await post(body), { status: 400, code: 'invalid_request' })
      }
      for (let n = 0; n < 50; n++) assert.equal((await post({})).status, 201)
      assertError(service, await post({}), { status: 409, code: 'conflict' })
    })

    test('the secret is shown once: a repeated request with its key has none', async () => {
      const service = await start()
      const request = {
        token: root(service),
        headers: { 'idempotency-key': 'once' },
        body: { url: receiver.url(), events: ['job.failed'] },
      }
      const first = await service.request<Endpoint>('POST', '/v1/webhook-endpoints', request)
      const second = await service.request<Endpoint>('POST', '/v1/webhook-endpoints', request)
      assert.deepEqual(second.body, { ...first.body, secret: null })
      const watcher = service.tokenFor({ sub: 'w', scopes: ['read:operations'] })
      const read = await service.request('GET', '/v1/webhook-endpoints', { token: watcher })
      assert.equal(read.status, 200)
      assertError(service, await service.request('POST', '/v1/webhook-endpoints', { ...request, token: watcher }), {
        status: 403,
        code: 'forbidden',
      })
    })

    test('after a rotation both secrets sign for 24 hours', async () => {
      const service = await start()
      const endpoint = await create(service)
      const { secret } = await ask<Endpoint>(service, 'POST', `/v1/webhook-endpoints/${endpoint.id}/rotate`)
      assert.notEqual(secret, endpoint.secret)
      await addProject(service)
      const [first] = await receiver.until(endpoint.path, 1)
      assert.ok(first && isSignedWith(secret, first) && isSignedWith(endpoint.secret, first))
      await pass(service, DAY_MS)
      await addProject(service)
      const [, second] = await receiver.until(endpoint.path, 2)
      assert.ok(second && isSignedWith(secret, second) && !isSignedWith(endpoint.secret, second))
    })

    test('the secret before a rotation is deleted when it no longer signs', async () => {
      const service = await start()
      const { id } = await create(service)
      await ask(service, 'POST', `/v1/webhook-endpoints/${id}/rotate`)
      const isDeleted = async () => {
        const [row] = await service.db.query<{ old_secret: string | null }>(
          sql`select old_secret from webhook_endpoints`,
        )
        return row?.old_secret === null
      }
      await pass(service, DAY_MS - HOUR_MS)
      assert.equal(await isDeleted(), false)
      await until(async () => {
        await service.clock.advance(600_000)
        return isDeleted()
      })
    })

    test('a URL is stored in its usual spelling, and another URL begins anew', async () => {
      const service = await start()
      const { id } = await create(service, { url: 'https:/\\EXAMPLE.com' })
      assert.equal((await show(service, id)).url, 'https://example.com/')
      await service.db.query(sql`update webhook_endpoints set failing_since = 1`)
      const change = (body: object) => ask<Endpoint>(service, 'PATCH', `/v1/webhook-endpoints/${id}`, body)
      assert.notEqual((await change({ url: 'https://exa\tmple.com' })).failing_since, null)
      const { url, failing_since } = await change({ url: ' https://example.com/a b' })
      assert.deepEqual([url, failing_since], ['https://example.com/a%20b', null])
    })

    test('a delivery that waits is sent now by resend; one that is being sent is refused', async () => {
      const service = await start()
      const endpoint = await create(service)
      receiver.answer(endpoint.path, answerWith(503))
      await addProject(service)
      await untilAttempts(service, endpoint.id, 1)
      const [delivery] = await deliveriesOf(service, endpoint.id)
      const ofEvent = async (event: unknown) =>
        (await deliveriesOf(service, endpoint.id, `?event_id=${event}`)).map(({ id }) => id)
      assert.deepEqual([await ofEvent(delivery?.event_id), await ofEvent('999999')], [[delivery?.id], []])
      const arrived = Promise.withResolvers<ServerResponse>()
      receiver.answer(endpoint.path, (response) => arrived.resolve(response))
      const path = `/v1/webhook-deliveries/${delivery?.id}/resend`
      assert.equal((await ask<Delivery>(service, 'POST', path)).attempts, 0)
      const response = await arrived.promise
      assertError(service, await service.request('POST', path, { token: root(service) }), {
        status: 409,
        code: 'conflict',
        message: 'The delivery is being sent',
      })
      response.end()
      const [sent] = await untilState(service, endpoint.id, 'sent')
      assert.equal(sent?.attempts, 1)
    })

    test('recover sends a new endpoint the events from before its creation', async () => {
      const service = await start()
      await addProject(service, 'earlier')
      await service.clock.advance(60_000)
      const endpoint = await create(service)
      await ask(service, 'POST', `/v1/webhook-endpoints/${endpoint.id}/recover`, { since: '2025-01-01T00:00:00Z' })
      const [webhook] = await receiver.until(endpoint.path, 1)
      assert.equal((JSON.parse(webhook?.body ?? '') as { data: { name: string } }).data.name, 'earlier')
    })

    test('recover sends an event that is in the log before earlier ones, and none from long before', async () => {
      const service = await start()
      await addProject(service, 'long before')
      await service.clock.advance(120_000)
      await addProject(service, 'later')
      const sinceMs = service.clock.now() - 1_000
      const [later] = await service.db.query<{ seq: number }>(sql`select max(seq) as seq from events`)
      for (let n = 0; n < 6; n++) await addProject(service, 'earlier')
      await service.db.query(sql`update events set created_at = ${sinceMs - 2_000} where seq > ${later?.seq ?? 0}`)
      const endpoint = await create(service)
      const since = new Date(sinceMs).toISOString()
      await ask(service, 'POST', `/v1/webhook-endpoints/${endpoint.id}/recover`, { since })
      const names = (await receiver.until(endpoint.path, 7)).map(
        ({ body }) => (JSON.parse(body) as { data: { name: string } }).data.name,
      )
      assert.deepEqual(names.sort(), [...Array(6).fill('earlier'), 'later'])
      assert.equal((await deliveriesOf(service, endpoint.id)).length, 7)
    })

    test('a delivery is repeated with the same id after 5 s, 5 min, … and has failed after eight attempts', async () => {
      const service = await start()
      const endpoint = await create(service)
      receiver.answer(endpoint.path, answerWith(500))
      await addProject(service)
      for (let attempt = 1; attempt <= 8; attempt++) {
        await receiver.until(endpoint.path, attempt)
        await untilAttempts(service, endpoint.id, attempt)
        const [delivery] = await deliveriesOf(service, endpoint.id)
        if (delivery?.next_attempt_at) await pass(service, Date.parse(delivery.next_attempt_at) - service.clock.now())
      }
      const [delivery] = await deliveriesOf(service, endpoint.id, '?state=failed')
      assert.deepEqual(
        [delivery?.attempts, delivery?.last_error, delivery?.log.length],
        [8, 'the receiver answered 500', 8],
      )
      const ids = new Set(receiver.at(endpoint.path).map(({ headers }) => headers['webhook-id']))
      assert.deepEqual([...ids], [delivery?.event_id])
      assert.ok((await show(service, endpoint.id)).failing_since)

      receiver.answer(endpoint.path, accept)
      await ask(service, 'POST', `/v1/webhook-deliveries/${delivery?.id}/resend`)
      await untilState(service, endpoint.id, 'sent')
      assert.equal((await show(service, endpoint.id)).failing_since, null)
      assert.equal(receiver.at(endpoint.path).at(-1)?.headers['webhook-id'], delivery?.event_id)
    })

    test('410 disables the endpoint with an event; later events wait for recover', async () => {
      const { log, lines } = keptLog()
      const service = await start({ log })
      const endpoint = await create(service)
      const watcher = await create(service, { events: ['webhook.disabled'] })
      receiver.answer(endpoint.path, answerWith(410))
      await addProject(service)
      await until(async () => !(await show(service, endpoint.id)).enabled)
      assert.equal((await show(service, endpoint.id)).disabled_reason, 'gone')
      await until(() => lines('webhook.disabled').length > 0)
      assert.deepEqual(lines('webhook.disabled'), [{ endpointId: endpoint.id, reason: 'gone' }])
      const [told] = await receiver.until(watcher.path, 1)
      assert.deepEqual((JSON.parse(told?.body ?? '') as { data: object }).data, {
        endpoint_id: endpoint.id,
        reason: 'gone',
      })

      await addProject(service, 'while disabled')
      const path = `/v1/webhook-endpoints/${endpoint.id}`
      for (const [action, body] of [
        ['test', undefined],
        ['recover', { since: '2025-01-01T00:00:00Z' }],
      ] as const) {
        const refused = await service.request('POST', `${path}/${action}`, {
          token: root(service),
          ...(body && { body }),
        })
        assertError(service, refused, { status: 409, code: 'conflict' })
      }
      receiver.answer(endpoint.path, accept)
      await ask(service, 'PATCH', path, { enabled: true })
      await addProject(service, 'after')
      await receiver.until(endpoint.path, 2)
      const operation = await ask<{ id: string }>(service, 'POST', `${path}/recover`, { since: '2025-01-01T00:00:00Z' })
      await receiver.until(endpoint.path, 4)
      await until(
        async () => (await ask<{ state: string }>(service, 'GET', `/v1/operations/${operation.id}`)).state === 'done',
      )
      await untilState(service, endpoint.id, 'sent')
      const names = receiver
        .at(endpoint.path)
        .map(({ body }) => (JSON.parse(body) as { data: { name: string } }).data.name)
      assert.deepEqual([names[0], names[1], names.slice(2).sort()], ['P', 'after', ['P', 'while disabled']])
    })

    test('a receiver that is down for five days is disabled; a success in between begins anew', async () => {
      const { log, lines } = keptLog()
      const service = await start({ log })
      const endpoint = await create(service)
      receiver.answer(endpoint.path, answerWith(503))
      const fail = async (n: number) => {
        await addProject(service)
        await until(async () => (await deliveriesOf(service, endpoint.id)).length === n)
        await untilAttempts(service, endpoint.id, 1)
      }
      await fail(1)
      receiver.answer(endpoint.path, accept)
      await pass(service, 4 * DAY_MS)
      await untilState(service, endpoint.id, 'sent')
      receiver.answer(endpoint.path, answerWith(503))
      await pass(service, 2 * DAY_MS)
      await fail(2)
      assert.equal((await show(service, endpoint.id)).enabled, true)
      await pass(service, 5 * DAY_MS)
      await until(async () => !(await show(service, endpoint.id)).enabled)
      assert.equal((await show(service, endpoint.id)).disabled_reason, 'failing')
      await until(() => lines('webhook.disabled').length > 0)
      assert.deepEqual(lines('webhook.disabled'), [{ endpointId: endpoint.id, reason: 'failing' }])
    })

    test('Retry-After delays the next attempt', async () => {
      const service = await start()
      const endpoint = await create(service)
      receiver.answer(endpoint.path, answerWith(429, { 'retry-after': '3600' }))
      await addProject(service)
      await untilAttempts(service, endpoint.id, 1)
      const [delivery] = await deliveriesOf(service, endpoint.id)
      assert.equal(Date.parse(delivery?.next_attempt_at ?? '') - service.clock.now(), HOUR_MS)
    })

    test('a test is sent once, and its delivery has the answer', async () => {
      const service = await start()
      const endpoint = await create(service, { events: ['job.failed'] })
      receiver.answer(endpoint.path, answerWith(404))
      const delivery = await ask<Delivery>(service, 'POST', `/v1/webhook-endpoints/${endpoint.id}/test`)
      assert.deepEqual([delivery.state, delivery.event_type], ['pending', 'webhook.test'])
      await untilState(service, endpoint.id, 'failed')
      const [webhook] = receiver.at(endpoint.path)
      assert.equal(webhook?.headers['webhook-id'], delivery.event_id)
      assert.deepEqual((JSON.parse(webhook?.body ?? '') as { data: object }).data, { endpoint_id: endpoint.id })
      const [failed] = await deliveriesOf(service, endpoint.id, '?state=failed')
      assert.deepEqual([failed?.log[0]?.status, failed?.log[0]?.answer], [404, 'status 404'])
    })

    test('the export of a user has the endpoints it created, and its erasure leaves neither it nor its deliveries', async () => {
      const service = await start()
      const endpoint = await create(service)
      const sub = 'eve'
      await service.request('POST', '/v1/projects', {
        token: service.tokenFor({ sub, scopes: ['write:projects'] }),
        body: { name: 'of Eve' },
      })
      await untilState(service, endpoint.id, 'sent')
      await receiver.until(endpoint.path, 1)
      const boss = service.tokenFor({ sub, scopes: ['admin:*'] })
      const body = { url: receiver.url('/of-eve'), events: ['job.failed'] }
      const own = await service.request<Endpoint>('POST', '/v1/webhook-endpoints', { token: boss, body })
      const exported = await ask<{ webhook_endpoints: Endpoint[] }>(service, 'GET', `/v1/users/${sub}/export`)
      assert.deepEqual(
        exported.webhook_endpoints.map(({ id }) => id),
        [own.body.id],
      )
      assert.ok(!JSON.stringify(exported).includes('whsec_'))
      const { id } = await ask<{ id: string }>(service, 'DELETE', `/v1/users/${sub}`)
      await until(async () => {
        await service.clock.advance(1_000)
        return (await ask<{ state: string }>(service, 'GET', `/v1/operations/${id}`)).state === 'done'
      })
      assert.deepEqual(await deliveriesOf(service, endpoint.id), [])
      const kept = await ask<{ created_by: string | null }>(service, 'GET', `/v1/webhook-endpoints/${own.body.id}`)
      assert.equal(kept.created_by, null)
    })

    test('push that is halted does not stop webhooks, and the log names the channel', async () => {
      const sender = new ScriptedSender(() => ({ kind: 'halt', reason: 'wrong project' }))
      const { log, lines } = keptLog()
      const service = await start({ pushSender: sender, log })
      const endpoint = await create(service)
      const device = { token: 'device-of-root', platform: 'ios' }
      await ask(service, 'POST', '/v1/devices', device)
      const message = { users: ['root'], title: 'Hello', body: 'World' }
      await ask(service, 'POST', '/v1/notifications', message)
      await until(() => service.services.outbox.state === 'halted')
      assert.deepEqual(lines('outbox.halted'), [{ channel: 'push', reason: 'wrong project' }])
      await addProject(service)
      await receiver.until(endpoint.path, 1)
      await untilState(service, endpoint.id, 'sent')
      assert.equal(service.services.outbox.state, 'halted')
    })

    test('the log says that an admin disabled an endpoint, once', async () => {
      const { log, lines } = keptLog()
      const service = await start({ log })
      const { id } = await create(service)
      for (const body of [{ description: 'x' }, { enabled: false }, { enabled: false }]) {
        await ask(service, 'PATCH', `/v1/webhook-endpoints/${id}`, body)
      }
      assert.deepEqual(lines('webhook.disabled'), [{ endpointId: id, reason: 'admin' }])
    })

    test('events that were deleted before they were read are counted, and the log says so', async () => {
      const { log, lines } = keptLog()
      const service = await start({ log })
      const endpoint = await create(service)
      await addProject(service)
      await untilState(service, endpoint.id, 'sent')
      await receiver.until(endpoint.path, 1)
      // As after a long stop of all nodes: the log was trimmed past the cursor.
      await service.db.transaction(async (tx) => {
        await tx.query(sql`update webhook_cursor set position = position - 1`)
        await tx.query(sql`delete from events`)
        await tx.query(sql`update event_log set trimmed_seq = (select position + 1 from webhook_cursor)`)
      })
      await addProject(service)
      await receiver.until(endpoint.path, 2)
      assert.equal((await show(service, endpoint.id)).missed_events, 1)
      await until(() => lines('webhooks.events_missing').length > 0)
      assert.deepEqual(lines('webhooks.events_missing'), [{ endpointId: endpoint.id, count: 1 }])
    })
  })
})
