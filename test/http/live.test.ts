import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, beforeEach, describe, test } from 'node:test'
import { isWatched } from '../../src/jobs/job.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { assertError } from '../support/assert-error.ts'
import { type JobWorld, RUN_MS, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { type LiveView, openLive } from '../support/live-view.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const newUser = () => `user-${randomUUID()}`
const STREAM = 'GET /threads/{t}/runs/{r}/stream'
const WORDS = Array.from({ length: 20 }, (_, n) => `word${n}`).join(' ')
const say = (text: string, more: object = {}) => ({
  messages: [{ role: 'user', content: 'Hello' }],
  sandbox: { say: text, duration_ms: 2_000, ...more },
})

const views: LiveView[] = []
after(() => {
  for (const view of views) view.close()
})

async function view(world: JobWorld, id: string, sub: string, options: { lastEventId?: string; query?: string } = {}) {
  const opened = await openLive(world.service.url, id, { token: world.token(sub), ...options })
  views.push(opened)
  return opened
}

/** The same once the service follows the run. Before that, it reads the database, while a run could end. */
async function viewJoined(world: JobWorld, id: string, sub: string): Promise<LiveView> {
  const joined = world.calls(STREAM)
  const opened = await view(world, id, sub)
  await until(() => world.calls(STREAM) > joined)
  return opened
}

/** Lets time pass until it holds. */
async function pass(world: JobWorld, holds: () => boolean | Promise<boolean>, stepMs = 50): Promise<void> {
  await until(async () => {
    if (await holds()) return true
    await world.clock.advance(stepMs)
    return holds()
  })
}

/**
 * Lets time pass until the run has ended. The rest of its output then arrives while the clock stands, so that a slow
 * machine does not reach the time at which the service stops waiting for it.
 */
async function watchToEnd(world: JobWorld, id: string, ...viewers: LiveView[]): Promise<void> {
  await pass(world, async () => !isWatched((await world.stored(id)).status))
  await until(() => viewers.every(({ status }) => status !== null))
}

describe('live output', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)
    beforeEach(async () => (await shared()).runtime.setFaults(NO_RUNTIME_FAULTS))

    test('live output arrives word by word while the run works, with its steps and custom events, and ends with the job', async () => {
      const world = await shared()
      const sub = newUser()
      const progress = [{ percent: 10 }, 'half', 12]
      const job = await world.start('agent', { sub, input: say('One two three', { think: 'Hm well', progress }) })
      const viewer = await viewJoined(world, job.id, sub)
      assert.match(String(viewer.headers['content-type']), /^text\/event-stream\b/)
      await pass(world, () => viewer.text.startsWith('One '))
      assert.match((await world.stored(job.id)).status, /processing|generating/)
      await watchToEnd(world, job.id, viewer)
      assert.equal(viewer.status, 'completed')
      assert.deepEqual(viewer.names, [...Array(3).fill('progress'), 'step', ...Array(5).fill('message'), 'step', 'end'])
      assert.deepEqual(viewer.of('progress'), progress)
      assert.deepEqual(viewer.of('step'), [{ node: 'sandbox_work' }, { node: 'answer' }])
      assert.equal(viewer.text, 'One two three')
      assert.equal(viewer.reasoning, 'Hm well')
      const [first] = viewer.of<{ id: string; role: string; node: string; partial: boolean }>('message')
      assert.deepEqual([first?.role, first?.node, first?.partial], ['assistant', 'answer', true])
      assert.equal(new Set(viewer.of<{ id: string }>('message').map(({ id }) => id)).size, 1)
      const done = await world.get(job.id)
      assert.equal(done.output, viewer.text)
      assert.match(viewer.ids[0] ?? '', /^1-\d+$/)
      assert.equal(viewer.ids.at(-1), '1-end')
      const run = world.runtime.recentRuns.find(({ runId }) => runId === done.run_id)
      assert.equal(run?.subgraphs, true, 'the Python server streams sub-agents only if it is asked to')
    })

    test('live output shows the calls of tools piece by piece, and their results', async () => {
      const world = await shared()
      const sub = newUser()
      const tool = { name: 'search', args: { q: 'weather' }, result: 'sunny' }
      const job = await world.start('agent', { sub, input: say('It is sunny', { tool }) })
      const viewer = await view(world, job.id, sub)
      await watchToEnd(world, job.id, viewer)
      const calls = viewer
        .of<{ tool_calls?: { index: number; id?: string; name?: string; args: string }[] }>('message')
        .flatMap(({ tool_calls = [] }) => tool_calls)
      assert.equal(calls[0]?.name, 'search')
      assert.equal(calls.map(({ args }) => args).join(''), JSON.stringify(tool.args))
      const answers = viewer.of<{ role: string; partial: boolean; text: string; tool_call_id: string }>('message')
      const answer = answers.find(({ role }) => role === 'tool')
      assert.deepEqual([answer?.partial, answer?.text, answer?.tool_call_id], [false, 'sunny', calls[0]?.id])
    })

    test('a late viewer gets the earlier output, and all viewers share one stream of the runtime', async () => {
      const world = await shared()
      const sub = newUser()
      const joined = world.calls(STREAM)
      const job = await world.start('agent', { sub, input: say(WORDS) })
      const early = await viewJoined(world, job.id, sub)
      await pass(world, () => early.text.includes('word9 '))
      const late = await view(world, job.id, sub)
      const admin = await openLive(world.service.url, job.id, { token: world.admin })
      views.push(admin)
      await pass(world, () => [early, late, admin].every(({ text }) => text.includes('word15 ')))
      assert.equal(world.calls(STREAM) - joined, 1)
      await watchToEnd(world, job.id, early, late, admin)
      for (const one of [early, late, admin]) assert.equal(one.text, WORDS)
      assert.deepEqual(late.ids, early.ids)
    })

    test('a viewer who reconnects gets the events it has not seen, by header or query, and no event twice', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await world.start('agent', { sub, input: say(WORDS) })
      const first = await viewJoined(world, job.id, sub)
      await pass(world, () => first.text.includes('word5 '))
      first.close()
      await world.clock.advance(300)
      const second = await view(world, job.id, sub, { lastEventId: first.ids.at(-1) ?? '' })
      await pass(world, () => second.text.includes('word11 '))
      second.close()
      const third = await view(world, job.id, sub, { query: `?after=${second.ids.at(-1)}` })
      await watchToEnd(world, job.id, third)
      assert.equal(first.text + second.text + third.text, WORDS)
      assert.ok([first, second, third].every(({ names }) => !names.includes('reset')))
    })

    test('a stream of the runtime that breaks after every event is joined again, and no word is lost or repeated', async () => {
      const world = await shared()
      world.runtime.setFaults({ break_streams: 1 })
      const sub = newUser()
      const joined = world.calls(STREAM)
      const job = await world.start('agent', { sub, input: say(WORDS) })
      const viewer = await viewJoined(world, job.id, sub)
      await pass(world, () => viewer.status !== null, 20)
      assert.equal(viewer.text, WORDS)
      assert.ok(world.calls(STREAM) - joined > 2, 'joined again')
    })

    test('a stream of the runtime that freezes is joined again at the end of the job, and no word is lost', async () => {
      const world = await shared()
      const sub = newUser()
      for (const freezes of [1, 0]) {
        const job = await world.start('agent', { sub, input: say(WORDS) })
        const viewer = await viewJoined(world, job.id, sub)
        await pass(world, () => freezes === 1 || viewer.text !== '')
        world.runtime.setFaults({ freeze_streams: 1 })
        await pass(world, async () => (await world.stored(job.id)).status === 'completed')
        world.runtime.setFaults({ freeze_streams: 0 })
        await pass(world, () => viewer.status !== null)
        assert.equal(viewer.text, WORDS)
        assert.deepEqual(viewer.ids, [...new Set(viewer.ids)])
      }
    })

    test('viewers see the end of a job even if the runtime does not stream', async () => {
      const world = await shared()
      const sub = newUser()
      const runs = [await world.start('report', { sub })]
      world.runtime.setFaults({ refuse_streams: true })
      runs.push(await world.start('agent', { sub, input: say('Unseen') }))
      for (const { id } of runs) {
        const viewer = await view(world, id, sub)
        await pass(world, () => viewer.status !== null)
        assert.deepEqual(viewer.names, ['end'])
        assert.equal(viewer.status, 'completed')
      }
    })

    test('the end of the runtime’s stream causes a check of the job at once, even if its callback is lost', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const sub = newUser()
      const job = await world.start('agent', { sub, input: { ...say('Short'), sandbox: { say: 'Short' } } })
      const viewer = await viewJoined(world, job.id, sub)
      await world.clock.advance(RUN_MS)
      await viewer.ended()
      assert.deepEqual([viewer.text, viewer.status], ['Short', 'completed'])
      assert.equal((await world.stored(job.id)).settled_by, 'read')
    })

    test('a pause ends with awaiting_input, and the run after the answer is viewed by opening again', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await world.start('agent', { sub, input: say('After all', { pause: 'Shall I?' }) })
      const first = await view(world, job.id, sub)
      await watchToEnd(world, job.id, first)
      assert.equal(first.status, 'awaiting_input')
      const again = await view(world, job.id, sub, { lastEventId: first.ids.at(-1) ?? '' })
      await again.ended()
      assert.deepEqual(again.of('end'), [{ status: 'awaiting_input' }])
      const { status } = await world.request('POST', `/jobs/${job.id}/resume`, sub, { body: { input: 'yes' } })
      assert.equal(status, 202)
      await world.quiet()
      const second = await view(world, job.id, sub, { lastEventId: first.ids.at(-1) ?? '' })
      await watchToEnd(world, job.id, second)
      assert.deepEqual([second.text, second.status], ['After all', 'completed'])
      assert.ok(second.ids.every((id) => id.startsWith('2-')))
      assert.ok(!second.names.includes('reset'))
    })

    test('a viewer who left in the middle of an earlier run is reset', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await world.start('agent', { sub, input: say('After all', { pause: 'Shall I?' }) })
      await pass(world, async () => (await world.stored(job.id)).status === 'awaiting_input')
      await world.request('POST', `/jobs/${job.id}/resume`, sub, { body: { input: 'yes' } })
      await world.quiet()
      const viewer = await view(world, job.id, sub, { lastEventId: '1-3' })
      await watchToEnd(world, job.id, viewer)
      assert.deepEqual([viewer.names[0], viewer.ids[0]], ['reset', '2-start'])
      assert.equal(viewer.text, 'After all')
    })

    test('a job that has ended sends end at once', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await world.start('agent', { sub, input: say('Over') })
      await world.request('POST', `/jobs/${job.id}/cancel`, sub)
      await pass(world, async () => (await world.stored(job.id)).status === 'cancelled')
      const viewer = await view(world, job.id, sub, { lastEventId: '1-2' })
      await viewer.ended()
      assert.deepEqual([viewer.names, viewer.status], [['end'], 'cancelled'])
    })

    test('a job can be viewed before its run has started', async () => {
      const world = await shared()
      world.runtime.setFaults({ start_failure: 1 })
      const sub = newUser()
      const job = await world.start('agent', { sub, input: say('At last') })
      const viewer = await view(world, job.id, sub)
      await world.clock.advance(1_000)
      world.runtime.setFaults({ start_failure: 0 })
      await watchToEnd(world, job.id, viewer)
      assert.deepEqual([viewer.text, viewer.status], ['At last', 'completed'])
    })

    test('another user’s job does not exist, and a bad cursor is refused', async () => {
      const world = await shared()
      const sub = newUser()
      const { id } = await world.start('agent', { sub, input: say('Mine') })
      const path = `/jobs/${id}/live`
      const gone = { status: 404, code: 'not_found', message: 'No such job' } as const
      assertError(world.service, await world.request('GET', path, newUser()), gone)
      assertError(world.service, await world.request('GET', '/jobs/job_x/live', sub), gone)
      const bad = { status: 400, code: 'invalid_request' } as const
      for (const cursor of ['x', '1-', '1-2-3-4', '-1', '1-1.5.5', `1-${'9'.repeat(40)}`]) {
        const byHeader = await world.request('GET', path, sub, { headers: { 'last-event-id': cursor } })
        assertError(world.service, byHeader, { ...bad, message: 'Last-Event-ID must be the id of an event' })
        const byQuery = await world.request('GET', `${path}?after=${cursor}`, sub)
        assertError(world.service, byQuery, { ...bad, message: 'querystring/after must be the id of an event' })
      }
    })

    test('the stream of the runtime is closed a few seconds after the last viewer left', async () => {
      const world = await startJobWorld(under)
      const sub = newUser()
      const job = await world.start('agent', { sub, input: say(WORDS, { duration_ms: 60_000 }) })
      const viewer = await view(world, job.id, sub)
      const { live } = world.service.services
      await pass(world, () => live.upstreams === 1)
      assert.equal(live.viewers, 1)
      viewer.close()
      await until(() => live.viewers === 0)
      assert.equal(live.upstreams, 1)
      for (let second = 0; second < 7; second++) await world.clock.advance(1_000)
      await until(() => live.upstreams === 0)
      assert.deepEqual([live.bytes, live.jobIds], [0, []])
    })

    test('a comment comes every 15 s, and the stream ends with the token', async () => {
      const world = await startJobWorld(under)
      const sub = newUser()
      const job = await world.start('agent', { sub, input: say(WORDS, { duration_ms: 600_000 }) })
      const token = world.service.tokenFor({ sub, expiresInSeconds: 40 })
      const viewer = await openLive(world.service.url, job.id, { token })
      views.push(viewer)
      await pass(world, () => viewer.isOver, 1_000)
      assert.ok(viewer.comments >= 1, String(viewer.comments))
      assert.equal(viewer.status, null)
      assert.ok(Number(viewer.retryMs) >= 1_000)
    })
  })
})
