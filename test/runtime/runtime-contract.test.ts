import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import { systemClock } from '../../src/core/clock.ts'
import type { JsonPart } from '../../src/core/json/json-part.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { WHOLE, wantAll } from '../../src/core/json/wanted.ts'
import { isJsonObject, type Json, type JsonObject } from '../../src/core/json.ts'
import { readLiveMessage } from '../../src/jobs/live/live-message.ts'
import { extractOutput, extractTokens, wantedValues } from '../../src/jobs/output.ts'
import { parseCallback } from '../../src/runtime/callback-payload.ts'
import type { RunStreamEvent } from '../../src/runtime/run-stream.ts'
import { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import type { RuntimeRun, StartRequest, ThreadState } from '../../src/runtime/runtime-types.ts'
import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { type CallbackReceiver, startCallbackReceiver } from '../support/callback-receiver.ts'
import { startLangGraph } from '../support/langgraph.ts'
import { until } from '../support/until.ts'

interface Subject {
  url: string
  /** Kills the runtime during this run, and starts it again. */
  dieDuring(run: RuntimeRun): Promise<void>
  stop(): Promise<void>
}

const SUBJECTS: { name: string; start: () => Promise<Subject> }[] = [
  {
    name: 'the real runtime',
    start: async () => {
      const server = await startLangGraph()
      const dieDuring = async (run: RuntimeRun) => {
        await server.untilWritten(run.runId, 'running')
        await server.kill()
        await server.restart()
      }
      return { url: server.url, dieDuring, stop: () => server.stop() }
    },
  },
  {
    name: 'the sandbox runtime',
    start: async () => {
      const runtime = await startAgentRuntime()
      runtime.setFaults({ pending_ms: 5, running_ms: 20 })
      return { url: runtime.url, dieDuring: async () => runtime.crash(), stop: () => runtime.close() }
    },
  },
]

const INPUT = { title: 'Done', n: 42 }
const BUSY = 'Thread is already running a task. Wait for it to finish or choose a different multitask strategy.'

for (const { name, start } of SUBJECTS) {
  describe(`${name}, through our client`, () => {
    let subject: Subject
    let receiver: CallbackReceiver
    let client: RuntimeClient

    before(async () => {
      receiver = await startCallbackReceiver()
      subject = await start()
      client = clientOf(subject.url)
    })
    after(async () => {
      await subject?.stop()
      await receiver?.close()
    })

    const newThread = async () => {
      const threadId = randomUUID()
      assert.equal(await client.ensureThread(threadId, { job_id: 'job-1' }), null)
      return threadId
    }
    const begin = async (assistantId: string, request: Partial<StartRequest> = {}): Promise<RuntimeRun> => {
      const threadId = request.threadId ?? (await newThread())
      const outcome = await client.startRun({
        threadId,
        assistantId,
        payload: { input: JsonText.of(INPUT) },
        webhook: receiver.url,
        metadata: { job_id: 'job-1', run_seq: 1 },
        ...request,
      })
      assert.ok('started' in outcome, JSON.stringify(outcome))
      return outcome.started
    }
    const look = async ({ threadId, runId }: RuntimeRun): Promise<RuntimeRun> => {
      const run = await client.fetchRun(threadId, runId)
      assert.ok(run)
      return run
    }
    const untilStatus = (run: RuntimeRun, status: string) => until(async () => (await look(run)).status === status)
    const stateOf = async ({ threadId, runId }: RuntimeRun): Promise<ThreadState> => {
      const state = await client.fetchState(threadId, runId, ANY_OUTPUT)
      assert.ok(state)
      return state
    }
    const openIn = ({ interrupts }: ThreadState) =>
      interrupts.map(({ text }) => JSON.parse(text) as { id: string; value: { question: string } })
    const reportIn = ({ values }: ThreadState) => (values?.parse() as JsonObject | undefined)?.report
    const callbackOf = async ({ runId }: RuntimeRun) =>
      parseCallback((await receiver.callbackOf(runId)).raw, ANY_OUTPUT)
    const resume = (run: RuntimeRun, answer: Json) =>
      begin(String(run.metadata.graph_id), {
        threadId: run.threadId,
        payload: { command: JsonText.of({ resume: answer }) },
      })
    const raw = (method: string, path: string, body?: object) =>
      fetch(`${subject.url}${path}`, {
        method,
        headers: { 'content-type': 'application/json' },
        ...(body ? { body: JSON.stringify(body) } : {}),
      })
    const rawJson = async (method: string, path: string, body?: object) =>
      (await (await raw(method, path, body)).json()) as JsonObject

    test('a successful run has the same values in the callback, the lookup and the state', async () => {
      const run = await begin('ok')
      assert.equal(run.status, 'pending')
      const callback = await callbackOf(run)
      assert.equal(callback.status, 'success')
      assert.equal(callback.threadId, run.threadId)
      assert.equal(callback.runId, run.runId)
      assert.equal(callback.error, null)
      assert.deepEqual(valuesOf(callback).report, INPUT)
      assert.equal((await look(run)).status, 'success')
      const state = await stateOf(run)
      assert.deepEqual(valuesOf(state), valuesOf(callback))
      assert.deepEqual(
        { ...state, values: null, checkpointId: null },
        {
          values: null,
          next: [],
          isDone: true,
          checkpointId: null,
          runId: run.runId,
          error: null,
          interrupts: [],
          traces: NO_TRACES,
        },
      )
    })

    test('a run begins at the checkpoint that it names, and so do later runs that name none', async () => {
      const threadId = await newThread()
      const say = async (content: string, checkpointId: string | null = null) => {
        const input = { messages: [{ role: 'user', content }] }
        const run = await begin('agent', { threadId, payload: { input: JsonText.of(input) }, checkpointId })
        await untilStatus(run, 'success')
        const { messages } = valuesOf(await stateOf(run)) as { messages: JsonObject[] }
        const asked = messages.filter(({ type }) => type === 'human').map((message) => message.content)
        const checkpoint = await client.fetchCheckpoint(threadId, run.runId)
        assert.equal(checkpoint?.isSettled, true)
        return { run, asked, checkpointId: checkpoint.id }
      }
      const first = await say('q1')
      const late = await say('late')
      assert.deepEqual(late.asked, ['q1', 'late'])
      const second = await say('q2', first.checkpointId)
      assert.deepEqual(second.asked, ['q1', 'q2'])
      const third = await say('q3', second.checkpointId)
      assert.deepEqual(third.asked, ['q1', 'q2', 'q3'])
      const fourth = await say('q4')
      assert.deepEqual(fourth.asked, ['q1', 'q2', 'q4'])
      // The list of runs tells where each of them began.
      const listed = new Map((await client.listRuns(threadId)).map((run) => [run.runId, run.checkpointId]))
      const bases = [first, late, second, third, fourth].map(({ run }) => listed.get(run.runId))
      assert.deepEqual(bases, [null, null, first.checkpointId, second.checkpointId, second.checkpointId])
      assert.deepEqual((await say('q5', randomUUID())).asked, ['q5'])
      assert.equal((await client.fetchCheckpoint(threadId, late.run.runId))?.id, late.checkpointId)
    })

    test('the configuration of a run reaches the graph, stays with the thread and its checkpoints, and null replaces it', async () => {
      const caller = { user_id: 'ada', scopes: ['x'] }
      const configurable = { caller, user_id: 'ada', language: 'de' }
      const first = await begin('whoami', { configurable })
      await untilStatus(first, 'success')
      assert.deepEqual(reportIn(await stateOf(first)), configurable)
      const second = await begin('whoami', { threadId: first.threadId })
      await untilStatus(second, 'success')
      assert.deepEqual(reportIn(await stateOf(second)), configurable)
      const third = await begin('whoami', { threadId: first.threadId, configurable: { caller: null, user_id: null } })
      await untilStatus(third, 'success')
      assert.deepEqual(reportIn(await stateOf(third)), { caller: null, user_id: null, language: 'de' })
      const thread = (await (await raw('GET', `/threads/${first.threadId}`)).json()) as JsonObject
      const kept = (thread.config as { configurable: JsonObject }).configurable
      assert.deepEqual([kept.caller, kept.user_id, kept.language], [null, null, 'de'])
      const history = await raw('POST', `/threads/${first.threadId}/history`, { limit: 20 })
      const checkpoints = (await history.json()) as { metadata: JsonObject }[]
      const metadata = checkpoints.findLast((one) => one.metadata.run_id === first.runId)?.metadata
      assert.deepEqual([metadata?.caller, metadata?.user_id, metadata?.language], [caller, 'ada', 'de'])
    })

    test('a run has the metadata of its thread unless it says otherwise', async () => {
      const threadId = randomUUID()
      assert.equal(await client.ensureThread(threadId, { job_id: 'job-1', owner: 'ada' }), null)
      const inherited = await begin('ok', { threadId })
      await untilStatus(inherited, 'success')
      const replaced = await begin('ok', { threadId, metadata: { job_id: 'job-1', run_seq: 2, owner: null } })
      assert.deepEqual([inherited.metadata.owner, replaced.metadata.owner], ['ada', null])
      const found = await client.searchThreads({ owner: 'ada' }, { limit: 10, offset: 0 })
      assert.deepEqual(
        found.map((one) => [one.threadId, one.metadata.job_id]),
        [[threadId, 'job-1']],
      )
      assert.deepEqual(await client.searchThreads({ owner: 'bob' }, { limit: 10, offset: 0 }), [])
      await untilStatus(replaced, 'success')
    })

    test('an answer reaches the question of the checkpoint that the run names', async () => {
      const paused = await begin('pause')
      await untilStatus(paused, 'success')
      const checkpoint = await client.fetchCheckpoint(paused.threadId, paused.runId)
      assert.equal(checkpoint?.isSettled, true)
      const [asked] = openIn(await stateOf(paused))
      // Another run on the thread, after the question.
      const other = await begin('pause', { threadId: paused.threadId })
      await untilStatus(other, 'success')
      const payload = { command: JsonText.of({ resume: { [asked?.id ?? '']: 'yes' } }) }
      const resumed = await begin('pause', { threadId: paused.threadId, payload, checkpointId: checkpoint.id })
      await untilStatus(resumed, 'success')
      assert.deepEqual(reportIn(await stateOf(resumed)), { title: 'Done', answer: 'yes' })
    })

    test('the metadata of a run is in the list, the lookup and the callback', async () => {
      const run = await begin('ok')
      const callback = await callbackOf(run)
      assert.equal(callback.jobId, 'job-1')
      for (const found of [run, await look(run), ...(await client.listRuns(run.threadId))]) {
        assert.equal(found.metadata.job_id, 'job-1')
        assert.equal(found.metadata.run_seq, 1)
        assert.equal(found.metadata.graph_id, 'ok')
      }
    })

    test('a run created with stream modes can be streamed, replayed and resumed, during the run and after it', async () => {
      const input = { messages: [{ role: 'user', content: 'Hello you' }] }
      const streamModes = ['messages-tuple', 'updates', 'custom'] as const
      const run = await begin('agent', { payload: { input: JsonText.of(input) }, streamModes })
      const read = async (after: string) => {
        const events: RunStreamEvent[] = []
        const { signal } = new AbortController()
        for await (const some of client.streamRun(run.threadId, run.runId, { after, signal })) events.push(...some)
        return events
      }
      const live = await read('-1')
      assert.deepEqual(
        live.map(({ id }) => id),
        live.map((_, n) => String(n)),
      )
      // With subgraphs, the event of a message also names its task: `messages|answer:…`.
      const kindOf = ({ event }: RunStreamEvent) => event.split('|')[0]
      assert.deepEqual([...new Set(live.map(kindOf))], ['metadata', 'messages', 'updates'])
      const messages = live
        .filter((event) => kindOf(event) === 'messages')
        .map(({ data }) => readLiveMessage(JSON.parse(data)))
      assert.equal(messages.map((message) => message?.text ?? '').join(''), 'You said: Hello you')
      assert.deepEqual(
        [...new Set(messages.map((message) => `${message?.role} ${message?.node}`))],
        ['assistant answer'],
      )
      assert.deepEqual(Object.keys(JSON.parse(live.at(-1)?.data ?? '') as object), ['answer'])
      assert.deepEqual(await read('-1'), live)
      assert.deepEqual(await read('0'), live.slice(1))
      const { signal } = new AbortController()
      const unknown: RunStreamEvent[] = []
      for await (const some of client.streamRun(run.threadId, randomUUID(), { after: '-1', signal }))
        unknown.push(...some)
      assert.deepEqual(unknown, [{ id: null, event: 'error', data: '"Run not found"', isCut: false }])
    })

    test('a callback is JSON with any Content-Type; it repeats our token, which we remove before storing', async () => {
      const run = await begin('ok')
      const { path, headers, raw } = await receiver.callbackOf(run.runId)
      assert.equal(path, '/webhooks/agent?token=s3cret')
      assert.equal(headers['content-type'], 'text/plain;charset=UTF-8')
      assert.ok(raw.includes('s3cret'))
      assert.ok(!(await parseCallback(raw)).body.includes('s3cret'))
    })

    test('callback and state of a conversation differ in form, but give the same answer and token counts', async () => {
      const run = await begin('agent', {
        payload: { input: JsonText.of({ messages: [{ role: 'user', content: 'Hello' }] }) },
      })
      const callback = await callbackOf(run)
      const state = await stateOf(run)
      const type = { outputKey: null, usageKey: null }
      assert.ok(state.values && callback.values)
      assert.equal(extractOutput(type, state.values)?.text, '"You said: Hello"')
      assert.equal(extractOutput(type, callback.values)?.text, '"You said: Hello"')
      const tokens = extractTokens(type, state.values)
      assert.ok(tokens.total > 0)
      assert.deepEqual(extractTokens(type, callback.values), tokens)
      const [wrapped, plain] = [valuesOf(callback).messages, valuesOf(state).messages].map(
        (all) => Array.isArray(all) && all.at(-1),
      )
      assert.ok(isJsonObject(wrapped) && isJsonObject(plain))
      assert.deepEqual(wrapped.id, ['langchain_core', 'messages', 'AIMessage'])
      assert.equal(plain.type, 'ai')
    })

    test('a JSON Pointer finds a nested output', async () => {
      const run = await begin('summary', { payload: { input: JsonText.of({ prompt: 'a long text' }) } })
      const { values } = await callbackOf(run)
      assert.ok(values)
      assert.equal(extractOutput({ outputKey: '/result/summary' }, values)?.text, '"In short: a long text"')
    })

    test('a run that throws has the same error text in callback and state, and the values so far', async () => {
      const run = await begin('throw')
      const callback = await callbackOf(run)
      assert.equal(callback.status, 'error')
      assert.equal(callback.error, 'kaboom: upstream 500')
      assert.equal((await look(run)).status, 'error')
      const state = await stateOf(run)
      assert.equal(state.error, callback.error)
      assert.equal(valuesOf(state).draft, 'half a report')
      assert.deepEqual(valuesOf(state), valuesOf(callback))
      assert.deepEqual(state.next, ['fail'])
      const again = await begin('throw', { threadId: run.threadId, payload: { input: JsonText.of(null) } })
      assert.equal((await callbackOf(again)).error, callback.error, 'a run without an input repeats the failed step')
    })

    test('a paused run reports success without an output; only its state shows the pause, and a resume finishes it', async () => {
      const paused = await begin('pause')
      const callback = await callbackOf(paused)
      assert.equal(callback.status, 'success')
      assert.deepEqual(valuesOf(callback), INPUT)
      assert.equal((await look(paused)).status, 'success')
      const asking = await stateOf(paused)
      assert.deepEqual(valuesOf(asking), INPUT)
      assert.deepEqual(asking.next, ['ask'])
      assert.deepEqual(questionsIn(asking), [{ question: 'Publish it?' }])

      const resumed = await resume(paused, 'yes')
      assert.notEqual(resumed.runId, paused.runId)
      assert.deepEqual(valuesOf(await callbackOf(resumed)).report, { title: 'Done', answer: 'yes' })
      const done = await stateOf(resumed)
      assert.deepEqual(valuesOf(done).report, { title: 'Done', answer: 'yes' })
      assert.deepEqual(done.next, [])
      const earlier = await stateOf(paused)
      assert.deepEqual(valuesOf(earlier), INPUT, 'the first run is found in the history')
      assert.deepEqual(
        [earlier.runId, earlier.next, earlier.interrupts],
        [asking.runId, asking.next, asking.interrupts],
      )
    })

    test('the runtime drops a falsy answer unless it is sent with the id of its question', async () => {
      for (const answer of [false, 0, '', null]) {
        const paused = await begin('pause')
        await untilStatus(paused, 'success')
        const dropped = await resume(paused, answer)
        await untilStatus(dropped, 'error')
        const [question] = openIn(await stateOf(paused))
        const resumed = await resume(paused, { [String(question?.id)]: answer })
        await untilStatus(resumed, 'success')
        assert.deepEqual(reportIn(await stateOf(resumed)), { title: 'Done', answer })
      }
    })

    test('questions of parallel nodes are answered together, by their ids', async () => {
      const paused = await begin('ask_both')
      await untilStatus(paused, 'success')
      const questions = openIn(await stateOf(paused))
      assert.deepEqual(questions.map(({ value }) => value.question).sort(), ['Publish it?', 'Under which name?'])
      const resumed = await resume(paused, Object.fromEntries(questions.map(({ id, value }) => [id, value.question])))
      await untilStatus(resumed, 'success')
      const report = reportIn(await stateOf(resumed))
      assert.deepEqual((report as { answers: string[] }).answers.toSorted(), ['Publish it?', 'Under which name?'])
    })

    test('a static breakpoint has no question, and continues with a null input and no command', async () => {
      const paused = await begin('breakpoint')
      await untilStatus(paused, 'success')
      const state = await stateOf(paused)
      assert.deepEqual([state.next, state.interrupts], [['write'], []])
      const resumed = await begin('breakpoint', { threadId: paused.threadId, payload: { input: new JsonText('null') } })
      await untilStatus(resumed, 'success')
      const done = await stateOf(resumed)
      assert.deepEqual([done.next, reportIn(done)], [[], INPUT])
    })

    test('a thread that was deleted has no state, and a run on it is refused', async () => {
      const paused = await begin('pause')
      await untilStatus(paused, 'success')
      assert.equal((await raw('DELETE', `/threads/${paused.threadId}`)).status, 204)
      assert.equal(await client.fetchNewestState(paused.threadId, WHOLE), null)
      assert.equal(await client.fetchRun(paused.threadId, paused.runId), null)
    })

    test('a graph that writes its output before it pauses sends the same callback as a finished graph', async () => {
      const run = await begin('late_key')
      const callback = await callbackOf(run)
      assert.equal(callback.status, 'success')
      assert.deepEqual(valuesOf(callback), { ...INPUT, report: INPUT })
      const state = await stateOf(run)
      assert.deepEqual(state.next, ['ask'])
      assert.deepEqual(questionsIn(state), [{ question: 'Publish it?' }])
    })

    test('a resumed run that asks again in the same step wrote no checkpoint, and its question is found', async () => {
      const paused = await begin('ask_twice')
      await untilStatus(paused, 'success')
      const again = await resume(paused, 'yes')
      await untilStatus(again, 'success')
      const asking = await stateOf(again)
      assert.deepEqual(questionsIn(asking), [{ question: 'Are you sure?' }])
      assert.equal(asking.runId, paused.runId)
      assert.deepEqual(asking.next, [], 'only the question shows that the run is not done')
      const last = await resume(again, 'quite')
      await untilStatus(last, 'success')
      const done = await stateOf(last)
      assert.deepEqual(valuesOf(done).report, { title: 'Asked twice', answers: ['yes', 'quite'] })
      assert.deepEqual(questionsIn(done), [])
      assert.equal(
        await client.fetchState(again.threadId, again.runId, WHOLE),
        null,
        'later checkpoints do not describe this run',
      )
    })

    test('a resumed run that fails in the same step wrote no checkpoint, and its error is found', async () => {
      const paused = await begin('ask_throw')
      await untilStatus(paused, 'success')
      const failed = await resume(paused, 'yes')
      assert.equal((await callbackOf(failed)).error, 'kaboom: after the answer')
      assert.equal((await look(failed)).status, 'error')
      const { error, next, isDone } = await stateOf(failed)
      // The step is not finished, although none of its nodes is next.
      assert.deepEqual({ error, next, isDone }, { error: 'kaboom: after the answer', next: [], isDone: false })
    })

    test('a run cancelled while it runs is interrupted, its callback has no values, and no question is open', async () => {
      const run = await begin('sleep', { payload: { input: JsonText.of({ ms: 600_000 }) } })
      await untilStatus(run, 'running')
      await client.cancelRun(run.threadId, run.runId)
      const callback = await callbackOf(run)
      assert.equal(callback.status, 'interrupted')
      assert.equal(callback.values, null)
      assert.equal(callback.error, null)
      assert.equal((await look(run)).status, 'interrupted')
      const state = await stateOf(run)
      assert.deepEqual(state.next, ['wait'])
      assert.deepEqual(state.interrupts, [])
    })

    test('a run cancelled before it began is interrupted, leaves no state and sends no callback', async () => {
      const threadId = await newThread()
      const wish = { assistant_id: 'ok', input: INPUT, webhook: receiver.url, after_seconds: 600 }
      const { run_id: runId } = await rawJson('POST', `/threads/${threadId}/runs`, wish)
      assert.ok(typeof runId === 'string')
      assert.equal((await client.fetchRun(threadId, runId))?.status, 'pending')
      await client.cancelRun(threadId, runId)
      assert.equal((await client.fetchRun(threadId, runId))?.status, 'interrupted')
      assert.equal(await client.fetchState(threadId, runId, WHOLE), null)
      await callbackOf(await begin('ok'))
      assert.deepEqual(receiver.callbacksOf(runId), [])
    })

    test('a cancel request for an ended or unknown run changes nothing and is no error', async () => {
      const run = await begin('ok')
      await untilStatus(run, 'success')
      await client.cancelRun(run.threadId, run.runId)
      assert.equal((await look(run)).status, 'success')
      await client.cancelRun(run.threadId, randomUUID())
    })

    test('a second run on a busy thread is refused and not stored', async () => {
      const run = await begin('sleep', { payload: { input: JsonText.of({ ms: 600_000 }) } })
      const request = {
        threadId: run.threadId,
        assistantId: 'ok',
        payload: { input: JsonText.of(INPUT) },
        webhook: null,
        metadata: {},
      }
      assert.deepEqual(await client.startRun(request), { busy: true })
      const refusal = await raw('POST', `/threads/${run.threadId}/runs`, { assistant_id: 'ok', input: {} })
      assert.equal(refusal.status, 422)
      assert.equal(await refusal.text(), BUSY)
      assert.equal((await client.listRuns(run.threadId)).length, 1)
      await client.cancelRun(run.threadId, run.runId)
    })

    test('a start on an unknown thread is refused as busy', async () => {
      const request = { assistantId: 'ok', payload: { input: JsonText.of(INPUT) }, webhook: null, metadata: {} }
      assert.deepEqual(await client.startRun({ ...request, threadId: randomUUID() }), { busy: true })
    })

    test('an unknown assistant and a malformed thread are refused with a reason', async () => {
      const request = { payload: { input: JsonText.of(INPUT) }, webhook: null, metadata: {} }
      const unknown = await client.startRun({ ...request, threadId: await newThread(), assistantId: 'unknown' })
      assert.ok('refused' in unknown)
      assert.equal(unknown.refused.status, 404)
      assert.match(unknown.refused.message, /No assistant found for "unknown"/)
      const malformed = client.startRun({ ...request, threadId: 'no-uuid', assistantId: 'ok' })
      await assert.rejects(malformed, /is not a UUID/, 'the client never sends the request')
    })

    test('runs and threads that do not exist are reported as missing', async () => {
      const threadId = await newThread()
      assert.equal(await client.fetchRun(threadId, randomUUID()), null)
      const unknown = randomUUID()
      assert.equal(await client.fetchRun(unknown, randomUUID()), null)
      assert.equal(await client.fetchState(unknown, randomUUID(), WHOLE), null)
      assert.deepEqual(await client.listRuns(unknown), [])
      assert.equal(await client.fetchState(threadId, randomUUID(), WHOLE), null)
    })

    test('a thread that is created again keeps its runs; the newest run is listed first', async () => {
      const first = await begin('ok')
      await untilStatus(first, 'success')
      assert.equal(await client.ensureThread(first.threadId, {}), null)
      const second = await begin('ok', { threadId: first.threadId })
      const listed = await client.listRuns(first.threadId)
      assert.deepEqual(
        listed.map(({ runId }) => runId),
        [second.runId, first.runId],
      )
      await untilStatus(second, 'success')
      const again = await raw('POST', '/threads', { thread_id: first.threadId })
      assert.equal(again.status, 409)
      assert.equal(await again.text(), 'Thread already exists')
    })

    test('a failed callback does not change the run', async () => {
      const run = await begin('ok', { webhook: 'http://127.0.0.1:9/' })
      await untilStatus(run, 'success')
      assert.deepEqual(valuesOf(await stateOf(run)).report, INPUT)
    })

    test('the runtime answers a ping', async () => {
      await client.ping()
      assert.deepEqual(await rawJson('GET', '/ok'), { ok: true })
    })

    test('the answers have exactly the known keys', async () => {
      const run = await begin('pause')
      const { raw: body } = await receiver.callbackOf(run.runId)
      const thread = `/threads/${run.threadId}`
      const state = await rawJson('GET', `${thread}/state`)
      const tasks = state.tasks as JsonObject[]
      const found = await rawJson('GET', `${thread}/runs/${run.runId}`)
      const wanted = { limit: 1, metadata: { run_id: run.runId } }
      const shapes = {
        thread: await rawJson('GET', thread),
        run: found,
        kwargs: found.kwargs as JsonObject,
        callback: JSON.parse(body.toString()) as JsonObject,
        unused: await rawJson('GET', `/threads/${await newThread()}/state`),
        state,
        task: tasks[0] ?? {},
        interrupt: tasks.flatMap(({ interrupts }) => interrupts as JsonObject[])[0] ?? {},
        checkpoint: state.checkpoint as JsonObject,
        history: ((await rawJson('POST', `${thread}/history`, wanted)) as unknown as JsonObject[])[0] ?? {},
      }
      const keys = Object.fromEntries(Object.entries(shapes).map(([what, value]) => [what, Object.keys(value).sort()]))
      assert.deepEqual(keys, KNOWN_KEYS)
      assert.deepEqual(await rawJson('GET', `${thread}/state`), shapes.history)
    })

    test('a run stays running forever after a crash of the runtime, ignores cancellation and sends no callback', async () => {
      const run = await begin('sleep', { payload: { input: JsonText.of({ ms: 600_000 }) } })
      await untilStatus(run, 'running')
      await subject.dieDuring(run)
      assert.equal((await look(run)).status, 'running')
      await client.cancelRun(run.threadId, run.runId)
      assert.equal((await look(run)).status, 'running')
      await callbackOf(await begin('ok'))
      assert.equal((await look(run)).status, 'running')
      assert.deepEqual(receiver.callbacksOf(run.runId), [])
    })
  })
}

const STATE = ['checkpoint', 'created_at', 'metadata', 'next', 'parent_checkpoint', 'tasks', 'values']
const RUN = 'assistant_id created_at kwargs metadata multitask_strategy run_id status thread_id updated_at'.split(' ')
const KNOWN_KEYS = {
  thread: ['config', 'created_at', 'interrupts', 'metadata', 'status', 'thread_id', 'updated_at', 'values'],
  run: RUN,
  kwargs: ['config', 'context', 'input', 'resumable', 'stream_mode', 'subgraphs', 'temporary', 'webhook'],
  callback: [...RUN, 'run_ended_at', 'run_started_at', 'values', 'webhook_sent_at'].sort(),
  unused: STATE.filter((key) => key !== 'metadata'),
  state: STATE,
  task: ['checkpoint', 'error', 'id', 'interrupts', 'name', 'path', 'result', 'state'],
  interrupt: ['id', 'value'],
  checkpoint: ['checkpoint_id', 'checkpoint_map', 'checkpoint_ns', 'thread_id'],
  history: STATE,
}

function clientOf(url: string): RuntimeClient {
  const clock = systemClock
  const breaker = new Breaker({ clock, threshold: 1_000, openMs: 1, maxOpenMs: 1 })
  return new RuntimeClient({ url, apiKey: null, timeoutMs: 10_000, fetch, clock, breaker })
}

const NO_TRACES = { traceId: null, tracerTraceId: null }
const ANY_OUTPUT = wantAll(
  wantedValues({ outputKey: null, usageKey: null }),
  wantedValues({ outputKey: '/result/summary', usageKey: null }),
)

function valuesOf({ values }: { values: JsonPart | null }): JsonObject {
  assert.ok(values)
  return values.parse() as JsonObject
}

function questionsIn({ interrupts }: ThreadState): Json[] {
  const questions = interrupts.map(({ text }) => JSON.parse(text) as Json)
  return questions.map((one) => (isJsonObject(one) ? (one.value ?? null) : null))
}
