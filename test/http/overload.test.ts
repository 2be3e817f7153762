import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { request as send } from 'node:http'
import { connect } from 'node:net'
import { describe, test } from 'node:test'
import { BUSY_TURN, OVERLOAD_BOUNDS, Overload, type Urgency } from '../../src/http/admission/overload.ts'
import type { App } from '../../src/http/app-instance.ts'
import { publicAccess } from '../../src/http/gate/access.ts'
import { assertError } from '../support/assert-error.ts'
import { openStream } from '../support/event-stream.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { MetricsText } from '../support/metrics-text.ts'
import { rawExchange } from '../support/raw-exchange.ts'
import { forEachVariant, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

const SECRET = 'a-secret'
const PROBES = ['/healthz', '/readyz', '/metrics']
const END = { thread_id: randomUUID(), run_id: randomUUID(), status: 'success', values: { messages: [] } }
const URGENCIES: readonly Urgency[] = ['change', 'runtime', 'ordinary', 'callback']
const BUSY = { status: 503, code: 'service_unavailable', message: 'Too busy' } as const

describe('overload', () => {
  forEachVariant((under) => {
    const start = (extend?: (app: App) => void) =>
      under.start({ env: { WEBHOOK_SECRET: SECRET, METRICS_PUBLIC: 'true' }, ...(extend ? { extend } : {}) })
    const fill = ({ services }: TestService, ...urgencies: Urgency[]) => {
      const { overload } = services.admission
      const tickets: number[] = []
      for (const urgency of urgencies) {
        for (let ticket = overload.enter(urgency); ticket !== null; ticket = overload.enter(urgency)) {
          tickets.push(ticket)
        }
      }
      return tickets
    }
    const list = (service: TestService) =>
      service.request('GET', '/v1/projects', { token: service.tokenFor({ scopes: ['admin:*'] }) })
    const callBack = (service: TestService) =>
      service.request<{ received: boolean }>('POST', '/webhooks/agent', {
        headers: { 'x-webhook-secret': SECRET },
        raw: JSON.stringify(END),
      })

    test('ordinary requests are refused in the envelope with Retry-After, and not charged to any caller', async () => {
      const service = await start()
      fill(service, 'ordinary', 'change')
      const token = service.tokenFor({ scopes: ['admin:*'] })
      for (const answer of [
        await list(service),
        await service.request('POST', '/v1/projects', { token, body: { name: 'x' } }),
        await service.request('GET', '/v1/projects'),
        await service.request('GET', '/v1/nothing'),
        await service.request('GET', '/openapi.json'),
        await service.request('GET', '/v1/events', { token }),
      ]) {
        assertError(service, answer, BUSY)
        assert.match(String(answer.headers['retry-after']), /^[123]$/)
        assert.equal(answer.headers['x-content-type-options'], 'nosniff')
        assert.equal(answer.headers['ratelimit-limit'], undefined)
        assert.notEqual(answer.headers.connection, 'close', 'the connection is worth keeping')
      }
      const metrics = new MetricsText((await service.request('GET', '/metrics')).text)
      assert.equal(metrics.sum('requests_shed_total', { urgency: 'ordinary' }), 5)
      assert.equal(metrics.sum('requests_shed_total', { urgency: 'change' }), 1)
      assert.equal(metrics.sum('tier_charges_total'), 0)
    })

    test('changes are refused once they queue, but not for a burst, and reads are not refused for it', async () => {
      const service = await start()
      const { overload } = service.services.admission
      const token = service.tokenFor({ scopes: ['admin:*'] })
      const change = () => service.request('POST', '/v1/projects', { token, body: { name: 'x' } })
      const { queue = { length: 0, forMs: 0 } } = OVERLOAD_BOUNDS.change
      const tickets = Array.from({ length: 2 * queue.length }, () => overload.enter('change') ?? 0)
      assert.equal((await change()).status, 201)
      await service.clock.advance(queue.forMs + 1)
      assertError(service, await change(), BUSY)
      assert.equal((await list(service)).status, 200)
      for (const ticket of tickets.slice(0, queue.length + 1)) overload.leave('change', ticket)
      assert.equal((await change()).status, 201)
    })

    test('an inbound request id is kept on a refusal', async () => {
      const service = await start()
      fill(service, 'ordinary')
      const answer = await service.request('GET', '/v1/projects', { headers: { 'x-request-id': 'mine' } })
      assert.equal(answer.headers['x-request-id'], 'mine')
    })

    test('callbacks are still accepted, and probes and metrics answered', async () => {
      const service = await start()
      fill(service, 'ordinary')
      assert.equal((await callBack(service)).body.received, true)
      for (const path of PROBES) assert.equal((await service.request('GET', path)).status, 200, path)
    })

    test('callbacks are refused last, with Retry-After; probes and metrics never', async () => {
      const service = await start()
      assert.ok(OVERLOAD_BOUNDS.callback.inFlight >= 4 * OVERLOAD_BOUNDS.ordinary.inFlight)
      fill(service, ...URGENCIES)
      const answer = await callBack(service)
      assertError(service, answer, BUSY)
      assert.match(String(answer.headers['retry-after']), /^[123]$/)
      for (const path of PROBES) assert.equal((await service.request('GET', path)).status, 200, path)
    })

    test('overload ends as soon as capacity is free again', async () => {
      const service = await start()
      const [ticket = 0] = fill(service, 'ordinary')
      assert.equal((await list(service)).status, 503)
      service.services.admission.overload.leave('ordinary', ticket)
      assert.equal((await list(service)).status, 200)
      assert.equal((await list(service)).status, 200, 'an answered request has left')
    })

    test('every request frees its slot, with any outcome', async () => {
      const service = await start()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      const headers = { 'content-type': 'application/json' }
      const attempts = [
        service.request('GET', '/v1/projects/prj_none', { token }),
        service.request('GET', '/v1/projects?limit=x', { token }),
        service.request('GET', '/v1/projects'),
        service.request('PUT', '/v1/projects', { token }),
        service.request('GET', '/nothing'),
        service.request('HEAD', '/v1/projects', { token }),
        service.request('POST', '/v1/projects', { token, headers, raw: '{' }),
        service.request('POST', '/v1/projects', { token, body: { name: 'x' } }),
        service.request('DELETE', '/v1/projects/prj_none', { token }),
        callBack(service),
        service.request('POST', '/webhooks/agent', { raw: '{}' }),
      ]
      await Promise.all(attempts)
      await goAway(service, token)
      await until(() => service.services.admission.isEmpty)
    })

    test('a body that is slow to come takes no slot, and neither does an open stream', async () => {
      const service = await start()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      const stream = await openStream(service.url, '/v1/events', { token })
      const upload = send(`${service.url}/v1/projects`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${token}`,
          'content-type': 'application/json',
          'content-length': 12,
          expect: '100-continue',
        },
      })
      upload.flushHeaders()
      await once(upload, 'continue')
      await list(service)
      assert.equal(service.services.admission.overload.inFlight('ordinary'), 0)
      upload.end('{"name":"x"}')
      const [answer] = await once(upload, 'response')
      assert.equal(answer.resume().statusCode, 201)
      stream.close()
    })

    test('a turn of the event loop that takes too long admits no further requests, except callbacks', async () => {
      let service: TestService
      const slow = (app: App) => {
        app.register(async (child) => {
          child.get('/slow', { config: { access: publicAccess('a test') } }, async () => {
            // What a handler does without a pause takes time.
            void service.clock.leap(OVERLOAD_BOUNDS.ordinary.turnMs + 1)
            return {}
          })
        })
      }
      service = await start(slow)
      const get = (path: string, ...lines: string[]) =>
        [`GET ${path} HTTP/1.1`, 'Host: x', ...lines, '', ''].join('\r\n')
      const body = JSON.stringify(END)
      const callback = [
        'POST /webhooks/agent HTTP/1.1',
        'Host: x',
        `X-Webhook-Secret: ${SECRET}`,
        `Content-Length: ${body.length}`,
        '',
        body,
      ].join('\r\n')
      // One packet, so that one turn reads them all.
      const turn = async (...requests: string[]) => {
        const answers = await rawExchange(service.url, requests.join(''))
        return answers.map(({ status }) => status)
      }
      const many = Array.from({ length: BUSY_TURN - 1 }, () => get('/docs'))
      const last = get('/healthz', 'Connection: close')
      const statuses = await turn(...many, get('/slow'), get('/docs'), callback, last)
      assert.deepEqual(statuses, [...many.map(() => 200), 200, 503, 200, 200])
      assert.deepEqual(await turn(get('/slow'), get('/docs'), last), [200, 200, 200], 'few are no overload')
    })

    test('the body of a refused request is never taken for the next one', async () => {
      const service = await start()
      fill(service, 'ordinary', 'change')
      const hidden = 'GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n'
      const refused = `POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: ${hidden.length}\r\n\r\n${hidden}`
      const next = 'GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
      const answers = await rawExchange(service.url, refused + next)
      assert.deepEqual(
        answers.map(({ status }) => status),
        [503, 200],
      )
      assert.equal(answers[1]?.body, '{"status":"ok"}')
    })
  })

  test('a turn is as old as its first request, and the next one is new', async () => {
    const clock = new ManualClock()
    const overload = new Overload({ clock })
    for (let taken = 1; taken < BUSY_TURN; taken++) assert.equal(overload.admits('ordinary'), true)
    void clock.leap(OVERLOAD_BOUNDS.ordinary.turnMs + 1)
    assert.equal(overload.admits('ordinary'), true, 'so few can only have been slow')
    assert.deepEqual([overload.admits('ordinary'), overload.admits('callback')], [false, true])
    void clock.leap(OVERLOAD_BOUNDS.callback.turnMs)
    assert.equal(overload.admits('callback'), false)
    await new Promise(setImmediate)
    assert.deepEqual([overload.admits('ordinary'), overload.admits('callback')], [true, true])
  })
})

/** Sends a request and disconnects without waiting. */
async function goAway({ url }: TestService, token: string): Promise<void> {
  const { hostname, port } = new URL(url)
  const socket = connect({ host: hostname, port: Number(port) })
  await once(socket, 'connect')
  socket.write(`GET /v1/projects HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n\r\n`)
  await new Promise(setImmediate)
  socket.destroy()
  await once(socket, 'close')
}
