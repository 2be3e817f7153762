import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import type { Socket } from 'node:net'
import { describe, test } from 'node:test'
import type { FastifyRequest } from 'fastify'
import { CALLER_BOUNDS, Hold } from '../../src/http/admission/admission.ts'
import { BODY_BOUNDS, type ByteOwner } from '../../src/http/admission/byte-budget.ts'
import { OVERLOAD_BOUNDS } from '../../src/http/admission/overload.ts'
import type { App } from '../../src/http/app-instance.ts'
import { bearer } from '../../src/http/gate/access.ts'
import { assertError } from '../support/assert-error.ts'
import { openStream } from '../support/event-stream.ts'
import { startJobWorld, WEBHOOK_SECRET } from '../support/job-world.ts'
import { MetricsText } from '../support/metrics-text.ts'
import { openSocket, parseAnswers, readToEnd } from '../support/raw-exchange.ts'
import { forEachService, onOneService, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

const MB = 1024 * 1024
const SPENT = { status: 429, code: 'rate_limit_exceeded', message: 'Too many requests' } as const
const ME = '/v1/users/me'
const UNPROVEN = 'Webhook-Signature: v1,x'
const NO_ROOM = {
  status: 503,
  code: 'service_unavailable',
  message: 'Too many large requests are in progress',
} as const
/** What a body takes in memory of which only one byte has arrived. */
const ONE_BYTE = 256

describe('one caller', () => {
  onOneService((under) => {
    const start = (extend?: (app: App) => void) =>
      under.start({ env: { WEBHOOK_SECRET }, ...(extend ? { extend } : {}) })

    /** Opens a connection and sends these lines and nothing of the body. */
    const begin = async (service: TestService, ...lines: string[]) => {
      const socket = await openSocket(service.url)
      socket.write([...lines, 'Host: x', 'Connection: close', '', ''].join('\r\n'))
      return socket
    }
    const beginChange = (service: TestService, sub: string, framing: string) => {
      const head = [`PATCH ${ME} HTTP/1.1`, `Authorization: Bearer ${service.tokenFor({ sub })}`]
      return begin(service, ...head, 'Content-Type: application/json', framing)
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
      await until(() => services.admission.isEmpty)
    }

    const signed = (service: TestService, body: string) => {
      const timestamp = String(Math.floor(service.clock.now() / 1000))
      const digest = createHmac('sha256', WEBHOOK_SECRET).update(`msg_1.${timestamp}.${body}`).digest('base64')
      return { 'webhook-id': 'msg_1', 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${digest}` }
    }
    /** Fills memory as bodies would. */
    const fill = ({ services }: TestService, owner: ByteOwner, bytes: number) => {
      const hold = new Hold(services.admission, { kind: 'change', urgency: 'change' })
      assert.equal(hold.growBody(bytes, owner), null)
      return hold
    }
    const changeMe = (service: TestService, sub: string) =>
      service.request('PATCH', ME, { token: service.tokenFor({ sub }), body: { locale: 'en' } })
    /** If there is room, it is read and then refused, because it is too long. */
    const changeMuch = (service: TestService, sub: string) =>
      service.request('PATCH', ME, { token: service.tokenFor({ sub }), body: { locale: 'e'.repeat(4 * 1024) } })
    /** It is read and then refused, because it names no run. */
    const callBackOnce = (service: TestService) =>
      service.request('POST', '/webhooks/agent', { headers: { 'x-webhook-secret': WEBHOOK_SECRET }, raw: '{}' })

    test('connections that only declare a length take no room of the callbacks that a signature proves', async () => {
      const service = await under.start({ env: { WEBHOOK_SECRET, TRUST_PROXY: '127.0.0.1' } })
      const { bodies } = service.services.admission
      const sockets = await Promise.all(
        Array.from({ length: 60 }, (_, n) =>
          callBack(
            service,
            UNPROVEN,
            `X-Forwarded-For: 203.0.113.${n % 2}`,
            `Content-Length: ${n < 30 ? 9 * MB : 1_000}`,
          ),
        ),
      )
      for (const socket of sockets) socket.write('{')
      await until(() => bodies.unprovenBytes === 60 * ONE_BYTE)
      const answer = await service.request('POST', '/webhooks/agent', { headers: signed(service, '{}'), raw: '{}' })
      assert.equal(answer.status, 400, 'it is read')
      for (const socket of sockets) socket.destroy()
      await assertReleased(service)
    })

    test('150 changes of three users whose bodies do not arrive refuse no callback and no change of another user', async () => {
      const service = await start()
      const sockets = await Promise.all(
        Array.from({ length: 150 }, (_, n) => beginChange(service, `slow-${n % 3}`, `Content-Length: ${MB}`)),
      )
      for (const socket of sockets) socket.write('{')
      await until(() => service.services.admission.bodies.totalBytes === 150 * ONE_BYTE)
      assert.equal((await callBackOnce(service)).status, 400, 'it is read')
      assert.equal((await changeMe(service, 'other')).status, 200)
      for (const socket of sockets) socket.destroy()
      await assertReleased(service)
    })

    test('one principal holds at most 16 MB, all of them 64 MB: the rest is for callbacks', async () => {
      const service = await start()
      const holds = [fill(service, { kind: 'principal', id: 'large' }, 16 * MB)]
      const refused = await changeMuch(service, 'large')
      assertError(service, refused, NO_ROOM)
      assert.equal(refused.headers['retry-after'], '1')
      assert.equal((await changeMuch(service, 'other')).status, 400, 'it is read')
      assert.equal(await refusals(service, 'principal_body'), 1)
      for (const id of ['b', 'c', 'd']) holds.push(fill(service, { kind: 'principal', id }, 16 * MB))
      holds.push(fill(service, { kind: 'unproven', id: '203.0.113.1' }, 10 * MB))
      holds.push(fill(service, { kind: 'unproven', id: '203.0.113.2' }, 6 * MB))
      assertError(service, await changeMuch(service, 'other'), NO_ROOM)
      assert.equal(await refusals(service, 'body'), 1)
      assert.equal((await changeMe(service, 'other')).status, 200, 'a small body always fits')
      assert.equal((await callBackOnce(service)).status, 400, 'it is read')
      for (const hold of holds) hold.endWork()
      assert.equal((await changeMuch(service, 'large')).status, 400, 'it is read')
      await assertReleased(service)
    })

    test('one address holds at most 10 MB of the unproven bodies: the rest is for other addresses', async () => {
      const service = await under.start({ env: { WEBHOOK_SECRET, TRUST_PROXY: '127.0.0.1' } })
      const { bodies } = service.services.admission
      const from = (address: string, bytes: number) =>
        callBack(service, UNPROVEN, `X-Forwarded-For: ${address}`, `Content-Length: ${bytes}`)
      /** All bytes but the last arrive. */
      const held: Socket[] = []
      const holdFrom = async (address: string, bytes: number) => {
        const before = bodies.unprovenBytes
        const socket = await from(address, bytes + 1)
        held.push(socket)
        socket.write(Buffer.alloc(bytes))
        await until(() => bodies.unprovenBytes === before + bytes)
      }
      await holdFrom('203.0.113.1', 6 * MB)
      await holdFrom('203.0.113.1', 3 * MB)
      assert.equal((await answerOf(await from('203.0.113.1', MB + 1))).status, 503)
      await holdFrom('203.0.113.2', 5 * MB)
      assert.equal((await answerOf(await from('203.0.113.3', 2 * MB + 1))).status, 503)
      assert.equal(await refusals(service, 'address_body'), 1)
      assert.equal(await refusals(service, 'unproven_body'), 1)
      for (const socket of held) socket.destroy()
      await assertReleased(service)
    })

    const FRAMES = {
      'with a declared length': { head: `Content-Length: ${9 * MB}`, before: '', after: '' },
      'in chunks': {
        head: 'Transfer-Encoding: chunked',
        before: `${(9 * MB).toString(16)}\r\n`,
        after: '\r\n0\r\n\r\n',
      },
    }
    for (const [name, { head, before, after }] of Object.entries(FRAMES)) {
      test(`a body ${name} that finds no room any more is 503, and holds nothing from then on`, async () => {
        const service = await under.start({ env: { WEBHOOK_SECRET, TRUST_PROXY: '127.0.0.1' } })
        const { bodies } = service.services.admission
        const [first, second] = [
          await callBack(service, UNPROVEN, 'X-Forwarded-For: 203.0.113.1', head),
          await callBack(service, UNPROVEN, 'X-Forwarded-For: 203.0.113.2', head),
        ]
        second.write(`${before} `)
        await until(() => bodies.unprovenBytes === ONE_BYTE)
        first.write(before)
        first.write(Buffer.alloc(9 * MB - 1))
        await until(() => bodies.unprovenBytes === 9 * MB - 1 + ONE_BYTE)
        second.write(Buffer.alloc(9 * MB - 1))
        second.write(after)
        const { status, headers } = await answerOf(second)
        assert.deepEqual([status, headers['retry-after']], [503, '1'])
        await until(() => bodies.unprovenBytes === 9 * MB - 1)
        first.write(` ${after}`)
        assert.equal((await answerOf(first)).status, 401)
        await assertReleased(service)
      })
    }

    test('a body in tiny chunks counts as the memory that the chunks take', async () => {
      const service = await start()
      const socket = await beginChange(service, 'tiny', 'Transfer-Encoding: chunked')
      const chunks = BODY_BOUNDS.principal.callerBytes / ONE_BYTE
      socket.write('1\r\n \r\n'.repeat(chunks))
      await until(() => service.services.admission.bodies.totalBytes === BODY_BOUNDS.principal.callerBytes)
      socket.write('1\r\n \r\n')
      assert.equal((await answerOf(socket)).status, 503)
      await assertReleased(service)
    })

    test('a client that leaves while the refusal of its body is sent ends no process', async () => {
      const answering = Promise.withResolvers<FastifyRequest>()
      const service = await start((app) => {
        app.addHook('onSend', async (request) => {
          answering.resolve(request)
          await until(() => request.raw.destroyed)
        })
      })
      const errors: Error[] = []
      const note = (error: Error) => errors.push(error)
      process.on('uncaughtExceptionMonitor', note)
      const socket = await beginChange(service, 'leaver', 'Transfer-Encoding: chunked')
      socket.write(`${(2 * MB).toString(16)}\r\n`)
      socket.write(Buffer.alloc(2 * MB))
      const { raw } = await answering.promise
      socket.destroy()
      await until(() => raw.closed)
      await assertReleased(service)
      process.off('uncaughtExceptionMonitor', note)
      assert.deepEqual(errors, [])
    })

    test('a signature that holds frees the bytes of the unproven, and proven callbacks have what is left of 128 MB', async () => {
      const service = await start()
      const { bodies } = service.services.admission
      const hold = fill(service, null, BODY_BOUNDS.totalBytes - 2 * ONE_BYTE)
      assert.equal((await callBackOnce(service)).status, 400, 'it is read')
      const rest = fill(service, null, 2 * ONE_BYTE)
      assertError(service, await callBackOnce(service), NO_ROOM)
      hold.endWork()
      rest.endWork()
      const unproven = fill(service, { kind: 'unproven', id: '203.0.113.1' }, 10 * MB)
      assert.equal(bodies.unprovenBytes, 10 * MB)
      unproven.proveBody()
      assert.deepEqual([bodies.unprovenBytes, bodies.totalBytes], [0, 10 * MB])
      unproven.endWork()
      const answer = await service.request('POST', '/webhooks/agent', { headers: signed(service, '{}'), raw: '{}' })
      assert.equal(answer.status, 400)
      await assertReleased(service)
    })

    test('a caller with 50 changes in progress, whose bodies are still to come, gets 429; no other caller is refused', async () => {
      const service = await start()
      const { callers } = service.services.admission
      const token = service.tokenFor({ sub: 'slow' })
      const change = () => beginChange(service, 'slow', 'Content-Length: 100')
      const sockets = await Promise.all(Array.from({ length: CALLER_BOUNDS.change }, change))
      for (const socket of sockets) socket.write('{')
      await until(() => service.services.admission.bodies.totalBytes === 100 * CALLER_BOUNDS.change)
      const refused = await service.request('PATCH', ME, { token, body: { locale: 'en' } })
      assertError(service, refused, SPENT)
      assert.equal(refused.headers['retry-after'], '1')
      assert.equal(await refusals(service, 'principal'), 1)
      assert.equal((await service.request('GET', ME, { token })).status, 200, 'reads are counted apart')
      const other = service.tokenFor({ sub: 'other' })
      assert.equal((await service.request('PATCH', ME, { token: other, body: { locale: 'en' } })).status, 200)
      for (const socket of sockets) socket.destroy()
      await until(() => callers.size === 0)
      assert.equal((await service.request('PATCH', ME, { token, body: { locale: 'en' } })).status, 200)
      await assertReleased(service)
    })

    test('a caller with 250 reads in progress gets 429 for the next read, but not for a stream', async () => {
      const open = Promise.withResolvers<object>()
      const service = await start((app) => {
        app.register(async (child) => {
          child.get('/hang', { config: { access: bearer() } }, () => open.promise)
        })
      })
      const token = service.tokenFor({ sub: 'slow' })
      const hanging = Array.from({ length: CALLER_BOUNDS.read }, () => service.request('GET', '/hang', { token }))
      await until(() => service.services.admission.overload.inFlight('ordinary') === CALLER_BOUNDS.read)
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
        const socket = await beginChange(service, `leaver-${n}`, 'Content-Length: 100')
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
      const { overload } = world.service.services.admission
      const cancels = jobs.map((id) => world.request('POST', `/jobs/${id}/cancel`, 'canceller'))
      await until(() => overload.inFlight('runtime') === CALLER_BOUNDS.change)
      await world.clock.advance((OVERLOAD_BOUNDS.change.queue?.forMs ?? 0) + 1)
      assert.equal(overload.inFlight('runtime'), CALLER_BOUNDS.change, 'they are still waiting')
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
  })

  onOneService((under) => {
    test('a request to follow a run no longer counts as a change while it waits for a runtime that hangs', async () => {
      const world = await startJobWorld(under)
      const run = await world.startElsewhere({ user_id: 'follower' })
      world.runtime.setFaults({ hang_lookups: true })
      const { overload } = world.service.services.admission
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
