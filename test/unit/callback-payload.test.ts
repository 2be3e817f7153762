import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { ApiError } from '../../src/core/errors.ts'
import { parseCallback } from '../../src/runtime/callback-payload.ts'

const THREAD = '00000000-0000-4000-8000-000000000001'
const RUN = '00000000-0000-4000-8000-00000000000a'
const IDS = { thread_id: THREAD, run_id: RUN, status: 'success' }
const parse = (payload: unknown) => parseCallback(JSON.stringify(payload))

async function faultOf(raw: Buffer | string): Promise<string> {
  try {
    await parseCallback(raw)
  } catch (error) {
    assert.ok(error instanceof ApiError, String(error))
    assert.equal(error.code, 'invalid_request')
    return error.message
  }
  assert.fail('it was taken')
}

describe('a callback', () => {
  test('a callback is read in the dialect of the JS server', async () => {
    const payload = await parse({
      ...IDS,
      assistant_id: 'a',
      metadata: { graph_id: 'ok', job_id: 'job-1' },
      kwargs: { input: {}, webhook: 'http://x/hooks?token=s3cret' },
      webhook_sent_at: '2026-01-01T00:00:00.000Z',
      values: { report: { n: 42 } },
    })
    assert.equal(payload.threadId, THREAD)
    assert.equal(payload.runId, RUN)
    assert.equal(payload.status, 'success')
    assert.deepEqual(payload.values?.parse(), { report: { n: 42 } })
    assert.equal(payload.error, null)
    assert.equal(payload.jobId, 'job-1')
    assert.deepEqual(payload.traces, { traceId: null, tracerTraceId: null })
  })

  test('a callback without values, or with null, is not one with empty values', async () => {
    assert.equal((await parse(IDS)).values, null)
    assert.equal((await parse({ ...IDS, values: null })).values, null)
    assert.deepEqual((await parse({ ...IDS, values: {} })).values?.parse(), {})
    for (const values of ['text', 7, true, [1]]) assert.equal((await parse({ ...IDS, values })).values, null)
    const huge = `{"thread_id":"${THREAD}","run_id":"${RUN}","status":"s","values":1e400}`
    assert.equal((await parseCallback(huge)).values, null)
  })

  test('a callback gives the message of its error: a text, an object, or an object in a text', async () => {
    const errors: [error: unknown, words: string | null][] = [
      [undefined, null],
      [null, null],
      ['', null],
      ['kaboom: upstream 500', 'kaboom: upstream 500'],
      [{ error: 'ValueError', message: 'kaboom' }, 'kaboom'],
      [{ error: 'ValueError', message: '' }, 'ValueError'],
      [{ name: 'Error', message: 'kaboom' }, 'kaboom'],
      [{ error: 'ValueError' }, 'ValueError'],
      [{ name: 'Error' }, 'Error'],
      [JSON.stringify({ message: 'kaboom', name: 'Error' }), 'kaboom'],
      ['"quoted"', '"quoted"'],
      ['[1]', '[1]'],
      [{ code: 7 }, '{"code":7}'],
      [['a', 'b'], '["a","b"]'],
      [7, '7'],
      [true, 'true'],
      ['a\u0000b\ud800c', 'a\ufffdb\ufffdc'],
    ]
    for (const [error, words] of errors) {
      assert.equal((await parse({ ...IDS, status: 'error', error })).error, words, JSON.stringify(error))
    }
    const long = (await parse({ ...IDS, error: 'x'.repeat(10_000) })).error
    assert.equal(long?.length, 4_000)
    assert.match(long ?? '', /x…$/)
  })

  test('a callback gives the start of a very long error message, even if an escape is cut', async () => {
    const long = `x${'\n"é\u0001'.repeat(200_000)}`
    for (const pad of ['', 'a', 'ab', 'abc', 'abcd', 'abcde']) {
      const words = `${(pad + long).slice(0, 3_999)}…`
      for (const error of [pad + long, { name: 'Error', message: pad + long }]) {
        assert.equal((await parse({ ...IDS, error })).error, words)
      }
    }
    const nameless = await parse({ ...IDS, error: { code: 7, detail: long } })
    assert.ok(nameless.error?.startsWith('{"code":7,"detail":"x\\n'), nameless.error ?? '')
  })

  test('a callback gives its trace ids from the top level, else from its metadata, else from its values', async () => {
    const named = (n: number) => ({ trace_id: `trace-${n}`, tracer_trace_id: `tracer-${n}` })
    const from = async (payload: object) => (await parse({ ...IDS, ...payload })).traces
    const expected = (n: number) => ({ traceId: `trace-${n}`, tracerTraceId: `tracer-${n}` })
    assert.deepEqual(await from({ ...named(1), metadata: named(2), values: named(3) }), expected(1))
    assert.deepEqual(await from({ metadata: named(2), values: named(3) }), expected(2))
    assert.deepEqual(await from({ values: named(3) }), expected(3))
    assert.deepEqual(await from({ trace_id: 'a', values: { tracer_trace_id: 'b' } }), {
      traceId: 'a',
      tracerTraceId: 'b',
    })
    assert.deepEqual(await from({ trace_id: 7, tracer_trace_id: '', values: named(3) }), expected(3))
    const unfit = { trace_id: 'x'.repeat(256), tracer_trace_id: 'a\u0000b' }
    assert.deepEqual(await from(unfit), { traceId: null, tracerTraceId: null })
  })

  test('a callback names its job only with a text that can be an id', async () => {
    for (const job_id of [7, '', 'x'.repeat(256), 'a\u0000', '\ud800', null, {}]) {
      assert.equal((await parse({ ...IDS, metadata: { job_id } })).jobId, null)
    }
    for (const metadata of [null, 'text', 7, ['job_id']]) assert.equal((await parse({ ...IDS, metadata })).jobId, null)
  })

  test('a callback is stored unchanged, except that the service’s token is redacted in every place and spelling', async () => {
    const spelt = [
      'http://x/webhooks/agent?token=s3cret-_X',
      'http://x/webhooks/agent?job_id=job_1&token=s3cret-_X',
      'http://x/webhooks/agent?job_id=job_1&token=s3cret-_X&more=1',
      'http://x/webhooks/agent?token=s3cret-_X#part',
      'see http://x/webhooks/agent?token=s3cret-_X and http://x/webhooks/jobs/b?token=s3cret-_X',
      'http://proxy/?to=http%3A%2F%2Fx%2Fwebhooks%2Fagent%3Fjob_id%3D1%26token%3Ds3cret-_X',
    ]
    for (const webhook of spelt) {
      const plain = JSON.stringify({ ...IDS, kwargs: { webhook }, error: webhook, values: { [webhook]: webhook } })
      const escaped = plain.replaceAll('&', '\\u0026').replaceAll('/', '\\/')
      const fancy = plain.replaceAll('?', '\\u003f').replaceAll('=', '\\u003D').replaceAll('/', '\\u002F')
      for (const text of [plain, escaped, fancy]) {
        const { body } = await parseCallback(text)
        assert.doesNotMatch(body, /s3cret/, text)
        assert.match(body, /\[redacted\]/)
        assert.equal((JSON.parse(body) as typeof IDS).run_id, RUN, 'it is still JSON')
      }
    }
    const untouched = ` {"thread_id":"${THREAD}",\n "run_id":"${RUN}", "status":"s", "n":1.50, "token":"x", "a":"?tokens=1"} `
    assert.equal((await parseCallback(untouched)).body, untouched)
    const signed = JSON.stringify({ ...IDS, values: { file: 'https://files.example.com/r.pdf?id=1&token=SIGNED123' } })
    assert.equal((await parseCallback(signed)).body, signed, 'a link to another service is output')
  })

  test('a callback shows no token in its error or among its traces either', async () => {
    const url = 'http://x/webhooks/agent?job_id=1&token=s3cret'
    const { error } = await parse({ ...IDS, status: 'error', error: `POST ${url} failed` })
    assert.equal(error, 'POST http://x/webhooks/agent?job_id=1&token=[redacted] failed')
  })

  test('a callback with a byte order mark is still read', async () => {
    const text = `\ufeff${JSON.stringify(IDS)}`
    assert.equal((await parseCallback(Buffer.from(text))).runId, RUN)
  })

  test('an invalid body of a callback is refused by the name of its fault', async () => {
    const faults: [raw: Buffer | string, message: string][] = [
      ['', 'body is not valid JSON'],
      ['{', 'body is not valid JSON'],
      ['run_id=1', 'body is not valid JSON'],
      ['"text"', 'body must be an object'],
      ['[]', 'body must be an object'],
      ['null', 'body must be an object'],
      ['7', 'body must be an object'],
      ['12345678901234567890', 'body must be an object'],
      [Buffer.from([0x7b, 0xff, 0x7d]), 'body is not valid UTF-8'],
      ['{}', 'body must have the field "thread_id"'],
      [JSON.stringify({ thread_id: THREAD }), 'body must have the field "run_id"'],
      [JSON.stringify({ thread_id: THREAD, run_id: RUN }), 'body must have the field "status"'],
      [JSON.stringify({ ...IDS, thread_id: null }), 'body must have the field "thread_id"'],
      [JSON.stringify({ ...IDS, run_id: 7 }), 'body/run_id must be a UUID'],
      [JSON.stringify({ ...IDS, run_id: '' }), 'body/run_id must be a UUID'],
      [JSON.stringify({ ...IDS, status: 7 }), 'body/status must be a short string'],
      [JSON.stringify({ ...IDS, thread_id: `${THREAD}\u0000` }), 'body/thread_id must be a UUID'],
      [JSON.stringify({ ...IDS, run_id: '..' }), 'body/run_id must be a UUID'],
      [JSON.stringify({ ...IDS, status: 'x'.repeat(256) }), 'body/status must be a short string'],
      [`{"a":${'['.repeat(100)}`, 'body must not be nested deeper than 100 levels'],
    ]
    for (const [raw, message] of faults) assert.equal(await faultOf(raw), message, String(raw).slice(0, 80))
  })
})
