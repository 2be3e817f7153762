import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { type ClientOptions, createClient } from '../../client/src/client.ts'
import { ApiError, NotProjectApi } from '../../client/src/errors.ts'
import { systemClock } from '../../client/src/http/clock.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { QuickClock, type ScriptedAnswer, startScriptedServer } from '../support/scripted-server.ts'
import { until } from '../support/until.ts'

const JOB = { id: 'job_1', type: 'report', status: 'processing', interrupts: null }
const OK = { status: 202, body: JOB }
const PAGE = { status: 200, body: { data: [JOB], has_more: false, next_cursor: null } }

/** An error in the envelope of variant B. */
function refusal(status: number, code: string, headers: Record<string, string> = {}): ScriptedAnswer {
  return { status, headers, body: { error: { code, message: `It is ${code}`, requestId: 'req_1' } } }
}

/** A client without randomness, whose pauses end at once. */
async function clientOf(script: ScriptedAnswer[], options: Partial<ClientOptions> = {}) {
  const server = await startScriptedServer(...script)
  const clock = new QuickClock()
  const api = createClient({ url: server.url, token: 'a-token', clock, random: () => 1, ...options })
  return { api, server, clock }
}

const hangs: ScriptedAnswer = () => {}
const breaks: ScriptedAnswer = (response) => response.destroy()

describe('errors', () => {
  const cases = {
    A: { detail: { code: 'not_found', message: 'No such job' } },
    B: { error: { code: 'not_found', message: 'No such job', requestId: 'req_9' } },
  }
  for (const [variant, body] of Object.entries(cases)) {
    test(`the envelope of variant ${variant} becomes an ApiError`, async () => {
      const { api, server } = await clientOf([{ status: 404, headers: { 'x-request-id': 'req_9' }, body }])
      const error = await api.jobs.get('job_1').catch((caught) => caught)
      assert.ok(error instanceof ApiError)
      const { code, status, message, requestId, retryAfter } = error
      assert.deepEqual(
        { code, status, message, requestId, retryAfter },
        { code: 'not_found', status: 404, message: 'No such job', requestId: 'req_9', retryAfter: null },
      )
      assert.equal(server.requests.length, 1)
    })
  }

  const foreign: Record<string, ScriptedAnswer> = {
    'a page of HTML': { status: 200, body: '<h1>Welcome</h1>' },
    'an unknown path in HTML': { status: 404, body: '<h1>Not found</h1>' },
    'JSON that is no job': { status: 200, body: { hello: 'world' } },
    'JSON that is no object': { status: 200, body: 7 },
    'an error of another shape': { status: 400, body: { message: 'bad' } },
  }
  for (const [what, answer] of Object.entries(foreign)) {
    test(`an answer with ${what} fails at once as an answer of another server`, async () => {
      const { api, server } = await clientOf([answer])
      await assert.rejects(api.jobs.start('report', {}), (error) => {
        assert.ok(error instanceof NotProjectApi, String(error))
        assert.match(error.message, /does not answer as Project API/)
        return true
      })
      assert.equal(server.requests.length, 1)
    })
  }

  test('a page that never ends fails at once: its body is not read', async () => {
    const endless: ScriptedAnswer = (response) => {
      response.writeHead(200, { 'content-type': 'text/html' })
      response.write('<h1>Welcome')
    }
    const { api, server } = await clientOf([endless])
    await assert.rejects(api.jobs.get('job_1'), NotProjectApi)
    assert.equal(server.requests.length, 1)
  })

  test('lists and streams recognize another server too', async () => {
    const { api } = await clientOf([{ status: 200, body: { items: [] } }])
    await assert.rejects(api.jobs.list().page(), NotProjectApi)
    await assert.rejects(api.events().next(), NotProjectApi)
    await assert.rejects(api.jobs.handle('job_1').live().next(), NotProjectApi)
  })

  test('a stream of another server is recognized at its first event', async () => {
    const foreignEvent: ScriptedAnswer = (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write('data: {"price":7}\n\n')
    }
    const { api, server } = await clientOf([foreignEvent])
    await assert.rejects(api.events().next(), NotProjectApi)
    assert.equal(server.requests.length, 1)
  })

  test('creating a client with a bad address throws', () => {
    assert.throws(() => createClient({ url: 'api.example.com' }), TypeError)
    assert.throws(() => createClient({ url: 'ftp://example.com' }), /must begin with http/)
  })
})

describe('retries', () => {
  test('the client retries after a rate limit at Retry-After, never earlier', async () => {
    const { api, server, clock } = await clientOf([refusal(429, 'rate_limit_exceeded', { 'retry-after': '7' }), OK])
    assert.equal((await api.jobs.start('report', {})).id, 'job_1')
    assert.equal(server.requests.length, 2)
    assert.deepEqual(clock.pauses, [8_000])
  })

  test('a spent usage limit is not retried', async () => {
    const { api, server } = await clientOf([refusal(429, 'usage_limit_exceeded', { 'retry-after': '1' })])
    const error = await api.jobs.start('report', {}).catch((caught) => caught)
    assert.equal(error.code, 'usage_limit_exceeded')
    assert.equal(error.retryAfter, 1)
    assert.equal(server.requests.length, 1)
  })

  test('the limits of a user are set with one PUT, which is repeated after a lost answer', async () => {
    const limits = { runs: 5, tokens: null }
    const { api, server } = await clientOf([breaks, { status: 200, body: limits }])
    assert.deepEqual(await api.usage.setLimits('user/1', limits), limits)
    assert.deepEqual(
      server.requests.map(({ method, path, body }) => [method, path, body]),
      Array(2).fill(['PUT', '/v1/users/user%2F1/limits', JSON.stringify(limits)]),
    )
  })

  test('all attempts of one creation have the same Idempotency-Key; the next creation has a new one', async () => {
    const { api, server } = await clientOf([
      refusal(503, 'service_unavailable', { 'retry-after': '1' }),
      breaks,
      refusal(408, 'request_timeout'),
      refusal(409, 'conflict', { 'retry-after': '1' }),
      OK,
    ])
    await api.jobs.start('report', { n: 1 })
    await api.jobs.start('report', { n: 1 })
    const keys = server.requests.map(({ headers }) => headers['idempotency-key'])
    assert.equal(keys.length, 6)
    assert.equal(new Set(keys.slice(0, 5)).size, 1)
    assert.notEqual(keys[5], keys[0])
    assert.match(String(keys[0]), /^[0-9a-f]{32}$/)
  })

  test('an Idempotency-Key of the app is sent unchanged', async () => {
    const { api, server } = await clientOf([OK])
    await api.jobs.start('report', {}, { idempotencyKey: 'order-7' })
    assert.equal(server.requests[0]?.headers['idempotency-key'], 'order-7')
  })

  test('an Idempotency-Key that the service would refuse is an error before any request', async () => {
    const { api, server } = await clientOf([OK])
    for (const idempotencyKey of ['Łukasz', 'order 7', '', 'x'.repeat(256)]) {
      const refused = { name: 'TypeError', message: /idempotencyKey must be 1 to 255 visible ASCII characters/ }
      await assert.rejects(api.jobs.start('report', {}, { idempotencyKey }), refused)
      await assert.rejects(api.jobs.handle('job_1').retry({ idempotencyKey }), refused)
      await assert.rejects(api.projects.create({ name: 'Plan' }, { idempotencyKey }), refused)
    }
    assert.equal(server.requests.length, 0)
  })

  test('a conflict without Retry-After is not retried', async () => {
    const { api, server } = await clientOf([refusal(409, 'conflict')])
    await assert.rejects(api.jobs.start('report', {}), { code: 'conflict' })
    assert.equal(server.requests.length, 1)
  })

  test('the number of attempts is bounded, and the last error is thrown', async () => {
    const { api, server, clock } = await clientOf([refusal(503, 'service_unavailable')])
    await assert.rejects(api.jobs.counts(), { code: 'service_unavailable', status: 503 })
    assert.equal(server.requests.length, 5)
    assert.deepEqual(clock.pauses, [500, 1_000, 2_000, 4_000])
  })

  test('if Retry-After is longer than a minute, the client throws at once', async () => {
    const { api, server } = await clientOf([refusal(503, 'service_unavailable', { 'retry-after': '600' })])
    await assert.rejects(api.jobs.counts(), { code: 'service_unavailable', retryAfter: 600 })
    assert.equal(server.requests.length, 1)
  })

  test("a proxy's error page counts as unavailable", async () => {
    const { api, server } = await clientOf([{ status: 502, body: '<h1>Bad gateway</h1>' }, PAGE])
    assert.equal((await api.jobs.list().page()).data.length, 1)
    assert.equal(server.requests.length, 2)
  })

  test('a bad request is not retried', async () => {
    const { api, server } = await clientOf([refusal(400, 'invalid_request')])
    await assert.rejects(api.jobs.start('report', {}), { code: 'invalid_request', status: 400 })
    assert.equal(server.requests.length, 1)
  })

  test('a body that breaks off is retried as a network error', async () => {
    const half: ScriptedAnswer = (response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' })
      response.write('{"counts":', () => response.destroy())
    }
    const { api, server } = await clientOf([half, { status: 200, body: { counts: {}, at_least: [] } }])
    assert.deepEqual(await api.jobs.counts(), { counts: {}, at_least: [] })
    assert.equal(server.requests.length, 2)
  })

  test('a deletion whose first answer was lost counts as done', async () => {
    const { api, server } = await clientOf([breaks, refusal(404, 'not_found')])
    await api.jobs.handle('job_1').delete()
    assert.equal(server.requests.length, 2)
  })

  test('a change whose first answer was lost counts as done, although the change itself has set a new version', async () => {
    const mine = { id: 'p1', name: 'Mine', note: 'kept' }
    const lost = [breaks, refusal(412, 'precondition_failed')]
    const done = await clientOf([...lost, { status: 200, headers: { etag: '"2"' }, body: mine }])
    const project = await done.api.projects.update('p1', { name: 'Mine' }, { ifMatch: '"1"' })
    assert.deepEqual([project.name, project.etag], ['Mine', '"2"'])
    const other = await clientOf([...lost, { status: 200, body: { ...mine, name: 'Of another user' } }])
    const refused = { code: 'precondition_failed' }
    await assert.rejects(other.api.projects.update('p1', { name: 'Mine' }, { ifMatch: '"1"' }), refused)
    const first = await clientOf([refusal(412, 'precondition_failed')])
    await assert.rejects(first.api.projects.update('p1', { name: 'Mine' }, { ifMatch: '"1"' }), refused)
    assert.equal(first.server.requests.length, 1)
  })

  test('if a proxy removes the ETag, a record can be read, but its version is an error', async () => {
    const { api } = await clientOf([{ status: 200, body: { id: 'p1', name: 'Plan' } }])
    const project = await api.projects.get('p1')
    assert.deepEqual(project, { id: 'p1', name: 'Plan' })
    assert.throws(() => project.etag, /has no ETag/)
  })

  test('a server that never answers is an error after the last attempt, not a hang', async () => {
    const clock = new ManualClock()
    const { api } = await clientOf([hangs], { clock, retries: 0 })
    const failed = assert.rejects(api.jobs.counts(), { code: 'request_timeout', status: 0 })
    await clock.untilSleeping()
    await clock.advance(20_000)
    await failed
  })

  test('a closed port is a network error after the last attempt', async () => {
    const { api, server } = await clientOf([OK])
    await server.close()
    await assert.rejects(api.jobs.counts(), { code: 'network_error', status: 0 })
    await assert.rejects(api.events().next(), { code: 'network_error' })
  })
})

describe('answers', () => {
  const paused = (run_id: string, interrupts: object[] = []) => ({
    status: 200,
    body: { ...JOB, status: 'awaiting_input', run_id, interrupts },
  })
  const resumes = (requests: { method: string; path: string }[]) =>
    requests.filter(({ method, path }) => method === 'POST' && path === '/jobs/job_1/resume').length

  test('a lost answer is not repeated at the next breakpoint', async () => {
    const { api, server } = await clientOf([paused('run_1'), breaks, paused('run_2')])
    const job = await api.jobs.get('job_1')
    assert.equal((await job.resume()).run_id, 'run_2')
    assert.equal(resumes(server.requests), 1)
  })

  test('a lost answer is sent again while the job still waits at the same pause', async () => {
    const { api, server } = await clientOf([paused('run_1'), breaks, paused('run_1'), OK])
    assert.equal((await (await api.jobs.get('job_1')).resume()).status, 'processing')
    assert.equal(resumes(server.requests), 2)
  })

  test('if the next question is already open, the answer counts as given', async () => {
    const [first, second] = [
      { id: 'q1', value: 'First?' },
      { id: 'q2', value: 'Second?' },
    ]
    for (const late of [refusal(400, 'invalid_request'), refusal(409, 'conflict')]) {
      const { api } = await clientOf([paused('run_1', [first]), late, paused('run_2', [second])])
      const job = await (await api.jobs.get('job_1')).answer('yes')
      assert.deepEqual(job.interrupts, [second])
    }
  })

  test('no value answers a question with null, also by the id of the question', async () => {
    const { api, server } = await clientOf([paused('run_1', [{ id: 'q1', value: 'First?' }]), OK])
    await (await api.jobs.get('job_1')).answer(undefined)
    assert.equal(server.requests.at(-1)?.body, '{"answers":{"q1":null}}')
  })

  test('an answer that does not fit the open question is an error', async () => {
    const asked = paused('run_1', [{ id: 'q1', value: 'First?' }])
    const { api } = await clientOf([asked, refusal(400, 'invalid_request'), asked])
    await assert.rejects((await api.jobs.get('job_1')).answer(7), { code: 'invalid_request' })
  })
})

describe('a result', () => {
  const failing = Array.from({ length: 12 }, () => breaks)
  const completed = { status: 200, body: { ...JOB, status: 'completed', output: 'done' } }
  /** The event stream is down too. */
  const polling = { streaming: false }

  test('a result is awaited through an outage of any length, if the job was read before', async () => {
    const faults = [...failing, refusal(500, 'internal_error'), refusal(429, 'rate_limit_exceeded')]
    const { api } = await clientOf([OK, ...faults, completed], polling)
    assert.equal(await (await api.jobs.start('report', {})).result(), 'done')
  })

  test('the result of a job that was never read is an error after the last attempt', async () => {
    const { api, server } = await clientOf([...failing, completed], polling)
    await assert.rejects(api.jobs.handle('job_1').result(), { code: 'network_error' })
    assert.equal(server.requests.length, 5)
  })

  test("a result is awaited through a proxy's pages, if the job was read before", async () => {
    const pages = [
      { status: 404, body: '<h1>Not found</h1>' },
      { status: 200, body: '<h1>We are back soon</h1>' },
    ]
    const { api } = await clientOf([OK, ...pages, completed], polling)
    assert.equal(await (await api.jobs.start('report', {})).result(), 'done')
  })

  test('a result is awaited while the token provider throws, but not after the service refused its token', async () => {
    const tokens = ['good', null, 'good', 'bad', 'bad', 'bad']
    const token = () => {
      const next = tokens.shift()
      if (next) return next
      throw new Error('offline')
    }
    const answers = [OK, OK, refusal(401, 'unauthorized')]
    const { api, server } = await clientOf(answers, { ...polling, token })
    await assert.rejects((await api.jobs.start('report', {})).result(), { code: 'unauthorized' })
    assert.deepEqual(
      server.requests.map(({ headers }) => headers.authorization),
      ['Bearer good', 'Bearer good', 'Bearer bad'],
    )
    assert.deepEqual(tokens, [])
  })

  test('the result of a deleted job is an error at once', async () => {
    const { api } = await clientOf([OK, refusal(404, 'not_found')], polling)
    await assert.rejects((await api.jobs.start('report', {})).result(), { code: 'not_found' })
  })

  test('a result is awaited only until the timeout', async () => {
    const clock = new ManualClock()
    const { api } = await clientOf([OK], { ...polling, clock })
    const late = assert.rejects((await api.jobs.start('report', {})).result({ timeoutMs: 7_000 }), {
      code: 'request_timeout',
      message: 'The job has not ended within 7 s',
    })
    await clock.untilSleeping()
    await clock.advance(7_000)
    await late
  })
})

describe('the clock of the system', () => {
  const MAX_TIMER_MS = 2 ** 31 - 1

  test('a sleep longer than the longest timer lasts until its end', async (context) => {
    context.mock.timers.enable({ apis: ['setTimeout'] })
    let isOver = false
    const sleeping = systemClock.sleep(2 * MAX_TIMER_MS + 5).then(() => {
      isOver = true
    })
    for (const ms of [MAX_TIMER_MS, MAX_TIMER_MS, 4]) {
      context.mock.timers.tick(ms)
      await new Promise(setImmediate)
      assert.equal(isOver, false)
    }
    context.mock.timers.tick(1)
    await sleeping
  })

  test('an infinite sleep ends only when its signal aborts', async (context) => {
    context.mock.timers.enable({ apis: ['setTimeout'] })
    const stop = new AbortController()
    let isOver = false
    const sleeping = systemClock.sleep(Number.POSITIVE_INFINITY, stop.signal).then(() => {
      isOver = true
    })
    for (let n = 0; n < 3; n++) {
      context.mock.timers.tick(MAX_TIMER_MS)
      await new Promise(setImmediate)
      assert.equal(isOver, false)
    }
    stop.abort()
    await sleeping
  })
})

describe('on React Native', () => {
  /** The signals of React Native have no reason. */
  class BareAbortController {
    readonly signal = Object.assign(new EventTarget(), { aborted: false })
    abort(): void {
      if (this.signal.aborted) return
      this.signal.aborted = true
      this.signal.dispatchEvent(new Event('abort'))
    }
  }
  const missing = () => assert.fail('React Native has no complete URL')

  /** Replaces the platform's classes by those of React Native during the run. */
  async function asReactNative(run: (fetch: typeof globalThis.fetch) => Promise<void>): Promise<void> {
    const { AbortController, URL, URLSearchParams, fetch } = globalThis
    // React Native's `fetch` accepts these signals; Node's accepts only its own.
    const native: typeof fetch = (input, { signal: _, ...init } = {}) => {
      Object.assign(globalThis, { AbortController, URL, URLSearchParams })
      const answering = fetch(input, init)
      Object.assign(globalThis, bare)
      return answering
    }
    const bare = { AbortController: BareAbortController, URL: missing, URLSearchParams: missing }
    Object.assign(globalThis, bare)
    try {
      await run(native)
    } finally {
      Object.assign(globalThis, { AbortController, URL, URLSearchParams })
    }
  }

  test('requests on React Native work, with retries, timeouts and aborts', async () => {
    const server = await startScriptedServer(refusal(503, 'service_unavailable'), PAGE, hangs)
    const clock = new ManualClock()
    await asReactNative(async (native) => {
      const api = createClient({ url: `${server.url}/`, clock, fetch: native, streaming: false, retries: 1 })
      const listing = api.jobs.list({ limit: 5, trace_id: 'a b&c' }).page()
      while (server.requests.length < 1 || clock.nextWakeMs > 1_000) await new Promise(setImmediate)
      await clock.advance(1_000)
      assert.equal((await listing).data.length, 1)
      assert.equal(server.requests[1]?.path, '/jobs?limit=5&trace_id=a%20b%26c')
      const stop = new AbortController()
      const stopped = assert.rejects(api.jobs.counts({ signal: stop.signal }), { name: 'AbortError' })
      stop.abort()
      await stopped
      const limited = createClient({ url: server.url, clock, fetch: native, retries: 0 })
      const late = assert.rejects(limited.jobs.counts(), { code: 'request_timeout' })
      await clock.untilSleeping()
      await clock.advance(20_000)
      await late
    })
  })
})

describe('abort', () => {
  test('a signal ends a request, which rejects with the reason of the signal', async () => {
    const { api } = await clientOf([hangs])
    const stop = new AbortController()
    const reason = new Error('The user left')
    const counted = api.jobs.counts({ signal: stop.signal })
    stop.abort(reason)
    await assert.rejects(counted, reason)
    await assert.rejects(api.jobs.counts({ signal: stop.signal }), reason)
  })

  test('a signal ends the pause before a retry', async () => {
    const clock = new ManualClock()
    const { api, server } = await clientOf([refusal(503, 'service_unavailable', { 'retry-after': '30' })], { clock })
    const stop = new AbortController()
    const counted = api.jobs.counts({ signal: stop.signal })
    counted.catch(() => {})
    while (server.requests.length === 0) await new Promise(setImmediate)
    stop.abort()
    await assert.rejects(counted, { name: 'AbortError' })
    assert.equal(server.requests.length, 1)
    assert.equal(clock.sleeping, 0)
  })
})

describe('credentials', () => {
  /** Accepts only the newest token. */
  const gate =
    (good: () => string): ScriptedAnswer =>
    (response, { headers }) => {
      const isGood = headers.authorization === `Bearer ${good()}`
      response.writeHead(isGood ? 200 : 401, { 'content-type': 'application/json' })
      response.end(JSON.stringify(isGood ? PAGE.body : { detail: { code: 'unauthorized', message: 'Expired' } }))
    }

  test('a refused token is refreshed once, and requests that fail together share the refresh', async () => {
    const asked: boolean[] = []
    let token = 'old'
    const { api, server } = await clientOf([gate(() => 'new')], {
      token: async ({ refresh }) => {
        asked.push(refresh)
        if (refresh) {
          await new Promise(setImmediate)
          token = 'new'
        }
        return token
      },
    })
    await Promise.all([api.jobs.list().page(), api.jobs.list().page(), api.jobs.list().page()])
    assert.equal(asked.filter(Boolean).length, 1)
    assert.equal(server.requests.length, 6)
  })

  test('if the refreshed token is refused too, the request fails', async () => {
    let count = 0
    const { api, server } = await clientOf([gate(() => 'never')], { token: () => `token-${count++}` })
    await assert.rejects(api.jobs.list().page(), { code: 'unauthorized', status: 401 })
    assert.equal(server.requests.length, 2)
  })

  test('a fixed token is sent only once', async () => {
    const { api, server } = await clientOf([gate(() => 'another')], { token: 'fixed' })
    await assert.rejects(api.jobs.list().page(), { code: 'unauthorized' })
    assert.equal(server.requests.length, 1)
  })

  test('a key of a service account goes into X-API-Key', async () => {
    const server = await startScriptedServer(PAGE)
    await createClient({ url: `${server.url}/`, apiKey: 'pak_1' })
      .jobs.list({ limit: 5, status: 'failed' })
      .page()
    assert.equal(server.requests[0]?.headers['x-api-key'], 'pak_1')
    assert.equal(server.requests[0]?.headers.authorization, undefined)
    assert.equal(server.requests[0]?.path, '/jobs?limit=5&status=failed')
  })
})

describe('lists', () => {
  test('a signal can abort one page without the list', async () => {
    const { api, server } = await clientOf([hangs, PAGE])
    const list = api.jobs.list()
    const stop = new AbortController()
    const stopped = assert.rejects(list.page(null, { signal: stop.signal }), { name: 'AbortError' })
    await until(() => server.requests.length === 1)
    stop.abort()
    await stopped
    assert.equal((await list.page()).data.length, 1)
  })

  test('a loop reads all pages, also after an empty one', async () => {
    const { api, server } = await clientOf([
      { status: 200, body: { data: [{ id: 'a' }], has_more: true, next_cursor: 'c1' } },
      { status: 200, body: { data: [], has_more: true, next_cursor: 'c2' } },
      { status: 200, body: { data: [{ id: 'b' }], has_more: false, next_cursor: null } },
    ])
    const ids: string[] = []
    for await (const { id } of api.projects.list({ limit: 1 })) ids.push(id)
    assert.deepEqual(ids, ['a', 'b'])
    assert.deepEqual(
      server.requests.map(({ path }) => path),
      ['/v1/projects?limit=1', '/v1/projects?limit=1&cursor=c1', '/v1/projects?limit=1&cursor=c2'],
    )
  })
})

test('a parser given by the app reads every answer', async () => {
  const headers = { 'content-type': 'application/json' }
  const { api } = await clientOf([{ status: 200, headers, body: '{"n":9007199254740993}' }], {
    parse: (text) => ({ text }),
  })
  assert.deepEqual(await api.request('GET', '/v1/anything'), { text: '{"n":9007199254740993}' })
})
