import assert from 'node:assert/strict'
import { createHmac, randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { join, sql } from '../../src/db/sql.ts'
import type { Callback } from '../../src/jobs/callbacks/callback-schema.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestResponse } from '../support/http-client.ts'
import { readJobRows } from '../support/job-rows.ts'
import {
  GET_RUN,
  GET_STATE,
  type JobWorld,
  RUN_MS,
  type ShownJob,
  sharedJobWorld,
  startJobWorld,
  WEBHOOK_SECRET,
} from '../support/job-world.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { forEachService, forEachVariant } from '../support/service.ts'
import { sharedMigratedDatabase } from '../support/services.ts'

interface Page<Item> {
  data: Item[]
  has_more: boolean
  next_cursor: string | null
}

const MB = 1024 * 1024
const SECRET = { 'x-webhook-secret': WEBHOOK_SECRET }
const REFUSED = { status: 401, code: 'unauthorized', message: 'Invalid or missing callback credential' } as const
const invalid = (message: string | RegExp) => ({ status: 400, code: 'invalid_request', message }) as const

const strangerIds = () => ({ thread_id: randomUUID(), run_id: randomUUID() })

async function callbacksOf(world: JobWorld, jobId: string): Promise<Callback[]> {
  const { body } = await world.service.request<Page<Callback>>(
    'GET',
    `/v1/callbacks?limit=100&fields=body&job_id=${jobId}`,
    {
      token: world.admin,
    },
  )
  return body.data
}

async function countCallbacks(world: JobWorld): Promise<number> {
  const { body } = await world.service.request<Page<Callback>>('GET', '/v1/callbacks?limit=100', {
    token: world.admin,
  })
  return body.data.length
}

function tokenOf(world: JobWorld, jobId: string): string {
  return world.service.services.callbackAuthenticity.tokenFor(jobId) ?? ''
}

function signed(body: string | Buffer, { key = WEBHOOK_SECRET, atMs }: { key?: string; atMs: number }) {
  const timestamp = String(Math.floor(atMs / 1000))
  const digest = createHmac('sha256', key).update(`msg_1.${timestamp}.`).update(body).digest('base64')
  return { 'webhook-id': 'msg_1', 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${digest}` }
}

describe('callbacks', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)

    /** Runs that do not end by themselves, so that all callbacks come from the test. */
    const start = async (type = 'report') => {
      const world = await shared()
      const { id } = await world.start(type, { sub: `user-${randomUUID()}` })
      const job = await world.stored(id)
      assert.ok(job.run_id)
      const end = (fields: object = {}) => ({
        thread_id: job.thread_id,
        run_id: job.run_id,
        status: 'success',
        values: { report: { n: 42 } },
        ...fields,
      })
      return { world, job, end }
    }
    before(async () => (await shared()).runtime.setFaults({ zombie: true }))

    test('a callback settles its job, and each further one is a duplicate or stale', async () => {
      const { world, job, end } = await start()
      const first = await world.callback('report', end())
      assert.equal(first.status, 200)
      assert.deepEqual(first.body, { received: true, outcome: 'applied', job_id: job.id })
      const again = await world.callback('report', end())
      assert.deepEqual(again.body, { received: true, outcome: 'duplicate', job_id: job.id })
      const other = await world.callback('report', end({ status: 'error', error: 'kaboom' }))
      assert.deepEqual(other.body, { received: true, outcome: 'stale', job_id: job.id })
      const otherRun = await world.callback('report', end({ run_id: randomUUID(), metadata: { job_id: job.id } }))
      assert.deepEqual(otherRun.body, { received: true, outcome: 'stale', job_id: job.id })
      const stored = await world.stored(job.id)
      assert.equal(stored.status, 'completed')
      assert.deepEqual(stored.output, { n: 42 })
      assert.equal(stored.settled_by, 'callback')
      assert.deepEqual(
        (await callbacksOf(world, job.id)).map(({ outcome, status }) => [outcome, status]),
        [
          ['stale', 'success'],
          ['stale', 'error'],
          ['duplicate', 'success'],
          ['applied', 'success'],
        ],
        'newest first, and none is lost',
      )
    })

    test('a run that no job knows gets a job that only admins see, on both paths', async () => {
      const world = await shared()
      const cases: [type: string, path: string, values: object, output: unknown][] = [
        ['report', '/webhooks/jobs/report', { report: 7 }, 7],
        ['agent', '/webhooks/agent', { messages: [{ type: 'ai', content: 'Hi' }] }, null],
        ['agent', '/webhooks/jobs/agent', { messages: [{ type: 'ai', content: 'Hi' }] }, null],
      ]
      for (const [type, path, values, output] of cases) {
        const ids = strangerIds()
        const { body } = await world.callback(type, { ...ids, status: 'success', values }, { path })
        assert.equal(body.outcome, 'adopted')
        const again = await world.callback(type, { ...ids, status: 'success', values }, { path })
        assert.notEqual(again.body.outcome, 'adopted')
        assert.equal(again.body.job_id, body.job_id)
        await world.quiet()
        const job = await world.stored(body.job_id)
        assert.equal(job.created_by, null)
        assert.equal(job.type, type)
        assert.equal(job.thread_id, ids.thread_id)
        if (output !== null) assert.deepEqual([job.status, job.output], ['completed', output])
        const [callback] = await callbacksOf(world, job.id)
        assert.equal(callback?.path, path)
        const stranger = await world.request('GET', `/jobs/${body.job_id}`, 'a stranger')
        assertError(world.service, stranger, { status: 404, code: 'not_found' })
      }
    })

    test('a callback that proves no end is stored, and the runtime is asked at once', async () => {
      // These runs are still active and have no state yet.
      const payloads: [name: string, asked: { runs: number; states: number }, type: string, fields: object][] = [
        ['running', { runs: 1, states: 0 }, 'report', { status: 'running', values: null }],
        ['pending', { runs: 1, states: 0 }, 'report', { status: 'pending', values: null }],
        ['an unknown status', { runs: 1, states: 0 }, 'report', { status: 'thinking' }],
        ['no values', { runs: 1, states: 1 }, 'report', { values: undefined }],
        ['no output among the values', { runs: 1, states: 1 }, 'report', { values: { draft: 1 } }],
        ['a graph that may pause', { runs: 1, states: 1 }, 'pausing', {}],
        ['interrupted by another client', { runs: 1, states: 1 }, 'report', { status: 'interrupted', values: null }],
      ]
      for (const [name, asked, type, fields] of payloads) {
        const { world, job, end } = await start(type)
        const before = { runs: world.calls(GET_RUN), states: world.calls(GET_STATE) }
        const { body } = await world.callback(type, end(fields))
        assert.deepEqual(body, { received: true, outcome: 'deferred', job_id: job.id }, name)
        await world.quiet()
        const after = { runs: world.calls(GET_RUN), states: world.calls(GET_STATE) }
        const calls = { runs: after.runs - before.runs, states: after.states - before.states }
        assert.deepEqual(calls, asked, name)
        const [callback] = await callbacksOf(world, job.id)
        assert.equal(callback?.outcome, 'deferred')
        assert.match((await world.stored(job.id)).status, /^(?:processing|generating)$/, 'the runtime says it runs')
      }
    })

    test('a callback that comes before the answer of its own start finds its job by the metadata or the token', async () => {
      const world = await shared()
      for (const way of ['metadata', 'token'] as const) {
        world.runtime.setFaults({ start_failure: 1 })
        const { id, thread_id } = await world.start('report')
        world.runtime.setFaults({ start_failure: 0 })
        assert.equal((await world.stored(id)).run_id, null)
        const payload = { thread_id, run_id: randomUUID(), status: 'success', values: { report: 1 } }
        const { body } = await world.callback(
          'report',
          way === 'metadata' ? { ...payload, metadata: { job_id: id } } : payload,
          way === 'token' ? { query: { job_id: id, token: tokenOf(world, id) }, headers: {} } : {},
        )
        assert.deepEqual(body, { received: true, outcome: 'applied', job_id: id })
        assert.equal((await world.stored(id)).run_id, payload.run_id)
      }
    })

    test('every kind of credential is accepted, on both paths', async () => {
      const atMs = (await shared()).clock.now()
      const ways: [name: string, of: (jobId: string, raw: string, world: JobWorld) => object][] = [
        ['the token', (id, _raw, world) => ({ query: { job_id: id, token: tokenOf(world, id) }, headers: {} })],
        ['the secret in its header', () => ({ headers: SECRET })],
        ['the secret as a bearer', () => ({ headers: { authorization: `Bearer ${WEBHOOK_SECRET}` } })],
        ['a signature', (_id, raw) => ({ headers: signed(raw, { atMs }) })],
      ]
      for (const [name, proof] of ways) {
        for (const type of ['report', 'agent']) {
          const { world, job, end } = await start(type)
          const raw = JSON.stringify(end({ status: 'error', error: 'kaboom' }))
          const answer = await world.callback(type, null, { raw, ...proof(job.id, raw, world) })
          assert.equal(answer.status, 200, `${name}: ${answer.text}`)
          assert.equal(answer.body.outcome, 'applied')
          assert.equal(answer.headers['ratelimit-limit'], undefined, 'and it is not charged to any caller')
        }
      }
    })

    test('a wrong credential is a 401 without any effect, and is charged to its address', async () => {
      const { world, job, end } = await start()
      const { job: other } = await start()
      const atMs = world.clock.now()
      const raw = JSON.stringify(end())
      const before = [await countCallbacks(world), world.allCalls, await world.stored(job.id)] as const
      const wrong: [name: string, request: object][] = [
        ['nothing', { headers: {} }],
        ['another job’s token', { query: { job_id: job.id, token: tokenOf(world, other.id) }, headers: {} }],
        ['a token without its job', { query: { token: tokenOf(world, job.id) }, headers: {} }],
        ['an altered token', { query: { job_id: job.id, token: `${tokenOf(world, job.id)}x` }, headers: {} }],
        ['a token given twice', { path: `/webhooks/jobs/report?job_id=${job.id}&token=a&token=b`, headers: {} }],
        ['a wrong secret', { headers: { 'x-webhook-secret': 'wrong' } }],
        ['a token of the identity provider', { headers: { authorization: `Bearer ${world.admin}` } }],
        ['a signature of another key', { headers: signed(raw, { key: 'wrong', atMs }) }],
        ['an old signature', { headers: signed(raw, { atMs: atMs - 301_000 }) }],
        ['a signature over other bytes', { headers: signed(`${raw} `, { atMs }) }],
        ['a signature over no body', { raw: '', headers: signed('x', { atMs }) }],
      ]
      for (const [name, request] of wrong) {
        const answer = await world.callback('report', null, { raw, ...request })
        assertError(world.service, answer, REFUSED)
        assert.equal(answer.headers['www-authenticate'], 'Bearer', name)
        assert.ok(answer.headers['ratelimit-limit'], name)
      }
      await world.quiet()
      assert.deepEqual([await countCallbacks(world), world.allCalls, await world.stored(job.id)], before)
    })

    test('a callback is read as JSON, whatever its content type says', async () => {
      const types: (string | undefined)[] = [
        undefined,
        'text/plain;charset=UTF-8',
        'application/json',
        'application/json; charset=utf-8',
        'application/x-www-form-urlencoded',
        'application/octet-stream',
        'multipart/form-data; boundary=x',
        'nonsense',
      ]
      for (const type of types) {
        const { world, end } = await start()
        const headers = { ...SECRET, ...(type === undefined ? {} : { 'content-type': type }) }
        const answer = await world.callback('report', end(), { headers })
        assert.equal(answer.status, 200, `${type}: ${answer.text}`)
        assert.equal(answer.body.outcome, 'applied')
      }
    })

    test('a callback with a missing or malformed field is refused by the name of the field, and not stored', async () => {
      const { world, end } = await start()
      const before = await countCallbacks(world)
      const faults: [raw: string | Buffer, message: string][] = [
        ['', 'body is not valid JSON'],
        ['{', 'body is not valid JSON'],
        ['[]', 'body must be an object'],
        [Buffer.from([0x22, 0xff, 0x22]), 'body is not valid UTF-8'],
        [JSON.stringify(end({ run_id: undefined })), 'body must have the field "run_id"'],
        [JSON.stringify(end({ thread_id: null })), 'body must have the field "thread_id"'],
        [JSON.stringify(end({ status: undefined })), 'body must have the field "status"'],
        [JSON.stringify(end({ status: 7 })), 'body/status must be a short string'],
        [`{"values":${'['.repeat(101)}`, 'body must not be nested deeper than 100 levels'],
      ]
      for (const [raw, message] of faults) {
        assertError(world.service, await world.callback('report', null, { raw }), invalid(message))
      }
      assert.equal(await countCallbacks(world), before)
    })

    test('a callback that cannot be parsed still causes a check of the job that its token names', async () => {
      const { world, job } = await start()
      const before = world.calls(GET_RUN)
      const query = { job_id: job.id, token: tokenOf(world, job.id) }
      const answer = await world.callback('report', null, { raw: '{"run_id"', query, headers: {} })
      assertError(world.service, answer, invalid('body is not valid JSON'))
      await world.quiet()
      assert.equal(world.calls(GET_RUN), before + 1)
    })

    test('a callback of an unknown type is a 404, of another type than its job’s a 409, and neither has an effect', async () => {
      const { world, job, end } = await start()
      const unknown = await world.callback('no-such', end())
      assertError(world.service, unknown, { status: 404, code: 'not_found', message: 'No such job type' })
      for (const type of ['summary', 'agent']) {
        const answer = await world.callback(type, end())
        const message = 'The run belongs to a job of type report'
        assertError(world.service, answer, { status: 409, code: 'conflict', message })
      }
      assert.equal((await world.stored(job.id)).status, 'processing')
      assert.equal((await callbacksOf(world, job.id)).length, 0)
      assert.equal((await world.callback('report', end())).body.outcome, 'applied')
    })

    test('an error may be a text or an object, and the job has the same message', async () => {
      for (const error of ['kaboom', { error: 'ValueError', message: 'kaboom' }, '{"message":"kaboom"}']) {
        const { world, job, end } = await start()
        await world.callback('report', end({ status: 'error', error, values: { draft: 1 } }))
        const stored = await world.stored(job.id)
        assert.deepEqual(stored.error, { code: 'run_failed', message: 'kaboom' })
        assert.equal(stored.output, null)
      }
    })

    test('trace ids are kept from the top level, the metadata or the values, and a later one adds what was missing', async () => {
      const traces = { trace_id: 'trace-1', tracer_trace_id: 'tracer-1' }
      for (const fields of [traces, { metadata: traces }, { values: { report: 1, ...traces } }]) {
        const { world, job, end } = await start()
        await world.callback('report', end(fields))
        const { trace_id, tracer_trace_id } = await world.stored(job.id)
        assert.deepEqual({ trace_id, tracer_trace_id }, traces)
      }
      const { world, job, end } = await start()
      await world.callback('report', end({ trace_id: 'first' }))
      await world.callback('report', end({ trace_id: 'second', tracer_trace_id: 'late' }))
      const { trace_id, tracer_trace_id } = await world.stored(job.id)
      assert.deepEqual([trace_id, tracer_trace_id], ['first', 'late'])
    })

    test('admins see the whole callback except the service’s own token', async () => {
      const { world, job, end } = await start()
      const token = tokenOf(world, job.id)
      const webhook = `http://service.test/webhooks/jobs/report?job_id=${job.id}&token=${token}`
      const payload = end({ kwargs: { webhook, input: { n: 1 } }, created_at: '2026-01-01T00:00:00.000Z' })
      await world.callback('report', payload, { query: { job_id: job.id, token }, headers: {} })
      const answer = await world.service.request<Page<Callback>>('GET', `/v1/callbacks?fields=body&job_id=${job.id}`, {
        token: world.admin,
      })
      assert.ok(!answer.text.includes(token))
      const [callback] = answer.body.data
      assert.deepEqual(callback, {
        id: callback?.id,
        path: '/webhooks/jobs/report',
        type: 'report',
        job_id: job.id,
        thread_id: job.thread_id,
        run_id: job.run_id,
        status: 'success',
        outcome: 'applied',
        received_at: new Date(world.clock.now()).toISOString(),
        body: { ...payload, kwargs: { webhook: webhook.replace(token, '[redacted]'), input: { n: 1 } } },
      })
      assert.match(String(callback?.id), /^cbk_/)
      const rows = await readJobRows(world.db, job.id)
      assert.ok(!JSON.stringify(rows).includes(token))
    })

    test('a stored callback and the error of its job never show the token of the callback, however it is written', async () => {
      const { world, job, end } = await start()
      const token = tokenOf(world, job.id)
      const escaped = `\\u00${token.charCodeAt(0).toString(16)}${token.slice(1)}`
      const body = JSON.stringify(
        end({ status: 'error', error: `401 for ${token}`, values: { a: token, b: 'ESCAPED' } }),
      )
      const path = `/webhooks/jobs/report?job_id=${job.id}&token=${token}`
      const answer = await world.service.request('POST', path, { raw: body.replace('ESCAPED', escaped) })
      assert.equal(answer.status, 200, answer.text)
      const stored = await world.service.request<Page<Callback>>('GET', `/v1/callbacks?fields=body&job_id=${job.id}`, {
        token: world.admin,
      })
      const [callback] = stored.body.data
      assert.ok(callback)
      const { error, values } = callback.body as unknown as { error: string; values: object }
      assert.deepEqual([error, values], ['401 for [redacted]', { a: '[redacted]', b: '[redacted]' }])
      assert.equal((await world.get(job.id)).error?.message, '401 for [redacted]')
      assert.ok(!JSON.stringify(await readJobRows(world.db, job.id)).includes(token.slice(1)))
    })

    test('the list is for admins, newest first and page by page', async () => {
      const { world, job, end } = await start()
      for (let n = 0; n < 5; n++) await world.callback('report', end({ n }))
      const refused = await world.request('GET', '/v1/callbacks', 'ada')
      assertError(world.service, refused, { status: 403, code: 'forbidden' })
      const seen: number[] = []
      for (let cursor: string | null = ''; cursor !== null; ) {
        const path: string = `/v1/callbacks?fields=body&job_id=${job.id}&limit=2${cursor && `&cursor=${cursor}`}`
        const answer: TestResponse<Page<Callback>> = await world.service.request('GET', path, { token: world.admin })
        seen.push(...answer.body.data.map(({ body }) => (body as unknown as { n: number }).n))
        cursor = answer.body.next_cursor
      }
      assert.deepEqual(seen, [4, 3, 2, 1, 0])
      const plain = await world.service.request<Page<Callback>>('GET', `/v1/callbacks?job_id=${job.id}`, {
        token: world.admin,
      })
      const [newest] = plain.body.data
      assert.ok(!plain.text.includes('"body"'), 'a list has bodies only when they are asked for')
      const one = await world.service.request<Callback>('GET', `/v1/callbacks/${newest?.id}`, { token: world.admin })
      assert.deepEqual([one.status, (one.body.body as unknown as { n: number }).n], [200, 4])
      const none = await world.service.request('GET', '/v1/callbacks/cbk_none', { token: world.admin })
      assertError(world.service, none, { status: 404, code: 'not_found', message: 'No such callback' })
      const filtered = async (query: string) => {
        const path = `/v1/callbacks?job_id=${job.id}&${query}`
        return (await world.service.request<Page<Callback>>('GET', path, { token: world.admin })).body.data.length
      }
      const nowMs = world.clock.now()
      const at = (ms: number) => new Date(ms).toISOString()
      assert.deepEqual(
        [
          await filtered('outcome=applied'),
          await filtered('outcome=duplicate'),
          await filtered('type=report&outcome=stale'),
          await filtered('type=summary'),
          await filtered(`received_after=${at(nowMs - 1)}`),
          await filtered(`received_after=${at(nowMs)}`),
          await filtered(`received_before=${at(nowMs)}`),
          await filtered(`received_before=${at(nowMs + 1)}`),
        ],
        [1, 4, 0, 0, 5, 0, 0, 5],
      )
      const odd = await world.service.request('GET', '/v1/callbacks?outcome=lost', { token: world.admin })
      assertError(world.service, odd, { status: 400, code: 'invalid_request', message: /querystring\/outcome/ })
    })

    test('a stored callback can be replayed: a finished job stays finished, an unfinished one may end', async () => {
      const { world, job, end } = await start()
      await world.callback('report', end({ status: 'thinking' }))
      const [callback] = await callbacksOf(world, job.id)
      const replay = (id: unknown, token = world.admin) =>
        world.service.request<{ outcome: string; job_id: string }>('POST', `/v1/callbacks/${id}/replay`, { token })
      const again = await replay(callback?.id)
      assert.equal(again.status, 200, again.text)
      assert.deepEqual(again.body, { received: true, outcome: 'deferred', job_id: job.id })
      await world.callback('report', end())
      assert.equal((await replay(callback?.id)).body.outcome, 'duplicate')
      assert.equal((await callbacksOf(world, job.id)).length, 2, 'it is not stored a second time')
      assertError(world.service, await replay('cbk_none'), {
        status: 404,
        code: 'not_found',
        message: 'No such callback',
      })
      const refused = await replay(callback?.id, world.token('ada'))
      assertError(world.service, refused, { status: 403, code: 'forbidden' })
      await world.quiet()
      assert.equal((await readJobRows(world.db, job.id)).usage.length, 1)
    })

    test('numbers that JavaScript cannot represent and texts that no database can store are returned unchanged', async () => {
      const output =
        '{"big":12345678901234567890,"huge":1e400,"zero":-0,"fine":0.1000000000000000055,' +
        '"nul":"a\\u0000b","half":"\\ud800","team":{"constructor":"Ferrari"}}'
      const { world, job, end } = await start()
      const raw = JSON.stringify(end({ values: { report: '?' } })).replace('"?"', output)
      const answer = await world.callback('report', null, { raw })
      assert.equal(answer.body.outcome, 'applied', answer.text)
      const read = await world.service.request('GET', `/jobs/${job.id}`, { token: world.admin })
      assert.ok(read.text.includes(`"output":${output},`), read.text)
      const list = await world.service.request('GET', `/v1/callbacks?fields=body&job_id=${job.id}`, {
        token: world.admin,
      })
      assert.ok(list.text.includes(`"report":${output}`), list.text)
    })

    test('one bad callback among fifty concurrent ones does not affect the others', async () => {
      const good = await Promise.all(Array.from({ length: 50 }, () => start()))
      const world = await shared()
      const open = await start()
      const poison: [raw: string | Buffer, status: number][] = [
        [`{"values":${'{"a":'.repeat(200)}`, 400],
        ['['.repeat(100_000), 400],
        [Buffer.from([0x7b, 0xc3, 0x28, 0x7d]), 400],
        ['not json at all', 400],
        [JSON.stringify({ ...strangerIds(), status: 'a\u0000b' }), 400],
        [JSON.stringify({ ...strangerIds(), thread_id: '\ud800', status: 'success' }), 400],
        [JSON.stringify({ ...strangerIds(), status: 'success', values: { report: '\u0000\ud800\udfff\udc00' } }), 200],
        [JSON.stringify({ ...strangerIds(), status: 'error', error: '\u0000\ud800' }), 200],
        [JSON.stringify({ ...strangerIds(), status: 'error', error: { message: 'x'.repeat(100_000) } }), 200],
        [
          `{"thread_id":"${randomUUID()}","run_id":"${randomUUID()}","status":"success","__proto__":{"status":"x"},` +
            '"values":{"__proto__":{"report":1},"constructor":{"prototype":{"x":1}},"report":{"__proto__":1,"ok":1e999}}}',
          200,
        ],
        [JSON.stringify({ ...strangerIds(), status: 'success', values: { report: 'x'.repeat(3 * MB) } }), 200],
        [JSON.stringify(open.end({ values: { report: { '': { '\u0000': '\u0000' } } }, trace_id: '\u0000' })), 200],
      ]
      const [answers, poisoned] = await Promise.all([
        Promise.all(good.map(({ end }) => world.callback('report', end()))),
        Promise.all(poison.map(([raw]) => world.callback('report', null, { raw }))),
      ])
      for (const answer of answers) assert.deepEqual([answer.status, answer.body.outcome], [200, 'applied'])
      poisoned.forEach((answer, n) => {
        assert.equal(answer.status, poison[n]?.[1], `${String(poison[n]?.[0]).slice(0, 100)}: ${answer.text}`)
      })
      for (const { job } of good) assert.equal((await readJobRows(world.db, job.id)).job.status, 'completed')
      assert.equal(({} as { status?: string }).status, undefined)
      const proto = await world.service.request('GET', `/jobs/${poisoned[9]?.body.job_id}`, { token: world.admin })
      assert.ok(proto.text.includes('"output":{"__proto__":1,"ok":1e999},'), 'the output is text, kept as it came')
      assert.deepEqual((await world.get(open.job.id)).output, { '': { '\u0000': '\u0000' } })
    })

    if (under.engine.name === 'postgres') {
      test('a job whose row is locked elsewhere fails alone: its sender may retry, all other callbacks commit', async () => {
        const world = await shared()
        const runs = await Promise.all(Array.from({ length: 16 }, () => start()))
        const [locked, ...rest] = runs
        assert.ok(locked)
        await world.db.transaction(async (tx) => {
          await tx.query(sql`select id from jobs where id = ${locked.job.id} for update`)
          const answers = await Promise.all(runs.map(({ end }) => world.callback('report', end())))
          assert.ok(answers[0])
          assertError(world.service, answers[0], {
            status: 503,
            code: 'service_unavailable',
            message: 'The record is in use by another change',
          })
          assert.equal(answers[0].headers['retry-after'], '1')
          for (const answer of answers.slice(1)) assert.equal(answer.status, 200, answer.text)
        })
        for (const { job } of rest) assert.equal((await readJobRows(world.db, job.id)).job.status, 'completed')
        assert.equal((await world.callback('report', locked.end())).body.outcome, 'applied')
      })

      const closing: (() => Promise<void>)[] = []
      after(async () => {
        for (const close of closing) await close()
      })

      test('ten jobs whose rows are locked elsewhere fail alone: all other callbacks of their group commit', async () => {
        const { url, drop } = await sharedMigratedDatabase()
        // A locked row is given up after 0.3 s, not after 2 s.
        const impatient = new URL(url)
        impatient.searchParams.set('lock_timeout', '300')
        const db = await openPostgres({ url: impatient.href, connectTimeoutMs: PATIENCE_MS })
        closing.push(() => db.close(), drop)
        const world = await startJobWorld(under, { db })
        const jobs: ShownJob[] = []
        for (let n = 0; n < 16; n++) jobs.push(await world.stored((await world.start('report')).id))
        const ids = jobs.slice(0, 10).map(({ id }) => sql`${id}`)
        const callBack = ({ thread_id, run_id }: ShownJob) =>
          world.callback('report', { thread_id, run_id, status: 'success', values: { report: 1 } })
        await world.db.transaction(async (tx) => {
          await tx.query(sql`select id from jobs where id in (${join(ids, ', ')}) for update`)
          const answers = await Promise.all(jobs.map(callBack))
          assert.deepEqual(
            answers.map(({ status }) => status),
            jobs.map((_, n) => (n < 10 ? 503 : 200)),
          )
        })
        for (const job of jobs) assert.equal((await callBack(job)).status, 200)
      })
    }

    test('hundreds of concurrent callbacks each get their own answer, once', async () => {
      const jobs: ShownJob[] = []
      const world = await shared()
      const strangers = Array.from({ length: 200 }, strangerIds)
      const answers = await Promise.all(
        strangers.flatMap((ids, n) => {
          const payload = { ...ids, status: 'success', values: { report: n } }
          return [world.callback('report', payload), world.callback('report', payload)]
        }),
      )
      assert.ok(answers.every(({ status }) => status === 200))
      const adopted = answers.filter(({ body }) => body.outcome === 'adopted')
      assert.equal(adopted.length, 200)
      assert.equal(new Set(answers.map(({ body }) => body.job_id)).size, 200)
      for (const n of [0, 99, 199]) jobs.push(await world.get(String(answers[n * 2]?.body.job_id)))
      assert.deepEqual(
        jobs.map(({ output }) => output),
        [0, 99, 199],
      )
    })

    test('a callback may have ten megabytes, which are all returned, and not one byte more', async () => {
      const { world, job, end } = await start()
      const head = `POST /webhooks/jobs/report HTTP/1.1\r\nhost: x\r\nx-webhook-secret: ${WEBHOOK_SECRET}\r\n`
      const over = await world.service.exchange(`${head}connection: close\r\ncontent-length: ${10 * MB + 1}\r\n\r\n{`)
      assertError(world.service, over, { status: 413, code: 'payload_too_large' })
      // Half of it are signs that take more room once they are written down as JSON within JSON.
      const report = 'x"'.repeat(3 * MB) + 'ü'.repeat(MB / 4)
      const body = Buffer.from(JSON.stringify(end({ values: { report } })))
      const raw = Buffer.concat([body, Buffer.alloc(10 * MB - body.length, ' ')])
      const answer = await world.callback('report', null, { raw })
      assert.equal(answer.status, 200, answer.text)
      assert.ok((await world.get(job.id)).output === report)
      const [callback] = await callbacksOf(world, job.id)
      assert.ok((callback?.body as { values?: { report: string } } | undefined)?.values?.report === report)
    })
  })
})

describe('callbacks of a runtime that delivers them', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)
    after(async () => (await shared()).quiet())

    test('callbacks that arrive twice, late, out of order or in the hosted dialect end every job once', async () => {
      const world = await shared()
      for (const faults of [
        { duplicate_callbacks: 1 },
        { late_callbacks_ms: 100 },
        { delivery: 'hosted', content_type: 'application/json' },
      ] as const) {
        world.runtime.setFaults({ duplicate_callbacks: 0, late_callbacks_ms: 0, ...faults })
        const jobs = []
        for (const type of ['report', 'throwing', 'agent']) jobs.push(await world.start(type, { sub: randomUUID() }))
        await world.clock.advance(RUN_MS)
        await world.pass(100)
        for (const { id, type } of jobs) {
          const { job, usage, events } = await readJobRows(world.db, id)
          assert.equal(
            job.status,
            type === 'throwing' ? 'failed' : 'completed',
            `${type} with ${JSON.stringify(faults)}`,
          )
          assert.equal(job.settled_by, 'callback')
          assert.equal(usage.length, 1)
          assert.equal(events.filter(({ type }) => /completed|failed/.test(String(type))).length, 1)
        }
      }
      world.runtime.setFaults({ duplicate_callbacks: 0, late_callbacks_ms: 0, delivery: 'js' })
    })

    test('callbacks of a graph that may pause are deferred, and the job is still settled', async () => {
      const world = await shared()
      const { id } = await world.start('agent', { input: { messages: [{ role: 'user', content: 'Hi' }] } })
      await world.pass(RUN_MS)
      const job = await world.stored(id)
      assert.equal(job.status, 'completed')
      assert.equal(job.settled_by, 'callback')
      assert.equal((await callbacksOf(world, id))[0]?.outcome, 'deferred')
    })

    test('truncated callbacks are refused, and the job is checked instead', async () => {
      const world = await shared()
      world.runtime.setFaults({ corrupt_callbacks: 1 })
      const { id } = await world.start('report')
      await world.pass(RUN_MS)
      world.runtime.setFaults({ corrupt_callbacks: 0 })
      const job = await world.stored(id)
      assert.equal(job.status, 'completed')
      assert.equal(job.settled_by, 'callback', 'it was the callback that made us look')
      assert.deepEqual(await callbacksOf(world, id), [])
    })
  })
})

describe('callbacks and the settings around them', () => {
  forEachVariant((under) => {
    test('two callback secrets are valid during a rotation', async () => {
      const service = await under.start({ env: { WEBHOOK_SECRET: 'new-secret,old-secret' } })
      for (const [secret, status] of [
        ['new-secret', 200],
        ['old-secret', 200],
        ['older-secret', 401],
      ] as const) {
        const payload = { ...strangerIds(), status: 'error' }
        const answer = await service.request('POST', '/webhooks/agent', {
          body: payload,
          headers: { 'x-webhook-secret': secret },
        })
        assert.equal(answer.status, status)
      }
    })

    test('every callback is accepted if no secret is set, and readiness warns about it', async () => {
      const service = await under.start()
      const answer = await service.request('POST', '/webhooks/agent', { body: { ...strangerIds(), status: 'error' } })
      assert.equal(answer.status, 200)
      const ready = await service.request('GET', '/readyz')
      assert.match(ready.text, /no WEBHOOK_SECRET: anyone may post callbacks/)
    })

    test('a replay after a fix of the job types finds the missed output', async () => {
      const typesWith = (output_key: string) =>
        toJobTypes({ report: { assistant_id: 'x', output_key, may_pause: false } })
      const db = await under.engine.openDatabase()
      const broken = await under.start({ db, env: { WEBHOOK_SECRET }, jobTypes: typesWith('wrong') })
      const payload = { ...strangerIds(), status: 'thinking', values: { right: 7 } }
      const posted = await broken.request<{ job_id: string }>('POST', '/webhooks/jobs/report', {
        body: payload,
        headers: SECRET,
      })
      assert.equal(posted.status, 200, posted.text)
      const admin = broken.tokenFor({ scopes: ['admin:*'] })
      const { body } = await broken.request<Page<Callback>>('GET', '/v1/callbacks', { token: admin })
      const replay = `/v1/callbacks/${body.data[0]?.id}/replay`
      const gone = await under.start({ db, env: { WEBHOOK_SECRET } })
      const answer = await gone.request('POST', replay, { token: admin })
      const message = 'The job type report is not configured any more'
      assertError(gone, answer, { status: 409, code: 'conflict', message })
    })

    test('an unavailable database is a 503, which the sender retries', async () => {
      const service = await under.start({ env: { WEBHOOK_SECRET } })
      await service.db.close()
      const payload = { ...strangerIds(), status: 'error' }
      const answer = await service.request('POST', '/webhooks/agent', { body: payload, headers: SECRET })
      assertError(service, answer, { status: 503, code: 'service_unavailable' })
      assert.equal(answer.headers['retry-after'], '1')
    })
  })
})
