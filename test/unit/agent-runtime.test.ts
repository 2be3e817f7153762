import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { getEventListeners, once } from 'node:events'
import { request } from 'node:http'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import { systemClock } from '../../src/core/clock.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { WHOLE } from '../../src/core/json/wanted.ts'
import type { Json, JsonObject } from '../../src/core/json.ts'
import { parseCallback } from '../../src/runtime/callback-payload.ts'
import { RuntimeUnavailable } from '../../src/runtime/check-errors.ts'
import type { RunStreamEvent } from '../../src/runtime/run-stream.ts'
import { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import type { RuntimeRun } from '../../src/runtime/runtime-types.ts'
import { type AgentRuntime, startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { type CallbackReceiver, startCallbackReceiver } from '../support/callback-receiver.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { assertStandsAlone } from '../support/sandbox-page.ts'
import { until } from '../support/until.ts'

const PENDING_MS = 50
const RUNNING_MS = 300
const WHOLE_RUN_MS = PENDING_MS + RUNNING_MS

let clock: ManualClock
let runtime: AgentRuntime
let receiver: CallbackReceiver
let client: RuntimeClient

beforeEach(async () => {
  clock = new ManualClock()
  receiver = await startCallbackReceiver()
  runtime = await startAgentRuntime({ clock, apiKey: 'k3y' })
  client = clientWith('k3y')
})
afterEach(async () => {
  await runtime.close()
  await receiver.close()
})

function clientWith(apiKey: string): RuntimeClient {
  const breaker = new Breaker({ clock, threshold: 1_000, openMs: 1, maxOpenMs: 1 })
  return new RuntimeClient({ url: runtime.url, apiKey, timeoutMs: 10_000, fetch, clock: systemClock, breaker })
}

async function begin(assistantId: string, input: Json = { title: 'Done', n: 42 }): Promise<RuntimeRun> {
  const threadId = randomUUID()
  await client.ensureThread(threadId, {})
  const wish = {
    threadId,
    assistantId,
    payload: { input: JsonText.of(input) },
    webhook: receiver.url,
    metadata: { job_id: 'job-1' },
  }
  const outcome = await client.startRun(wish)
  assert.ok('started' in outcome, JSON.stringify(outcome))
  return outcome.started
}

async function finish(assistantId = 'report', input?: Json): Promise<RuntimeRun> {
  const run = await begin(assistantId, input)
  await clock.advance(WHOLE_RUN_MS)
  await runtime.drainCallbacks()
  return run
}

const statusOf = async ({ threadId, runId }: RuntimeRun) => (await client.fetchRun(threadId, runId))?.status
const control = (method: string, path: string, body?: object) =>
  fetch(`${runtime.url}/sandbox/${path}`, { method, ...(body ? { body: JSON.stringify(body) } : {}) })

test('a run without faults waits, runs, ends and is called back once, in the time of the clock', async () => {
  const run = await begin('report')
  await clock.advance(PENDING_MS - 1)
  assert.equal(await statusOf(run), 'pending')
  await clock.advance(1)
  assert.equal(await statusOf(run), 'running')
  await clock.advance(RUNNING_MS - 1)
  assert.equal(await statusOf(run), 'running')
  assert.equal(receiver.received.length, 0)
  await clock.advance(1)
  await runtime.drainCallbacks()
  assert.equal(await statusOf(run), 'success')
  assert.equal(receiver.callbacksOf(run.runId).length, 1)
  assert.deepEqual(runtime.stats, {
    calls: { 'POST /threads': 1, 'POST /threads/{t}/runs': 1, 'GET /threads/{t}/runs/{r}': 4 },
    callbacks: { due: 1, dropped: 0, attempted: 1, delivered: 1 },
  })
})

test('a dropped callback is never sent, although the run has ended', async () => {
  runtime.setFaults({ drop_callbacks: 1 })
  const run = await finish()
  assert.equal(await statusOf(run), 'success')
  assert.equal(receiver.received.length, 0)
  assert.deepEqual(runtime.stats.callbacks, { due: 1, dropped: 1, attempted: 0, delivered: 0 })
  assert.equal(runtime.recentCallbacks[0]?.state, 'dropped')
})

test('a ratio is the share of affected callbacks', async () => {
  const draws = [0.1, 0.49, 0.5, 0.9]
  const random = {
    bytes: (count: number) => crypto.getRandomValues(new Uint8Array(count)),
    fraction: () => draws.shift() ?? 1,
  }
  await runtime.close()
  runtime = await startAgentRuntime({ clock, random })
  client = clientWith('any')
  runtime.setFaults({ drop_callbacks: 0.5 })
  for (let i = 0; i < 4; i++) await finish()
  assert.deepEqual(
    runtime.recentCallbacks.map(({ state }) => state),
    ['delivered', 'delivered', 'dropped', 'dropped'],
  )
})

test('a duplicated callback comes twice, byte by byte', async () => {
  runtime.setFaults({ duplicate_callbacks: 1 })
  const [first, second, ...more] = receiver.callbacksOf((await finish()).runId)
  assert.deepEqual(first?.raw, second?.raw)
  assert.ok(first)
  assert.equal(more.length, 0)
})

test('a late callback comes after its time and not before', async () => {
  runtime.setFaults({ late_callbacks_ms: 60_000 })
  const run = await begin('report')
  await clock.advance(WHOLE_RUN_MS + 59_999)
  assert.equal(await statusOf(run), 'success')
  assert.equal(receiver.received.length, 0)
  await clock.advance(1)
  await runtime.drainCallbacks()
  assert.equal(receiver.callbacksOf(run.runId).length, 1)
})

test('reordered callbacks overtake each other, and one without a follower is not held for ever', async () => {
  runtime.setFaults({ reorder_callbacks: true })
  const first = await begin('report')
  await clock.advance(1)
  const second = await begin('report')
  await clock.advance(WHOLE_RUN_MS)
  await runtime.drainCallbacks()
  const arrived = (await Promise.all(receiver.received.map(({ raw }) => parseCallback(raw)))).map(({ runId }) => runId)
  assert.deepEqual(arrived, [second.runId, first.runId])

  const alone = await begin('report')
  await clock.advance(WHOLE_RUN_MS)
  assert.equal(receiver.callbacksOf(alone.runId).length, 0)
  await clock.advance(5_000)
  await runtime.drainCallbacks()
  assert.equal(receiver.callbacksOf(alone.runId).length, 1)
})

test('a corrupted callback is not JSON', async () => {
  runtime.setFaults({ corrupt_callbacks: 1 })
  await finish()
  const [callback] = receiver.received
  assert.ok(callback)
  await assert.rejects(parseCallback(callback.raw), /not valid JSON/)
})

test('a failing callback breaks off half-way; the hosted runtime tries again, the JS server does not', async () => {
  runtime.setFaults({ failing_callbacks: 1 })
  await finish()
  await until(() => receiver.broken === 1)
  assert.equal(receiver.received.length, 0)
  assert.deepEqual(runtime.stats.callbacks, { due: 1, dropped: 0, attempted: 1, delivered: 0 })

  runtime.setFaults({ delivery: 'hosted' })
  const run = await begin('report')
  await clock.advance(WHOLE_RUN_MS)
  await until(() => receiver.broken === 2)
  await until(() => runtime.recentCallbacks[0]?.state === 'failed')
  runtime.setFaults({ failing_callbacks: 0 })
  await clock.advance(10_000)
  await runtime.drainCallbacks()
  assert.equal(receiver.callbacksOf(run.runId).length, 1)
  assert.equal(runtime.recentCallbacks[0]?.attempts, 2)
})

test('the hosted runtime gives up after three attempts at a server error, and at once on any other refusal', async () => {
  runtime.setFaults({ delivery: 'hosted' })
  receiver.status = 503
  const run = await begin('report')
  await clock.advance(WHOLE_RUN_MS)
  for (const attempts of [1, 2, 3]) {
    await until(() => receiver.callbacksOf(run.runId).length === attempts)
    // It waits for its next attempt, at most ten seconds, and no longer for an answer, which may take thirty.
    await until(() => attempts === 3 || clock.nextWakeMs <= 10_000)
    await clock.advance(10_000)
  }
  await runtime.drainCallbacks()
  assert.equal(receiver.callbacksOf(run.runId).length, 3)

  receiver.status = 404
  const refused = await finish()
  assert.equal(receiver.callbacksOf(refused.runId).length, 1)
  assert.equal(runtime.recentCallbacks[0]?.state, 'refused')
  assert.equal(runtime.recentCallbacks[0]?.answered, 404)
})

test('the JS server ignores an error status', async () => {
  receiver.status = 503
  assert.equal(receiver.callbacksOf((await finish()).runId).length, 1)
})

test('the hosted dialect has plain messages, an error object and, by a setting of its own, another content type', async () => {
  runtime.setFaults({ delivery: 'hosted', content_type: 'application/json' })
  const failed = await receiver.callbackOf((await finish('throw')).runId)
  assert.equal(failed.headers['content-type'], 'application/json')
  assert.deepEqual(bodyOf(failed.raw).error, { error: 'Error', message: 'kaboom: upstream 500' })
  assert.equal((await parseCallback(failed.raw)).error, 'kaboom: upstream 500')
  const answered = await receiver.callbackOf((await finish('agent', { prompt: 'Hi' })).runId)
  const { messages } = bodyOf(answered.raw).values as { messages: JsonObject[] }
  assert.equal(messages[0]?.type, 'ai')
  assert.equal(messages[0]?.content, 'You said: Hi')
})

test('lookups fail with the status asked for, and starts do not', async () => {
  const run = await finish()
  runtime.setFaults({ lookup_failure: 1, lookup_failure_status: 502 })
  await assert.rejects(statusOf(run), new RuntimeUnavailable('answered', { status: 502 }))
  await begin('report')
  runtime.setFaults({ lookup_failure: 0 })
  assert.equal(await statusOf(run), 'success')
})

test('starts fail with the status asked for, and lookups do not', async () => {
  const run = await finish()
  runtime.setFaults({ start_failure: 1, start_failure_status: 500 })
  await assert.rejects(begin('report'), new RuntimeUnavailable('answered', { status: 500 }))
  assert.equal(await statusOf(run), 'success')
})

test('a slow lookup is answered after its time', async () => {
  const run = await finish()
  runtime.setFaults({ lookup_latency_ms: 2_000 })
  let answered = false
  const asked = statusOf(run).then((status) => {
    answered = true
    return status
  })
  await clock.untilSleeping()
  await clock.advance(1_999)
  assert.equal(answered, false)
  await clock.advance(1)
  assert.equal(await asked, 'success')
})

test('a hung lookup is answered once the fault is over', async () => {
  const run = await finish()
  const before = runtime.stats.calls['GET /threads/{t}/runs/{r}'] ?? 0
  runtime.setFaults({ hang_lookups: true })
  const asked = statusOf(run)
  await until(() => runtime.stats.calls['GET /threads/{t}/runs/{r}'] === before + 1)
  runtime.setFaults({ hang_lookups: false })
  assert.equal(await asked, 'success')
})

test('a start whose answer is lost has started: the run is found on its thread', async () => {
  const threadId = randomUUID()
  await client.ensureThread(threadId, {})
  runtime.setFaults({ lose_start_answers: 1 })
  const wish = {
    threadId,
    assistantId: 'report',
    payload: { input: JsonText.of({}) },
    webhook: null,
    metadata: { job_id: 'job-7' },
  }
  await assert.rejects(client.startRun(wish), RuntimeUnavailable)
  const [run, ...more] = await client.listRuns(threadId)
  assert.equal(run?.metadata.job_id, 'job-7')
  assert.equal(more.length, 0)
  runtime.setFaults({ lose_start_answers: 0 })
  assert.deepEqual(await client.startRun(wish), { busy: true })
})

const newStart = async (input: Json = {}) => {
  const threadId = randomUUID()
  await client.ensureThread(threadId, {})
  return { threadId, assistantId: 'agent', payload: { input: JsonText.of(input) }, webhook: null, metadata: {} }
}

test('a late start is handled and answered after its time, and the run begins then', async () => {
  const wish = await newStart()
  runtime.setFaults({ late_starts_ms: 12_000 })
  const starting = client.startRun(wish)
  await clock.untilSleeping()
  await clock.advance(11_999)
  assert.deepEqual(await client.listRuns(wish.threadId), [])
  await clock.advance(1)
  const outcome = await starting
  assert.ok('started' in outcome)
  assert.deepEqual(
    (await client.listRuns(wish.threadId)).map(({ runId, status }) => [runId, status]),
    [[outcome.started.runId, 'pending']],
  )
})

test('a start whose connection breaks is handled after its time, unless the runtime is reset before', async () => {
  const wish = await newStart()
  runtime.setFaults({ late_starts_ms: 60_000, break_starts: 1 })
  await assert.rejects(client.startRun(wish), RuntimeUnavailable)
  await clock.advance(59_999)
  assert.deepEqual(await client.listRuns(wish.threadId), [])
  await clock.advance(1)
  assert.equal((await client.listRuns(wish.threadId)).length, 1)
  await assert.rejects(client.startRun(await newStart()), RuntimeUnavailable)
  await runtime.reset()
  assert.equal(clock.sleeping, 0)
})

test('a run begins at the checkpoint that it names, and so do later runs that name none', async () => {
  const wish = await newStart()
  const say = async (question: string, checkpointId: string | null = null) => {
    const input = { messages: [{ role: 'user', content: question }] }
    const outcome = await client.startRun({ ...wish, payload: { input: JsonText.of(input) }, checkpointId })
    assert.ok('started' in outcome)
    await clock.advance(WHOLE_RUN_MS)
    const { runId } = outcome.started
    const [run] = runtime.recentRuns.filter((one) => one.runId === runId)
    return {
      checkpointId: (await client.fetchCheckpoint(wish.threadId, runId))?.id ?? null,
      asked: questionsIn(run?.values),
    }
  }
  const first = await say('q1')
  assert.deepEqual((await say('late')).asked, ['q1', 'late'])
  const second = await say('q2', first.checkpointId)
  assert.deepEqual(second.asked, ['q1', 'q2'])
  assert.deepEqual((await say('q3', second.checkpointId)).asked, ['q1', 'q2', 'q3'])
  assert.deepEqual((await say('q4')).asked, ['q1', 'q2', 'q4'])
  assert.deepEqual((await say('q5', randomUUID())).asked, ['q5'])
})

function questionsIn(values: JsonObject | undefined): Json[] {
  const messages = (values?.messages ?? []) as JsonObject[]
  return messages.flatMap(({ type, content }) => (type === 'human' ? [content ?? null] : []))
}

test('a refused callback URL is a 422 as of the hosted runtime; without one the run starts', async () => {
  runtime.setFaults({ refuse_webhook: true })
  const threadId = randomUUID()
  await client.ensureThread(threadId, {})
  const wish = {
    threadId,
    assistantId: 'report',
    payload: { input: JsonText.of({}) },
    webhook: receiver.url,
    metadata: {},
  }
  const refused = await client.startRun(wish)
  assert.ok('refused' in refused)
  assert.equal(refused.refused.status, 422)
  assert.ok('started' in (await client.startRun({ ...wish, webhook: null })))
})

test('a zombie runs for ever, until it is cancelled', async () => {
  runtime.setFaults({ zombie: true })
  const run = await begin('report')
  await clock.advance(40 * 3_600_000)
  assert.equal(await statusOf(run), 'running')
  await client.cancelRun(run.threadId, run.runId)
  assert.equal(await statusOf(run), 'interrupted')
})

test('a lost run is unknown, and a run that a crash left running cannot be cancelled', async () => {
  const run = await begin('report')
  runtime.setFaults({ lose_runs: true })
  assert.equal(await statusOf(run), undefined)
  assert.deepEqual(await client.listRuns(run.threadId), [])
  runtime.setFaults({ lose_runs: false })
  await clock.advance(PENDING_MS)
  runtime.crash()
  await clock.advance(3_600_000)
  await client.cancelRun(run.threadId, run.runId)
  assert.equal(await statusOf(run), 'running')
  assert.equal(runtime.stats.callbacks.due, 0)
})

test('an input may steer any graph: how long it takes, that it asks, that it fails', async () => {
  const slow = await begin('agent', { prompt: 'Hi', sandbox: { duration_ms: 60_000 } })
  await clock.advance(PENDING_MS + 59_999)
  assert.equal(await statusOf(slow), 'running')
  await clock.advance(1)
  assert.equal(await statusOf(slow), 'success')

  const failing = await finish('report', { sandbox: { fail: 'no more paper' } })
  assert.equal((await client.fetchState(failing.threadId, failing.runId, WHOLE))?.error, 'no more paper')

  const asking = await finish('report', { title: 'Q3', sandbox: { pause: 'Which quarter?' } })
  const state = await client.fetchState(asking.threadId, asking.runId, WHOLE)
  assert.ok(state?.values)
  assert.deepEqual(state.next, ['sandbox_ask'])
  assert.equal('sandbox' in (state.values.parse() as object), false)
  const wish = { threadId: asking.threadId, assistantId: 'report', webhook: null, metadata: {} }
  const resumed = await client.startRun({ ...wish, payload: { command: JsonText.of({ resume: 'the third' }) } })
  assert.ok('started' in resumed)
  await clock.advance(WHOLE_RUN_MS)
  const done = await client.fetchState(asking.threadId, resumed.started.runId, WHOLE)
  assert.ok(done?.values)
  assert.deepEqual((done.values.parse() as JsonObject).report, { title: 'Q3', n: 0 })
})

test('runs queue, replace or roll back each other where the strategy says so', async () => {
  const threadId = randomUUID()
  await client.ensureThread(threadId, {})
  const startBy = async (multitask_strategy: string): Promise<RuntimeRun> => {
    const response = await post(`/threads/${threadId}/runs`, { assistant_id: 'report', input: {}, multitask_strategy })
    const { run_id } = (await response.json()) as { run_id: string }
    const traces = { traceId: null, tracerTraceId: null }
    return { runId: run_id, threadId, status: 'pending', metadata: {}, checkpointId: null, traces }
  }
  const first = await startBy('enqueue')
  const second = await startBy('enqueue')
  await clock.advance(WHOLE_RUN_MS - 1)
  assert.equal(await statusOf(first), 'running')
  assert.equal(await statusOf(second), 'pending')
  await clock.advance(1)
  assert.equal(await statusOf(first), 'success')
  assert.equal(await statusOf(second), 'running')
  const third = await startBy('interrupt')
  assert.equal(await statusOf(second), 'interrupted')
  const fourth = await startBy('rollback')
  assert.equal(await statusOf(third), undefined)
  await clock.advance(WHOLE_RUN_MS)
  assert.equal(await statusOf(fourth), 'success')
})

for (const delivery of ['hosted', 'js'] as const) {
  test(`a run that is rolled back (${delivery}) is gone with what it wrote, and its callback says so`, async () => {
    runtime.setFaults({ delivery })
    const run = await begin('report')
    await clock.advance(PENDING_MS)
    await post(`/threads/${run.threadId}/runs/${run.runId}/cancel?action=rollback`, {})
    assert.equal(await statusOf(run), undefined)
    assert.equal((await parseCallback((await receiver.callbackOf(run.runId)).raw)).status, 'rollback')
    assert.equal((await client.fetchNewestState(run.threadId, WHOLE))?.runId, null)
  })
}

test('a search of threads shows the selected fields, or else all', async () => {
  const threadId = randomUUID()
  await client.ensureThread(threadId, { owner: 'ada' })
  const fieldsOf = async (search: object) => {
    const [found] = (await (await post('/threads/search', { ids: [threadId], ...search })).json()) as object[]
    return Object.keys(found ?? {})
  }
  assert.deepEqual(await fieldsOf({ select: ['thread_id', 'metadata'] }), ['thread_id', 'metadata'])
  assert.ok((await fieldsOf({})).includes('status'))
})

test('every run of a long conversation is listed, newest first', async () => {
  const threadId = randomUUID()
  await client.ensureThread(threadId, {})
  const started: string[] = []
  for (let turn = 1; turn <= 203; turn++) {
    const body = { assistant_id: 'report', input: {}, multitask_strategy: 'interrupt' }
    const response = await post(`/threads/${threadId}/runs`, body)
    started.unshift(((await response.json()) as { run_id: string }).run_id)
    await clock.advance(1)
  }
  const listed = await client.listRuns(threadId)
  assert.deepEqual(
    listed.map(({ runId }) => runId),
    started,
  )
})

test('faults are set and read over HTTP, all of a request or none of it', async () => {
  const changed = await control('PATCH', 'faults', { drop_callbacks: 1, running_ms: 5 })
  assert.equal(changed.status, 200)
  assert.deepEqual(await changed.json(), { ...NO_RUNTIME_FAULTS, drop_callbacks: 1, running_ms: 5 })
  assert.equal(runtime.faults.drop_callbacks, 1)
  const refused = await control('POST', 'faults', { drop_callbacks: 0, zombie: 1, delivery: 'pigeon', no_such: 1 })
  assert.equal(refused.status, 400)
  const { problems } = (await refused.json()) as { problems: string[] }
  assert.equal(problems.length, 3)
  assert.deepEqual(await (await control('GET', 'faults')).json(), { ...runtime.faults })
  assert.equal(runtime.faults.drop_callbacks, 1)
  for (const value of [-0.1, 1.1, '1', null, Number.NaN]) {
    assert.throws(() => runtime.setFaults({ drop_callbacks: value as number }), /must be a number from 0 to 1/)
  }
})

test('counters and recent events can be read over HTTP, without the token of a callback URL', async () => {
  const run = await finish()
  const stats = (await (await control('GET', 'stats')).json()) as JsonObject
  assert.deepEqual(stats, runtime.stats)
  const recent = await (await control('GET', 'recent')).text()
  assert.ok(recent.includes(run.runId))
  assert.ok(!recent.includes('s3cret'))
})

test('a reset deletes threads, counters and faults, and stops active runs', async () => {
  runtime.setFaults({ late_callbacks_ms: 60_000 })
  const run = await begin('report')
  await clock.advance(WHOLE_RUN_MS)
  await begin('sleep', { ms: 60_000 })
  assert.equal((await control('POST', 'reset')).status, 200)
  assert.deepEqual(runtime.stats, { calls: {}, callbacks: { due: 0, dropped: 0, attempted: 0, delivered: 0 } })
  assert.deepEqual(runtime.faults, NO_RUNTIME_FAULTS)
  assert.equal(await statusOf(run), undefined)
  assert.equal(clock.sleeping, 0)
  await finish()
  assert.equal(receiver.received.length, 1)
})

test('a runtime that closes leaves no timer, no run and no request behind', async () => {
  await finish()
  runtime.setFaults({ late_callbacks_ms: 60_000 })
  const run = await begin('report')
  await clock.advance(WHOLE_RUN_MS)
  await begin('sleep', { ms: 60_000 })
  runtime.setFaults({ lookup_latency_ms: 60_000 })
  const asked = assert.rejects(statusOf(run), RuntimeUnavailable)
  await until(() => clock.sleeping === 3)
  await runtime.close()
  await asked
  assert.equal(clock.sleeping, 0)
  assert.equal(receiver.received.length, 1)
  runtime = await startAgentRuntime()
})

test('every request without the API key is refused, and that says nothing about a run', async () => {
  const run = await begin('report')
  await assert.rejects(
    clientWith('wrong').fetchRun(run.threadId, run.runId),
    new RuntimeUnavailable('answered', { status: 403 }),
  )
})

test('a 404 that is not the runtime’s own answer about a run or a thread proves nothing about the run', async () => {
  const breaker = new Breaker({ clock, threshold: 1_000, openMs: 1, maxOpenMs: 1 })
  const options = { apiKey: 'k3y', timeoutMs: 10_000, fetch, clock: systemClock, breaker }
  const astray = new RuntimeClient({ ...options, url: `${runtime.url}/wrong/path` })
  await assert.rejects(astray.fetchRun(randomUUID(), randomUUID()), RuntimeUnavailable)
})

test('the runtime cannot be reached but from this machine, nor by a page of another origin', async () => {
  await assert.rejects(startAgentRuntime({ host: '0.0.0.0' }), /loopback only/)
  const body = JSON.stringify({ zombie: true })
  const options = { method: 'PATCH', body, headers: { origin: 'https://elsewhere.example' } }
  assert.equal((await fetch(`${runtime.url}/sandbox/faults`, options)).status, 403)
  assert.equal(await statusWithHost('elsewhere.example'), 403)
  assert.equal(await statusWithHost('localhost:1'), 200)
  assert.equal(runtime.faults.zombie, false)
})

test('the page stands alone under a policy with a fresh nonce, and its scripts are sound', () =>
  assertStandsAlone(runtime.url))

function post(path: string, body: object): Promise<Response> {
  const headers = { 'content-type': 'application/json', 'x-api-key': 'k3y' }
  return fetch(`${runtime.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
}

function bodyOf(raw: Buffer): JsonObject {
  return JSON.parse(raw.toString()) as JsonObject
}

async function statusWithHost(host: string): Promise<number | undefined> {
  const asking = request(`${runtime.url}/ok`, { headers: { host } }).end()
  const [response] = await once(asking, 'response')
  response.resume()
  return response.statusCode
}

describe('a run that streams', () => {
  const HELLO = { messages: [{ role: 'user', content: 'Hi' }] }
  const streamed = { streamModes: ['messages-tuple', 'updates', 'custom'] as const }

  async function beginStream(input: Json): Promise<RuntimeRun> {
    const threadId = randomUUID()
    await client.ensureThread(threadId, {})
    const payload = { input: JsonText.of(input) }
    const wish = { threadId, assistantId: 'agent', payload, webhook: null, metadata: {}, ...streamed }
    const outcome = await client.startRun(wish)
    assert.ok('started' in outcome, JSON.stringify(outcome))
    return outcome.started
  }

  /** What is received goes into the list. Resolves to how the stream ended. */
  async function follow(run: RuntimeRun, received: RunStreamEvent[], after = '-1'): Promise<'ended' | 'broken'> {
    try {
      const { signal } = new AbortController()
      for await (const events of client.streamRun(run.threadId, run.runId, { after, signal })) received.push(...events)
      return 'ended'
    } catch (error) {
      assert.ok(error instanceof RuntimeUnavailable)
      return 'broken'
    }
  }
  const textOf = (events: readonly RunStreamEvent[]) =>
    events
      .filter(({ event }) => event === 'messages')
      .map(({ data }) => (JSON.parse(data) as [{ content: string }])[0].content)
      .join('')

  test('a run streams its answer word by word in the time that it takes, and the words are those of its output', async () => {
    const run = await beginStream({ ...HELLO, sandbox: { say: 'One two three' } })
    const received: RunStreamEvent[] = []
    const over = follow(run, received)
    await clock.advance(PENDING_MS + RUNNING_MS / 2)
    await until(() => textOf(received) !== '')
    assert.match(textOf(received), /^One (?:two )?$/)
    assert.equal(await statusOf(run), 'running')
    await clock.advance(RUNNING_MS / 2)
    assert.equal(await over, 'ended')
    assert.equal(textOf(received), 'One two three')
    assert.equal(await statusOf(run), 'success')
    const state = await client.fetchState(run.threadId, run.runId, WHOLE)
    assert.ok(state?.values)
    const { messages } = state.values.parse() as { messages: { id: string; content: string }[] }
    const [piece] = JSON.parse(received.find(({ event }) => event === 'messages')?.data ?? '') as [{ id: string }]
    assert.deepEqual([messages.at(-1)?.content, messages.at(-1)?.id], ['One two three', piece.id])
  })

  test('a run takes longer with slow tokens', async () => {
    runtime.setFaults({ token_ms: 1_000 })
    const run = await beginStream({ ...HELLO, sandbox: { say: 'One two three' } })
    await clock.advance(PENDING_MS + 3_999)
    assert.equal(await statusOf(run), 'running')
    await clock.advance(1)
    assert.equal(await statusOf(run), 'success')
  })

  test('a stream is broken off and resumed by one setting, and refused by another', async () => {
    runtime.setFaults({ break_streams: 1 })
    const run = await beginStream(HELLO)
    await clock.advance(PENDING_MS)
    const [first, rest]: RunStreamEvent[][] = [[], []]
    assert.equal(await follow(run, first ?? []), 'broken')
    assert.deepEqual(
      first?.map(({ event, id }) => [event, id]),
      [['metadata', '0']],
    )
    runtime.setFaults({ break_streams: 0 })
    await clock.advance(RUNNING_MS)
    assert.equal(await follow(run, rest ?? [], '0'), 'ended')
    assert.equal(textOf(rest ?? []), 'You said: Hi')
    runtime.setFaults({ refuse_streams: true })
    assert.equal(await follow(run, []), 'broken')
  })

  test('a run forgets a client that leaves', async () => {
    const run = await beginStream({ ...HELLO, sandbox: { duration_ms: 60_000 } })
    await clock.advance(PENDING_MS)
    const record = runtime.recentRuns.find(({ runId }) => runId === run.runId)
    assert.ok(record)
    const listeners = () => getEventListeners(record.stop.signal, 'abort').length
    const before = listeners()
    runtime.setFaults({ break_streams: 1 })
    for (let n = 0; n < 3; n++) assert.equal(await follow(run, []), 'broken')
    await until(() => record.followers.size === 0)
    assert.equal(listeners(), before)
  })

  test('a run replays nothing and gives no ids unless it was created as resumable', async () => {
    const threadId = randomUUID()
    await client.ensureThread(threadId, {})
    const { runId } = await startNotResumable(threadId, { ...HELLO, sandbox: { say: 'One two three' } })
    await clock.advance(PENDING_MS)
    const received: RunStreamEvent[] = []
    const over = follow({ threadId, runId } as RuntimeRun, received)
    await until(() => runtime.recentRuns.some((run) => run.runId === runId && run.followers.size === 1))
    await clock.advance(RUNNING_MS)
    assert.equal(await over, 'ended')
    assert.ok(received.length > 0 && received.every(({ id, event }) => id === null && event !== 'metadata'))
    const late: RunStreamEvent[] = []
    assert.equal(await follow({ threadId, runId } as RuntimeRun, late), 'ended')
    assert.deepEqual(late, [])
  })

  async function startNotResumable(threadId: string, input: Json): Promise<{ runId: string }> {
    const body = JSON.stringify({ assistant_id: 'agent', input, stream_mode: streamed.streamModes })
    const headers = { 'content-type': 'application/json', 'x-api-key': 'k3y' }
    const answer = await fetch(`${runtime.url}/threads/${threadId}/runs`, { method: 'POST', headers, body })
    assert.equal(answer.status, 200, await answer.clone().text())
    return { runId: ((await answer.json()) as { run_id: string }).run_id }
  }

  test('a run breaks its streams when the server dies', async () => {
    const run = await beginStream({ ...HELLO, sandbox: { duration_ms: 60_000 } })
    await clock.advance(PENDING_MS)
    const received: RunStreamEvent[] = []
    const over = follow(run, received)
    await until(() => received.length > 0)
    runtime.crash()
    assert.equal(await over, 'broken')
  })
})
