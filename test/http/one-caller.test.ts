import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import type { Socket } from 'node:net'
import { describe, test } from 'node:test'
import type { App } from '../../src/http/app-instance.ts'
import { bearer } from '../../src/http/gate/access.ts'
import { BODY_BOUNDS } from '../../src/http/server/body-budget.ts'
import { OVERLOAD_BOUNDS } from '../../src/http/server/overload.ts'
import { UNDER_WAY_BOUNDS } from '../../src/limits/under-way.ts'
import { assertError } from '../support/assert-error.ts'
import { openStream } from '../support/event-stream.ts'
import { startJobWorld, WEBHOOK_SECRET } from '../support/job-world.ts'
import { MetricsText } from '../support/metrics-text.ts'
import { openSocket, parseAnswers, readToEnd } from '../support/raw-exchange.ts'
import { forEachService, forEachVariant, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

const MB = 1024 * 1024
const CALLBACK_BYTES = 10 * MB
const SPENT = { status: 429, code: 'rate_limit_exceeded', message: 'Too many requests' } as const
const ME = '/v1/users/me'
const UNPROVEN = 'Webhook-Signature: v1,x'
const PROVEN = `X-Webhook-Secret: ${WEBHOOK_SECRET}`

describe('one caller', () => {
  forEachVariant((under) => {
    const start = (extend?: (app: App) => void) =>
      under.start({ env: { WEBHOOK_SECRET }, ...(extend ? { extend } : {}) })

    /** Opens a connection and sends these lines and nothing of the body. */
    const begin = async (service: TestService, ...lines: string[]) => {
      const socket = await openSocket(service.url)
      socket.write([...lines, 'Host: x', 'Connection: close', '', ''].join('\r\n'))
      return socket
    }
    const callBack = (service: TestService, ...lines: string[]) =>
      begin(service, 'POST /webhooks/agent HTTP/1.1', ...lines)
    const answerOf = async (socket: Socket) => {
      const [answer] = parseAnswers(await readToEnd(socket))
      assert.ok(answer)
      return answer
    }
    /** How many requests a bound has refused. */
    const refusals = async (service: TestService, bound: string) => {
      const { text } = await service.request('GET', '/metrics', { token: service.tokenFor({ scopes: ['admin:*'] }) })
      return new MetricsText(text).sum('requests_bounded_total', { bound })
    }
    const assertReleased = async ({ services }: TestService) => {
      await until(() => services.bodyBudget.totalBytes === 0 && services.underWay.size === 0)
      assert.equal(services.bodyBudget.unprovenBytes, 0)
    }

    test('60 connections with a signature header alone do not take 600 MB: beyond 16 MB they get 503', async () => {
      const service = await start()
      const sockets = await Promise.all(
        Array.from({ length: 60 }, () => callBack(service, UNPROVEN, `Content-Length: ${CALLBACK_BYTES}`)),
      )
      const ended = sockets.map((socket) => readToEnd(socket).then((bytes) => parseAnswers(bytes)))
      await until(() => sockets.filter(({ destroyed }) => destroyed).length === 59)
      assert.equal(service.services.bodyBudget.unprovenBytes, CALLBACK_BYTES)
      for (const socket of sockets) socket.destroy()
      const answers = (await Promise.all(ended)).flat()
      assert.equal(answers.length, 59)
      for (const { status, headers } of answers) assert.deepEqual([status, headers['retry-after']], [503, '1'])
      await assertReleased(service)
      const next = await callBack(service, UNPROVEN, 'Content-Length: 2')
      next.write('{}')
      assert.equal((await answerOf(next)).status, 401, 'the next one is read again')
    })

    test('one address holds at most 10 MB of the unproven bodies: the rest is for other addresses', async () => {
      const service = await under.start({ env: { WEBHOOK_SECRET, TRUST_PROXY: '127.0.0.1' } })
      const { bodyBudget } = service.services
      const from = (address: string, bytes: number) =>
        callBack(service, UNPROVEN, `X-Forwarded-For: ${address}`, `Content-Length: ${bytes}`)
      const held = [await from('203.0.113.1', 6 * MB), await from('203.0.113.1', 4 * MB)]
      await until(() => bodyBudget.unprovenBytes === 10 * MB)
      assert.equal((await answerOf(await from('203.0.113.1', 1 * MB))).status, 503)
      held.push(await from('203.0.113.2', 5 * MB))
      await until(() => bodyBudget.unprovenBytes === 15 * MB)
      assert.equal((await answerOf(await from('203.0.113.3', 2 * MB))).status, 503)
      assert.equal(await refusals(service, 'address_body'), 1)
      assert.equal(await refusals(service, 'unproven_body'), 1)
      for (const socket of held) socket.destroy()
      await assertReleased(service)
      assert.equal(bodyBudget.addresses, 0)
    })

    test('chunks are counted as they arrive', async () => {
      const service = await under.start({ env: { WEBHOOK_SECRET, TRUST_PROXY: '127.0.0.1' } })
      const { bodyBudget } = service.services
      const chunk = Buffer.concat([
        Buffer.from(`${(9 * MB).toString(16)}\r\n`),
        Buffer.alloc(9 * MB),
        Buffer.from('\r\n'),
      ])
      const [first, second] = [
        await callBack(service, UNPROVEN, 'X-Forwarded-For: 203.0.113.1', 'Transfer-Encoding: chunked'),
        await callBack(service, UNPROVEN, 'X-Forwarded-For: 203.0.113.2', 'Transfer-Encoding: chunked'),
      ]
      first.write(chunk)
      await until(() => bodyBudget.unprovenBytes === 9 * MB)
      second.write(chunk)
      second.write('0\r\n\r\n')
      assert.equal((await answerOf(second)).status, 503)
      await until(() => bodyBudget.unprovenBytes === 9 * MB)
      first.write('0\r\n\r\n')
      assert.equal((await answerOf(first)).status, 401)
      await assertReleased(service)
    })

    test('a signature that holds frees the bytes of the unproven, and proven bodies have 128 MB', async () => {
      const service = await start()
      const { bodyBudget } = service.services
      const proven = await Promise.all(
        Array.from({ length: 12 }, () => callBack(service, PROVEN, `Content-Length: ${CALLBACK_BYTES}`)),
      )
      await until(() => bodyBudget.totalBytes === 12 * CALLBACK_BYTES)
      assert.equal(bodyBudget.unprovenBytes, 0)
      assert.ok(bodyBudget.totalBytes + CALLBACK_BYTES > BODY_BOUNDS.totalBytes)
      const refused = await callBack(service, PROVEN, `Content-Length: ${CALLBACK_BYTES}`)
      assert.equal((await answerOf(refused)).status, 503)
      for (const socket of proven) socket.destroy()
      await assertReleased(service)
      const body = '{}'
      const timestamp = String(Math.floor(service.clock.now() / 1000))
      const digest = createHmac('sha256', WEBHOOK_SECRET).update(`msg_1.${timestamp}.${body}`).digest('base64')
      const headers = { 'webhook-id': 'msg_1', 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${digest}` }
      assert.equal((await service.request('POST', '/webhooks/agent', { headers, raw: body })).status, 400)
      await assertReleased(service)
    })

    test('with 50 changes under way, whose bodies are still to come, the next is 429; no other caller is refused', async () => {
      const service = await start()
      const { underWay } = service.services
      const token = service.tokenFor({ sub: 'slow' })
      const change = () =>
        begin(
          service,
          `PATCH ${ME} HTTP/1.1`,
          `Authorization: Bearer ${token}`,
          'Content-Type: application/json',
          'Content-Length: 100',
        )
      const sockets = await Promise.all(Array.from({ length: UNDER_WAY_BOUNDS.change }, change))
      await until(() => service.services.bodyBudget.totalBytes === 100 * UNDER_WAY_BOUNDS.change)
      const refused = await service.request('PATCH', ME, { token, body: { locale: 'en' } })
      assertError(service, refused, SPENT)
      assert.equal(refused.headers['retry-after'], '1')
      assert.equal(await refusals(service, 'principal'), 1)
      assert.equal((await service.request('GET', ME, { token })).status, 200, 'reads are counted apart')
      const other = service.tokenFor({ sub: 'other' })
      assert.equal((await service.request('PATCH', ME, { token: other, body: { locale: 'en' } })).status, 200)
      for (const socket of sockets) socket.destroy()
      await until(() => underWay.size === 0)
      assert.equal((await service.request('PATCH', ME, { token, body: { locale: 'en' } })).status, 200)
      await assertReleased(service)
    })

    test('with 250 reads under way the next is 429, but not a stream', async () => {
      const open = Promise.withResolvers<object>()
      const service = await start((app) => {
        app.register(async (child) => {
          child.get('/hang', { config: { access: bearer() } }, () => open.promise)
        })
      })
      const token = service.tokenFor({ sub: 'slow' })
      const hanging = Array.from({ length: UNDER_WAY_BOUNDS.read }, () => service.request('GET', '/hang', { token }))
      await until(() => service.services.overload.inFlight('ordinary') === UNDER_WAY_BOUNDS.read)
      assertError(service, await service.request('GET', ME, { token }), SPENT)
      assert.equal((await service.request('GET', ME, { token: service.tokenFor({ sub: 'other' }) })).status, 200)
      const stream = await openStream(service.url, '/v1/events', { token })
      stream.close()
      open.resolve({})
      for (const { status } of await Promise.all(hanging)) assert.equal(status, 200)
      await assertReleased(service)
    })

    test('a client that leaves while its credential is checked holds nothing', async () => {
      const service = await start()
      for (let n = 0; n < 20; n++) {
        const token = service.tokenFor({ sub: `leaver-${n}` })
        const head = [`PATCH ${ME} HTTP/1.1`, `Authorization: Bearer ${token}`, 'Content-Type: application/json']
        const socket = await begin(service, ...head, 'Content-Length: 100')
        await new Promise(setImmediate)
        socket.destroy()
      }
      await service.request('GET', ME, { token: service.tokenFor({ sub: 'stays' }) })
      await assertReleased(service)
    })
  })

  forEachService((under) => {
    test('60 cancels of one user against a runtime that hangs refuse no write of another user', async () => {
      const world = await startJobWorld(under)
      world.runtime.setFaults({ zombie: true })
      const jobs: string[] = []
      for (let n = 0; n < 60; n++) jobs.push((await world.start('report', { sub: 'canceller' })).id)
      world.runtime.setFaults({ hang_lookups: true })
      const { overload } = world.service.services
      const cancels = jobs.map((id) => world.request('POST', `/jobs/${id}/cancel`, 'canceller'))
      await until(() => overload.inFlight('runtime') === UNDER_WAY_BOUNDS.change)
      await world.clock.advance((OVERLOAD_BOUNDS.change.queue?.forMs ?? 0) + 1)
      assert.equal(overload.inFlight('runtime'), UNDER_WAY_BOUNDS.change, 'they are still waiting')
      const token = world.service.tokenFor({ sub: 'writer', scopes: ['write:projects'] })
      const written = await world.service.request('POST', '/v1/projects', { token, body: { name: 'x' } })
      assert.equal(written.status, 201, written.text)
      world.runtime.setFaults({ hang_lookups: false })
      const statuses = (await Promise.all(cancels)).map(({ status }) => status)
      assert.equal(statuses.filter((status) => status === 429).length, 10)
      assert.ok(
        statuses.every((status) => status === 429 || status === 200 || status === 202),
        String(statuses),
      )
      // Cancelled runs still post their callbacks.
      await world.quiet()
    })

    test('following a run leaves the changes before it asks a runtime that hangs', async () => {
      const world = await startJobWorld(under)
      const run = await world.startElsewhere({ user_id: 'follower' })
      world.runtime.setFaults({ hang_lookups: true })
      const { overload } = world.service.services
      const following = world.request('POST', '/jobs', 'follower', { body: { type: 'report', ...run } })
      await until(() => overload.inFlight('runtime') === 1)
      assert.equal(overload.inFlight('change'), 0)
      world.runtime.setFaults({ hang_lookups: false })
      assert.equal((await following).status, 202)
      assert.equal(overload.inFlight('runtime'), 0)
      await world.quiet()
    })

    test('a follow that is repeated with its Idempotency-Key does not ask the runtime again', async () => {
      const world = await startJobWorld(under)
      const run = await world.startElsewhere({ user_id: 'follower' })
      const follow = () =>
        world.request('POST', '/jobs', 'follower', {
          body: { type: 'report', ...run },
          headers: { 'idempotency-key': 'follow-once' },
        })
      const first = await follow()
      assert.equal(first.status, 202, first.text)
      await world.quiet()
      const calls = world.allCalls
      world.runtime.setFaults({ lookup_failure: 1 })
      const second = await follow()
      assert.deepEqual([second.status, second.body.id], [202, first.body.id])
      assert.equal(second.headers['idempotency-replayed'], 'true')
      assert.equal(world.allCalls, calls)
    })
  })
})
