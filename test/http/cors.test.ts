import assert from 'node:assert/strict'
import type { IncomingHttpHeaders } from 'node:http'
import { describe, test } from 'node:test'
import { assertError } from '../support/assert-error.ts'
import type { TestRequest } from '../support/http-client.ts'
import { rawExchange } from '../support/raw-exchange.ts'
import { forEachVariant, type ServiceUnderTest, type TestService } from '../support/service.ts'

const APP = 'https://app.example.com'
const OTHER = 'https://evil.example.com'
const ENV = { CORS_ORIGINS: `${APP}, capacitor://localhost`, WEBHOOK_SECRET: 'a-secret' }
const EXPOSED =
  'ETag, Location, Retry-After, RateLimit, RateLimit-Policy, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, X-Request-Id, Idempotency-Replayed'

function assertReadable(headers: IncomingHttpHeaders | Record<string, string>, what: string): void {
  assert.equal(headers['access-control-allow-origin'], APP, what)
  assert.equal(headers['access-control-expose-headers'], EXPOSED, what)
  assert.equal(headers.vary, 'Origin', what)
  assert.equal(headers['access-control-allow-credentials'], undefined, what)
}

function assertUnreadable(headers: IncomingHttpHeaders, what: string): void {
  assert.deepEqual(
    Object.keys(headers).filter((name) => name.startsWith('access-control-')),
    [],
    what,
  )
}

function preflight(service: TestService, path: string, origin = APP) {
  const headers = { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': 'authorization' }
  return service.request('OPTIONS', path, { headers })
}

describe('scripts of other origins', () => {
  forEachVariant((under) => {
    const shared = once(() => under.start({ env: ENV }))

    test('a preflight is 204 on every path, for 2 h, with the methods and headers that a script may use', async () => {
      const service = await shared()
      for (const path of [
        '/v1/projects',
        '/jobs',
        '/jobs/job_x/events',
        '/nothing',
        '/v1/nothing',
        '/%zz',
        '/healthz',
      ]) {
        const { status, headers, text } = await preflight(service, path)
        assert.deepEqual([status, text], [204, ''], path)
        assertReadable(headers, path)
        assert.equal(headers['access-control-max-age'], '7200')
        assert.equal(headers['access-control-allow-methods'], 'GET, HEAD, POST, PUT, PATCH, DELETE')
        const accepted = String(headers['access-control-allow-headers']).toLowerCase().split(', ')
        for (const name of ['authorization', 'content-type', 'x-api-key', 'idempotency-key', 'if-match']) {
          assert.ok(accepted.includes(name), name)
        }
        assert.ok(accepted.includes('last-event-id'))
        assert.match(String(headers['x-request-id']), /^req_/)
        assert.equal(headers['ratelimit-limit'], undefined, 'charged to no tier')
      }
    })

    test('a preflight is 204 without an allowed origin too, and then it allows nothing', async () => {
      for (const service of [await shared(), await under.shared()]) {
        const { status, headers } = await preflight(service, '/v1/projects', OTHER)
        assert.equal(status, 204)
        assertUnreadable(headers, 'a foreign origin')
      }
      const { headers } = await preflight(await under.shared(), '/v1/projects')
      assertUnreadable(headers, 'no origin is configured')
      assert.equal(headers.vary, undefined)
    })

    test('an OPTIONS request that is not a preflight is handled like any other request', async () => {
      const service = await shared()
      const answer = await service.request('OPTIONS', '/v1/projects', { headers: { origin: APP } })
      assertError(service, answer, { status: 401, code: 'unauthorized', message: 'Missing bearer token' })
      assertReadable(answer.headers, 'but its answer can be read')
      assert.equal((await service.request('OPTIONS', '/v1/projects')).status, 401)
    })

    test('preflights pass during overload and from a spent address', async () => {
      const service = await under.start({ env: { ...ENV, RATE_LIMIT_UNAUTHENTICATED: '1' } })
      await service.request('GET', '/v1/projects')
      const spent = await service.request('GET', '/v1/projects', { headers: { origin: APP } })
      assertError(service, spent, { status: 429, code: 'rate_limit_exceeded' })
      assertReadable(spent.headers, '429')
      fill(service)
      assert.equal((await preflight(service, '/v1/projects')).status, 204)
      const shed = await service.request('GET', '/v1/projects', { headers: { origin: APP } })
      assertError(service, shed, { status: 503, code: 'service_unavailable', message: 'Too busy' })
      assertReadable(shed.headers, '503')
      assert.ok(shed.headers['retry-after'])
    })

    test('every answer can be read: successes, refusals, streams', async () => {
      const service = await shared()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      const plain = service.tokenFor({ sub: 'plain' })
      const json = { 'content-type': 'application/json' }
      const cases: [status: number, method: string, path: string, options: TestRequest][] = [
        [200, 'GET', '/v1/projects', { token }],
        [200, 'HEAD', '/v1/projects', { token }],
        [201, 'POST', '/v1/projects', { token, body: { name: 'x' } }],
        [200, 'GET', '/docs', {}],
        [400, 'POST', '/v1/projects', { token, headers: json, raw: '{' }],
        [400, 'GET', '/%zz', {}],
        [401, 'GET', '/v1/projects', {}],
        [403, 'GET', '/v1/service-accounts', { token: plain }],
        [404, 'GET', '/nothing', {}],
        [404, 'GET', '/v1/projects/prj_none', { token }],
        [405, 'PUT', '/v1/projects', { token }],
        [413, 'POST', '/v1/projects', { token, headers: json, raw: ' '.repeat(1024 * 1024 + 1) }],
        [415, 'POST', '/v1/projects', { token, headers: { 'content-type': 'text/plain' }, raw: 'x' }],
        [401, 'POST', '/webhooks/agent', { raw: '{}' }],
      ]
      for (const [status, method, path, options] of cases) {
        const headers = { ...options.headers, origin: APP }
        const answer = await service.request(method, path, { ...options, headers })
        assert.equal(answer.status, status, `${method} ${path}: ${answer.text}`)
        assertReadable(answer.headers, `${status} ${method} ${path}`)
        const foreign = await service.request(method, path, { ...options, headers: { ...headers, origin: OTHER } })
        assert.equal(foreign.status, status, 'judged as ever')
        assertUnreadable(foreign.headers, `${status} ${method} ${path}`)
        assert.equal(foreign.headers.vary, 'Origin', path)
      }
      const stream = await fetch(`${service.url}/v1/events`, {
        headers: { origin: APP, authorization: `Bearer ${token}` },
      })
      assert.equal(stream.headers.get('content-type'), 'text/event-stream; charset=utf-8')
      assertReadable(Object.fromEntries(stream.headers), 'a stream')
      await stream.body?.cancel()
    })

    test('a script can read the refusal of a request that breaks while it arrives', async () => {
      const service = await shared()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      const head = `POST /v1/projects HTTP/1.1\r\nHost: x\r\nOrigin: ${APP}\r\nAuthorization: Bearer ${token}\r\nContent-Type: application/json\r\n`
      const [answer] = await rawExchange(service.url, `${head}Transfer-Encoding: chunked\r\n\r\nzz\r\n`)
      assert.equal(answer?.status, 400)
      assertReadable(answer?.headers ?? {}, 'broken chunks')
      const [hostless] = await rawExchange(
        service.url,
        `GET /v1/projects HTTP/1.1\r\nOrigin: ${APP}\r\nConnection: close\r\n\r\n`,
      )
      assert.equal(hostless?.status, 400)
      assertReadable(hostless?.headers ?? {}, 'no host')
    })

    test('only an exact origin is allowed', async () => {
      const service = await shared()
      const close = [`${APP}.evil.com`, `${APP}:8443`, 'http://app.example.com', APP.toUpperCase(), 'null', '*', '']
      for (const origin of [...close, `${APP}, ${APP}`, 'http://localhost:5173']) {
        assertUnreadable((await service.request('GET', '/healthz', { headers: { origin } })).headers, origin)
      }
      const app = await service.request('GET', '/healthz', { headers: { origin: 'capacitor://localhost' } })
      assert.equal(app.headers['access-control-allow-origin'], 'capacitor://localhost')
    })

    test('an answer without an origin varies by it too, and nothing varies where no origin is allowed', async () => {
      assert.equal((await (await shared()).request('GET', '/healthz')).headers.vary, 'Origin')
      assert.equal((await (await under.shared()).request('GET', '/healthz')).headers.vary, undefined)
    })
  })
})

function fill({ services }: TestService): void {
  while (services.admission.overload.enter('ordinary') !== null) {
    // Until no more are admitted.
  }
}

function once(start: () => ReturnType<ServiceUnderTest['start']>): () => Promise<TestService> {
  let started: Promise<TestService> | undefined
  return () => {
    started ??= start()
    return started
  }
}
