import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { WHOLE } from '../../src/core/json/wanted.ts'
import { NO_SPAN } from '../../src/core/tracing.ts'
import { RuntimeUnavailable } from '../../src/runtime/check-errors.ts'
import { UnacceptableAnswer } from '../../src/runtime/read-answers.ts'
import { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import { ManualClock } from '../support/manual-clock.ts'

/** A client that gets this answer for every request; one failure opens the circuit breaker. */
function clientOf(answer: (init: RequestInit | undefined) => Response) {
  const clock = new ManualClock()
  const breaker = new Breaker({ clock, threshold: 1, openMs: 1_000, maxOpenMs: 1_000 })
  const fetch = async (_url: unknown, init?: RequestInit) => answer(init)
  const client = new RuntimeClient({
    url: 'http://runtime.test',
    apiKey: null,
    timeoutMs: 1_000,
    fetch,
    clock,
    breaker,
  })
  return { client, breaker }
}

const THREAD = '9a4bcb3e-4d5c-4b9e-8f00-000000000001'
const RUN = '1efcf3a0-0000-6000-8000-000000000001'
const JSON_TYPE = { 'content-type': 'application/json' }
const TOO_MANY_BYTES = 32 * 1024 * 1024 + 1

test('a start may take 60 s, but after 3 s it counts as a failure for the circuit breaker, once', async () => {
  const clock = new ManualClock()
  const breaker = new Breaker({ clock, threshold: 2, openMs: 2_000, maxOpenMs: 2_000 })
  const answers: ((answer: Response) => void)[] = []
  const fetch = (_url: unknown, init?: RequestInit) =>
    new Promise<Response>((resolve, reject) => {
      answers.push(resolve)
      init?.signal?.addEventListener('abort', () => reject(init.signal?.reason))
    })
  const client = new RuntimeClient({
    url: 'http://runtime.test',
    apiKey: null,
    timeoutMs: 3_000,
    fetch,
    clock,
    breaker,
  })
  const start = () =>
    client.startRun({
      threadId: THREAD,
      assistantId: 'agent',
      payload: { input: new JsonText('{}') },
      webhook: null,
      metadata: {},
    })
  const [answered, hanging] = [start(), start()]
  await clock.advance(2_999)
  assert.equal(breaker.state, 'closed')
  await clock.advance(1)
  assert.equal(breaker.state, 'open', 'both are slow')
  await clock.advance(2_000)
  assert.equal(breaker.state, 'probing', 'the pause is over')
  answers[0]?.(Response.json({ run_id: RUN, thread_id: THREAD, status: 'pending' }))
  assert.ok('started' in (await answered))
  assert.equal(breaker.state, 'probing', 'the late answer is used, and does not count as a success')
  const failed = assert.rejects(hanging, RuntimeUnavailable)
  await clock.advance(55_000)
  await failed
  assert.equal(breaker.state, 'probing', 'the timeout does not count a second time')
})

test('an answer that is too large or not UTF-8 cannot be stored, and does not open the circuit breaker', async () => {
  for (const body of [Buffer.alloc(TOO_MANY_BYTES, ' '), Buffer.from([0xff]), Buffer.from([0x22, 0xc3])]) {
    const { client, breaker } = clientOf(() => new Response(body, { headers: JSON_TYPE }))
    await assert.rejects(client.fetchState(THREAD, RUN, WHOLE), UnacceptableAnswer)
    assert.equal(breaker.state, 'closed')
  }
})

test('an answer that is not UTF-8 proves nothing if it is a failure, a web page or a gateway’s text', async () => {
  const body = Buffer.from([0xff])
  for (const init of [
    { status: 502, headers: JSON_TYPE },
    { headers: { 'content-type': 'text/html' } },
    { headers: { 'content-type': 'text/plain; charset=iso-8859-1' } },
  ]) {
    const { client, breaker } = clientOf(() => new Response(body, init))
    await assert.rejects(client.fetchState(THREAD, RUN, WHOLE), RuntimeUnavailable)
    assert.equal(breaker.state, 'open')
  }
})

test('an answer about the run itself has no output, so it is never reported as an unacceptable output', async () => {
  const { client } = clientOf(() => new Response(Buffer.from([0xff]), { headers: JSON_TYPE }))
  await assert.rejects(client.fetchRun(THREAD, RUN), RuntimeUnavailable)
  await assert.rejects(client.listRuns(THREAD), RuntimeUnavailable)
})

test('a search of threads asks for their ids and metadata only: their values may be large', async () => {
  let asked: unknown
  const { client } = clientOf((init) => {
    asked = JSON.parse(String(init?.body))
    return Response.json([{ thread_id: THREAD, metadata: { job_id: 'job-1' } }])
  })
  const found = await client.searchThreads({ owner: 'ada' }, { limit: 20, offset: 40 })
  assert.deepEqual(found, [{ threadId: THREAD, metadata: { job_id: 'job-1' } }])
  assert.deepEqual(asked, { metadata: { owner: 'ada' }, limit: 20, offset: 40, select: ['thread_id', 'metadata'] })
})

test('a call within a trace hands its span on to the runtime, and one outside sends no header', async () => {
  const traceparent = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`
  const names: string[] = []
  const headers: (string | null)[][] = []
  const answers = [JSON.stringify({ run_id: RUN, thread_id: THREAD, status: 'pending' }), '{}']
  let current: string | null = traceparent
  const client = new RuntimeClient({
    url: 'http://runtime.test',
    apiKey: null,
    timeoutMs: 1_000,
    clock: new ManualClock(),
    breaker: new Breaker({ clock: new ManualClock(), threshold: 1, openMs: 1_000, maxOpenMs: 1_000 }),
    fetch: async (_url, init) => {
      const sent = new Headers(init?.headers)
      headers.push([sent.get('traceparent'), sent.get('tracestate')])
      return new Response(answers.shift(), { headers: JSON_TYPE })
    },
    tracer: {
      get current() {
        return current
      },
      start: (name) => {
        names.push(name)
        return { ...NO_SPAN, context: `${traceparent} congo=t61` }
      },
      within: (_span, work) => work(),
    },
  })
  await client.fetchRun(THREAD, RUN)
  current = null
  await client.ping()
  assert.deepEqual(names, ['GET /threads/{id}/runs/{id}'])
  assert.deepEqual(headers, [
    [traceparent, 'congo=t61'],
    [null, null],
  ])
})
