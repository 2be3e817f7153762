import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { toRfc3339 } from '../../src/core/clock.ts'
import { ApiError } from '../../src/core/errors.ts'
import type { Log } from '../../src/core/log.ts'
import type { Database, Queryable } from '../../src/db/database.ts'
import { HANDLER_DEADLINE } from '../../src/http/admission/handler-deadline.ts'
import type { App } from '../../src/http/app-instance.ts'
import { publicAccess } from '../../src/http/gate/access.ts'
import { assertError, messageOf } from '../support/assert-error.ts'
import { openSocket, parseAnswers, rawExchange, readToEnd } from '../support/raw-exchange.ts'
import { forEachServiceAndVariant, forEachVariant, type TestService } from '../support/service.ts'

const JSON_TYPE = { 'content-type': 'application/json' }
const MEGABYTE = 1024 * 1024

describe('errors', () => {
  forEachVariant((under) => {
    const writer = (service: TestService) => service.tokenFor({ scopes: ['write:projects'] })
    const post = async (raw: string | Buffer, headers: Record<string, string> = JSON_TYPE) => {
      const service = await under.shared()
      const answer = await service.request('POST', '/v1/projects', { token: writer(service), raw, headers })
      return { service, answer }
    }

    test('a body that is not JSON is a 400 that says so', async () => {
      const bodies = ['{', '{"name":"x"', '{"name":"x",}', "{'name':'x'}", '{"name":"x"}{}', 'NaN', '\u0000', '<x/>']
      for (const body of [...bodies, '{"name":"\n"}']) {
        const { service, answer } = await post(body)
        assertError(service, answer, { status: 400, code: 'invalid_request', message: 'body is not valid JSON' })
      }
    })

    test('a body that is not UTF-8 is a 400, and nothing of it is altered and kept', async () => {
      const inName = (...bytes: number[]) =>
        Buffer.concat([Buffer.from('{"name":"caf'), Buffer.from(bytes), Buffer.from('"}')])
      const broken = {
        'Latin-1': inName(0xe9),
        'a lone surrogate': inName(0xed, 0xa0, 0x80),
        'an overlong slash': inName(0xc0, 0xaf),
        'a character cut short': Buffer.from([...Buffer.from('{"name":"x"}'), 0xc3]),
        'UTF-16': Buffer.from('{"name":"é"}', 'utf16le').subarray(1),
      }
      for (const [what, body] of Object.entries(broken)) {
        const { service, answer } = await post(body)
        assertError(service, answer, { status: 400, code: 'invalid_request', message: 'body is not valid UTF-8' })
        assert.equal(answer.status, 400, what)
      }
      const { answer } = await post('\ufeff{"name":"café 🎉 \ufffd"}')
      assert.equal(answer.status, 201, 'a byte order mark is passed over')
      assert.equal((answer.body as { name: string }).name, 'café 🎉 \ufffd')
    })

    test('only uncompressed UTF-8 bodies are accepted', async () => {
      for (const type of ['application/json;charset=UTF-8', 'application/json; charset="utf-8"; v=1']) {
        const { answer } = await post('{"name":"x"}', { 'content-type': type })
        assert.equal(answer.status, 201, `${type}: ${answer.text}`)
      }
      for (const charset of ['iso-8859-1', 'utf-16', '"latin1"', 'x']) {
        const { service, answer } = await post('{"name":"x"}', {
          'content-type': `application/json; charset=${charset}`,
        })
        const message = 'The charset of Content-Type must be utf-8'
        assertError(service, answer, { status: 415, code: 'unsupported_media_type', message })
      }
      for (const coding of ['gzip', 'br', 'identity, gzip']) {
        const { service, answer } = await post(gzipSync('{"name":"x"}'), { ...JSON_TYPE, 'content-encoding': coding })
        const message = 'Content-Encoding is not supported: send the body as it is'
        assertError(service, answer, { status: 415, code: 'unsupported_media_type', message })
      }
      assert.equal((await post('{"name":"x"}', { ...JSON_TYPE, 'content-encoding': 'Identity' })).answer.status, 201)
    })

    test('an empty body is no body: a 400 only where one is needed', async () => {
      const { service, answer } = await post('')
      assertError(service, answer, { status: 400, code: 'invalid_request', message: 'body must be object' })
      const none = await service.request('POST', '/v1/projects', { token: writer(service) })
      assertError(service, none, { status: 400, code: 'invalid_request', message: 'body must be object' })

      const token = service.tokenFor({ scopes: ['admin:*'] })
      const made = async (path: string, body: object) =>
        String((await service.request('POST', path, { token, body })).headers.location)
      const project = await made('/v1/projects', { name: 'x' })
      for (const headers of [JSON_TYPE, { ...JSON_TYPE, 'transfer-encoding': 'chunked' }]) {
        const account = await made('/v1/service-accounts', { name: 'x', scopes: [] })
        const ask = (method: string, path: string) => service.request(method, path, { token, raw: '', headers })
        assert.equal((await ask('POST', `${account}/rotate`)).status, 201, 'the body is optional')
        assert.equal((await ask('DELETE', account)).status, 204, 'there is none')
        assertError(service, await ask('PATCH', project), { status: 400, code: 'invalid_request' })
        assertError(service, await ask('POST', '/v1/nothing'), { status: 404, code: 'not_found' })
      }
    })

    test('a body of another shape than an object is a 400', async () => {
      for (const body of ['null', '[]', '"x"', '1', 'true', '[{"name":"x"}]']) {
        const { service, answer } = await post(body)
        assertError(service, answer, { status: 400, code: 'invalid_request', message: 'body must be object' })
      }
    })

    test('100 levels of nesting are read, 101 are refused, and brackets in strings do not count', async () => {
      const nested = (levels: number) =>
        `{"name":"x","metadata":{"a":${'['.repeat(levels - 2)}${']'.repeat(levels - 2)}}}`
      assert.equal((await post(nested(100))).answer.status, 201)
      for (const body of [nested(101), nested(100_000), '['.repeat(500_000), '{"a":'.repeat(101)]) {
        const { service, answer } = await post(body)
        const message = 'body must not be nested deeper than 100 levels'
        assertError(service, answer, { status: 400, code: 'invalid_request', message })
      }
      assert.equal((await post(JSON.stringify({ name: '[{'.repeat(100) }))).answer.status, 201)
      assert.equal((await post(JSON.stringify({ name: `\\"${'['.repeat(190)}` }))).answer.status, 201)
    })

    test('a body of one megabyte is read, and one byte more is a 413', async () => {
      const padded = (bytes: number) => `{"name":"x"}${' '.repeat(bytes - 12)}`
      assert.equal((await post(padded(MEGABYTE))).answer.status, 201)
      const { service, answer } = await post(padded(MEGABYTE + 1))
      const tooLarge = { status: 413, code: 'payload_too_large', message: 'Request body is too large' } as const
      assertError(service, answer, tooLarge)
      const chunked = await post(padded(MEGABYTE + 1), { ...JSON_TYPE, 'transfer-encoding': 'chunked' })
      assertError(service, chunked.answer, tooLarge)
    })

    test('a client that sends all of a body that is too large still reads the 413, and its next answer', async () => {
      const service = await under.shared()
      const head = (line: string, ...headers: string[]) =>
        [`${line} HTTP/1.1`, 'host: x', `authorization: Bearer ${writer(service)}`, ...headers, '', ''].join('\r\n')
      const answers = await rawExchange(
        service.url,
        Buffer.concat([
          Buffer.from(head('POST /v1/projects', 'content-type: application/json', `content-length: ${12 * MEGABYTE}`)),
          Buffer.alloc(12 * MEGABYTE, ' '),
          Buffer.from(head('GET /healthz', 'connection: close')),
        ]),
      )
      assert.deepEqual(
        answers.map(({ status }) => status),
        [413, 200],
      )
    })

    test('only JSON is accepted, under all its media types', async () => {
      for (const type of ['application/json; charset=utf-8', 'APPLICATION/JSON', 'application/merge-patch+json']) {
        const { answer } = await post('{"name":"x"}', { 'content-type': type })
        assert.equal(answer.status, 201, `${type}: ${answer.text}`)
      }
      const others = [
        'text/plain',
        'text/xml',
        'application/x-www-form-urlencoded',
        'multipart/form-data',
        'json',
        '*/*',
      ]
      for (const type of [...others, 'application/jsonx', 'application/json-seq', 'text/plain; application/json', '']) {
        const { service, answer } = await post('{"name":"x"}', { 'content-type': type })
        const message = 'Content-Type must be application/json'
        assertError(service, answer, { status: 415, code: 'unsupported_media_type', message })
      }
      const { service, answer } = await post('{"name":"x"}', { 'content-length': '12' })
      assertError(service, answer, { status: 415, code: 'unsupported_media_type' })
    })

    test('keys that would reach an object’s prototype are refused', async () => {
      const bodies = [
        '{"name":"x","__proto__":{"admin":true}}',
        '{"name":"x","metadata":{"__proto__":{"admin":true}}}',
        '{"name":"x","metadata":{"a":[{"__proto__":null}]}}',
        '{"name":"x","metadata":{"constructor":{"prototype":{"admin":true}}}}',
        '{"name":"x","metadata":{"\\u005f_proto__":{"admin":true}}}',
      ]
      for (const body of bodies) {
        const { service, answer } = await post(body)
        const message = 'body must not have the key "__proto__", nor a "constructor" with a "prototype"'
        assertError(service, answer, { status: 400, code: 'invalid_request', message })
      }
      assert.equal((await post('{"name":"__proto__","metadata":{"constructor":{"a":1}}}')).answer.status, 201)
      assert.equal(({} as { admin?: boolean }).admin, undefined)
    })
  })

  forEachServiceAndVariant((under) => {
    test('an unexpected error of the store is a 500 without the SQL statement', async () => {
      const { db } = await under.shared()
      const service = await under.start({ db: brokenFor('projects', db) })
      const token = service.tokenFor({ scopes: ['admin:*'] })
      for (const [method, path] of [
        ['GET', '/v1/projects'],
        ['GET', '/v1/projects/prj_1'],
        ['DELETE', '/v1/projects/prj_1'],
      ] as const) {
        const answer = await service.request(method, path, { token })
        assertError(service, answer, { status: 500, code: 'internal_error', message: 'Internal error' })
      }
      assert.equal((await service.request('GET', '/v1/users/me', { token })).status, 200, 'the rest still serves')
    })

    test('every route that needs the database is a 503 without it, and readiness says why', async () => {
      const service = await under.start()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      const created = await service.request('POST', '/v1/projects', { token, body: { name: 'x' } })
      const path = String(created.headers.location)
      await service.db.close()
      const stranger = service.tokenFor({ sub: 'a stranger', scopes: ['admin:*'] })
      const attempts = [
        service.request('GET', '/v1/projects', { token }),
        service.request('POST', '/v1/projects', { token, body: { name: 'x' } }),
        service.request('POST', '/v1/projects', { token, body: { name: 'x' }, headers: { 'idempotency-key': 'k' } }),
        service.request('GET', path, { token }),
        service.request('PATCH', path, { token, body: { name: 'y' } }),
        service.request('DELETE', path, { token }),
        service.request('GET', '/v1/users/me', { token }),
        service.request('GET', '/v1/projects', { token: stranger }),
        service.request('POST', '/v1/service-accounts', { token, body: { name: 'x', scopes: [] } }),
      ]
      for (const answer of await Promise.all(attempts)) {
        const message = /^The database is (unavailable|closed)$/
        assertError(service, answer, { status: 503, code: 'service_unavailable', message })
        assert.equal(answer.headers['retry-after'], '1')
      }
      const ready = await service.request<{ checks: { database: object } }>('GET', '/readyz')
      assert.equal(ready.status, 503)
      assert.equal(ready.headers['retry-after'], '1')
      assert.match(
        JSON.stringify(ready.body.checks.database),
        /^{"state":"down","detail":"The database is \w+","since":"[^"]+"}$/,
      )
      assert.equal((await service.request('GET', '/healthz')).status, 200, 'the process itself is alive')
    })
  })
})

describe('errors before, around and in place of a handler', () => {
  forEachVariant((under) => {
    /** Another service on the shared database, which most of these tests do not use. */
    const beside = async (options: Parameters<typeof under.start>[0] = {}) =>
      under.start({ db: (await under.shared()).db, ...options })

    test('a path that cannot be decoded is a 400', async () => {
      const service = await under.shared()
      for (const path of ['/v1/projects/%', '/v1/projects/%zz', '/v1/projects/%c3%28', '/%ff', '/v1/users/%ed%a0%80']) {
        const answer = await service.request('GET', path, { token: service.tokenFor({ scopes: ['admin:*'] }) })
        assertError(service, answer, {
          status: 400,
          code: 'invalid_request',
          message: 'The path is not a valid URL path',
        })
      }
    })

    test('a query that cannot be decoded is a 400, in a name and in a value', async () => {
      const service = await under.shared()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      for (const query of ['search=%80', 'search=a%', 'search=%zz', 'search=%c3%28', 'search=%ed%a0%80', '%ff=1']) {
        for (const path of ['/v1/users', '/v1/events', '/healthz', '/nope']) {
          assertError(service, await service.request('GET', `${path}?${query}`, { token }), {
            status: 400,
            code: 'invalid_request',
            message: 'The query is not a valid URL query',
          })
        }
      }
      assert.equal((await service.request('GET', '/jobs?created_by=caf%C3%A9', { token })).status, 200)
    })

    test('an unknown path is a 404 and a wrong method a 405, whatever the body', async () => {
      const service = await under.shared()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      for (const raw of ['{bad', '{}', 'x'.repeat(2 * MEGABYTE)]) {
        for (const path of ['/nope', '/v1/nope', '/v1/projects/', '/jobs/', '/v1/users/', '/webhooks/jobs/']) {
          const answer = await service.request('POST', path, { token, raw, headers: JSON_TYPE })
          assertError(service, answer, { status: 404, code: 'not_found', message: /^No such path/ })
        }
        const answer = await service.request('PUT', '/v1/projects', { token, raw, headers: JSON_TYPE })
        assertError(service, answer, { status: 405, code: 'method_not_allowed' })
        assert.equal(answer.headers.allow, 'GET, HEAD, POST')
      }
      for (const path of ['/v1/projects/', '/jobs/', '/v1/users/', '/console/assets/']) {
        assertError(service, await service.request('GET', path, { token }), { status: 404, code: 'not_found' })
      }
    })

    test('a client that closes its connection after the request still reads the refusal of an unread body', async () => {
      const service = await under.shared()
      const body = 900 * 1024
      for (const [path, status] of [
        ['/nope', 404],
        ['/v1/projects', 401],
      ] as const) {
        for (const version of ['1.0', '1.1']) {
          const head = `POST ${path} HTTP/${version}\r\nhost: x\r\nconnection: close\r\ncontent-length: ${body}\r\n\r\n`
          const socket = await openSocket(service.url)
          const write = (text: string) => new Promise((written) => socket.write(text, written))
          await write(head + ' '.repeat(body / 2))
          // Enough turns of the event loop for the service to refuse the request.
          for (let n = 0; n < 5; n++) await service.request('GET', '/healthz')
          assert.ok(!((await write(' '.repeat(body / 2))) instanceof Error), `${path} ${version}`)
          const [answer] = parseAnswers(await readToEnd(socket))
          assert.equal(answer?.status, status, `${path} ${version}`)
        }
      }
    })

    test('a disguised path under /v1/ is as closed as a plain one', async () => {
      const service = await under.shared()
      for (const path of ['/%76%31/nothing', '/v%31/projects', 'http://x/v1/nothing', 'http://x/v1/projects']) {
        assertError(service, await service.request('GET', path), { status: 401, code: 'unauthorized' })
      }
    })

    test('headers over 32 KB are a 431', async () => {
      const service = await under.shared()
      const answer = await service.exchange(
        `GET /healthz HTTP/1.1\r\nHost: x\r\nX-Filler: ${'x'.repeat(33_000)}\r\n\r\n`,
      )
      assertError(service, answer, { status: 431, code: 'headers_too_large', message: 'The headers are too large' })
      assert.equal(answer.headers.connection, 'close')
    })

    test('bytes that are not HTTP are a 400', async () => {
      const service = await under.shared()
      const request = (head: string, ...lines: string[]) => [head, 'Host: x', ...lines, '', ''].join('\r\n')
      const garbage = [
        'hello?\r\n\r\n',
        'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
        Buffer.from('16030100a5010000a10303', 'hex'),
        request('FOO /healthz HTTP/1.1'),
        request('GET /healthz HTTP/9.9'),
        request('GET /healthz HTTP/1.1', 'no colon'),
        request('GET /heal thz HTTP/1.1'),
        request('POST /v1/projects HTTP/1.1', 'Content-Length: 5', 'Transfer-Encoding: chunked'),
        request('POST /v1/projects HTTP/1.1', 'Content-Length: 5', 'Content-Length: 6'),
        request('POST /v1/projects HTTP/1.1', 'Content-Length: -1'),
      ]
      for (const bytes of garbage) {
        const answer = await service.exchange(bytes)
        assertError(service, answer, { status: 400, code: 'invalid_request', message: 'The request is not valid HTTP' })
      }
    })

    test('a request without Host, or with an expectation that cannot be met, still gets an envelope', async () => {
      const service = await under.shared()
      const hostless = await service.exchange('GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n')
      assertError(service, hostless, { status: 400, code: 'invalid_request' })
      const close = { connection: 'close' }
      const ignored = await service.request('GET', '/healthz', { headers: { ...close, expect: 'the unexpected' } })
      assert.equal(ignored.status, 200)
      const old = await service.exchange('GET /healthz HTTP/1.0\r\n\r\n')
      assert.equal(old.status, 200)
    })

    test('a request that does not arrive in time is a 408', async () => {
      const impatient = (app: App) =>
        Object.assign(app.server, { headersTimeout: 1, requestTimeout: 1, connectionsCheckingInterval: 1 })
      const service = await beside({ extend: impatient })
      for (const start of [
        'GET /healthz HTTP/1.1\r\nHost: x\r\n',
        'POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Le',
      ]) {
        const answer = await service.exchange(start)
        const message = 'The request took too long to arrive'
        assertError(service, answer, { status: 408, code: 'request_timeout', message })
      }
    })

    test('a crash is a 500 without details, and the log has all details', async () => {
      const logged: unknown[] = []
      const note = (fields: object) => logged.push(fields)
      const log: Log = { debug: () => {}, info: () => {}, warn: note, error: note }
      const secret = 'select password from vault where id = 42'
      const failures: Record<string, () => unknown> = {
        thrown: () => {
          throw new Error(secret)
        },
        rejected: () => Promise.reject(new TypeError(secret)),
        text: () => Promise.reject(secret),
        nothing: () => Promise.reject(undefined),
        status: () => Promise.reject(Object.assign(new Error(secret), { statusCode: 503 })),
        cause: () => Promise.reject(new ApiError('internal_error', 'Internal error', { cause: new Error(secret) })),
      }
      const extend = (app: App) => {
        app.register(async (child) => {
          for (const [name, fail] of Object.entries(failures)) {
            child.get(`/fail/${name}`, { config: { access: publicAccess('a test') } }, async () => fail())
          }
        })
      }
      const service = await beside({ extend, log })
      for (const name of Object.keys(failures)) {
        const answer = await service.request('GET', `/fail/${name}`)
        assertError(service, answer, { status: 500, code: 'internal_error', message: 'Internal error' })
      }
      assert.equal(logged.length, Object.keys(failures).length, 'one line for each')
      const causes = logged.map((fields) => String((fields as { err: unknown }).err))
      assert.equal(causes.filter((cause) => cause.includes(secret)).length, causes.length - 1)
    })

    test('an error that a library marks as the client’s is a 400 without the library’s message', async () => {
      const fault = Object.assign(new Error('node_modules/x.js:1'), { statusCode: 422 })
      const extend = (app: App) => {
        app.register(async (child) => {
          child.get('/fail', { config: { access: publicAccess('a test') } }, async () => Promise.reject(fault))
        })
      }
      const service = await beside({ extend })
      const answer = await service.request('GET', '/fail')
      assertError(service, answer, { status: 400, code: 'invalid_request' })
    })

    test('a handler that takes too long is a 503 with Retry-After', async () => {
      const entered = Promise.withResolvers<void>()
      const extend = (app: App) => {
        app.register(async (child) => {
          child.get('/slow', { config: { access: publicAccess('a test') } }, () => {
            entered.resolve()
            return new Promise(() => {})
          })
        })
      }
      const service = await beside({ extend })
      const asked = service.request('GET', '/slow')
      await entered.promise
      await service.clock.advance(HANDLER_DEADLINE.rounds * HANDLER_DEADLINE.roundMs)
      const answer = await asked
      assertError(service, answer, { status: 503, code: 'service_unavailable', message: 'The request took too long' })
      assert.equal(answer.headers['retry-after'], '1')
      assert.equal((await service.request('GET', '/healthz')).status, 200)
    })

    test('a service that drains is not ready, serves further requests and closes their connections', async () => {
      const service = await beside()
      const since = toRfc3339(service.clock.calendar())
      service.services.readiness.startDraining()
      const ready = await service.request('GET', '/readyz')
      assert.equal(ready.status, 503)
      const draining = { process: { state: 'down', detail: 'shutting down', since } }
      assert.deepEqual(ready.body, { status: 'not_ready', checks: draining })
      const served = await service.request('GET', '/v1/users/me', { token: service.tokenFor() })
      assert.equal(served.status, 200)
      assert.equal(served.headers.connection, 'close')
    })

    test('a well-formed X-Request-Id is kept and any other replaced, on answers of every kind', async () => {
      const service = await under.shared()
      const paths = ['/healthz', '/nothing', '/v1/projects', '/v1/projects/%zz']
      for (const path of paths) {
        for (const id of ['a', 'Trace-1_2.3', 'x'.repeat(128)]) {
          const answer = await service.request('GET', path, { headers: { 'x-request-id': id } })
          assert.equal(answer.headers['x-request-id'], id, path)
        }
        for (const id of ['', 'a b', 'x'.repeat(129), 'é', '<script>', 'a,b', ['a', 'b'], '\t']) {
          const answer = await service.request('GET', path, { headers: { 'x-request-id': id } })
          assert.match(String(answer.headers['x-request-id']), /^req_[0-9a-z]{26}$/, `${path} ${id}`)
        }
      }
      const ids = await Promise.all(Array.from({ length: 20 }, () => service.request('GET', '/healthz')))
      assert.equal(new Set(ids.map(({ headers }) => headers['x-request-id'])).size, 20, 'each has its own')
    })

    test('no answer lets a browser guess its type', async () => {
      const service = await under.shared()
      for (const path of ['/healthz', '/nothing', '/v1/projects', '/openapi.json', '/docs', '/v1/projects/%zz']) {
        const answer = await service.request('GET', path)
        assert.equal(answer.headers['x-content-type-options'], 'nosniff', path)
      }
    })

    test('messages of errors never end with a period', async () => {
      const service = await under.shared()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      for (const path of ['/nothing', '/v1/projects/x', '/v1/projects?limit=0', '/v1/projects?cursor=x', '/v1/%zz']) {
        assert.doesNotMatch(messageOf(await service.request('GET', path, { token })), /\.$/)
      }
    })
  })
})

/** A database whose statements on one table fail with an unexpected error, alone and in a transaction. */
function brokenFor(table: string, db: Database): Database {
  const breaking =
    (query: Queryable['query']): Queryable['query'] =>
    (statement) =>
      statement.text.includes(table) ? Promise.reject(new Error(`near "from": ${statement.text}`)) : query(statement)
  return {
    engine: db.engine,
    now: db.now,
    query: breaking((statement) => db.query(statement)),
    transaction: (work) =>
      db.transaction((tx) =>
        work({
          engine: tx.engine,
          query: breaking((statement) => tx.query(statement)),
          tryLock: (name) => tx.tryLock(name),
          tryQuery: (statement) => tx.tryQuery(statement),
          exec: (script) => tx.exec(script),
          announce: (topic) => tx.announce(topic),
        }),
      ),
    listen: (listener) => db.listen(listener),
    ping: () => db.ping(),
    close: () => db.close(),
  }
}
