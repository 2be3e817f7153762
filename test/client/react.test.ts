import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { createElement } from 'react'
import { renderToString } from 'react-dom/server'
import { type ApiClient, createClient } from '../../client/src/client.ts'
import { useEvents, useJob, useJobs, useLive, useStartJob } from '../../client/src/react/hooks.ts'
import { Store, type StoreKind } from '../../client/src/react/store.ts'
import { jobsStore, liveStore } from '../../client/src/react/stores.ts'
import { needsChromium, openPage } from '../support/browser.ts'
import { startJobWorld } from '../support/job-world.ts'
import { overTime } from '../support/over-time.ts'
import { bundlePage, servePage } from '../support/page-site.ts'
import { QuickClock, type ScriptedAnswer, startScriptedServer } from '../support/scripted-server.ts'
import { forEachVariant } from '../support/service.ts'
import { until } from '../support/until.ts'

describe('the hooks', () => {
  test('rendering on a server sends no request and stores nothing', (t) => {
    const keys: unknown[] = []
    const { set } = Map.prototype
    t.mock.method(Map.prototype, 'set', function (this: Map<unknown, unknown>, key: unknown, value: unknown) {
      keys.push(key)
      return set.call(this, key, value)
    })
    const api = createClient({
      url: 'http://127.0.0.1:1',
      fetch: () => assert.fail('A server render asked the service'),
    })
    function View() {
      const { isLoading } = useJob(api, 'job_1')
      const { text } = useLive(api, 'job_1')
      const { jobs } = useJobs(api, { status: 'failed' })
      const { isPending } = useStartJob(api, 'report')
      useEvents(api, () => assert.fail('A server render got an event'))
      return createElement('p', null, JSON.stringify({ isLoading, text, jobs, isPending }))
    }
    const shown = renderToString(createElement(View)).replaceAll('&quot;', '"')
    assert.equal(shown, '<p>{"isLoading":true,"text":"","jobs":[],"isPending":false}</p>')
    assert.deepEqual(
      keys.filter((key) => /^(job|live|jobs) /.test(String(key))),
      [],
    )
  })

  test('useJob without an id shows nothing and does not load', () => {
    const api = createClient({ url: 'http://127.0.0.1:1' })
    const View = ({ id }: { id: string | null | undefined }) =>
      createElement('p', null, String(useJob(api, id).isLoading))
    for (const id of [null, undefined]) assert.equal(renderToString(createElement(View, { id })), '<p>false</p>')
  })

  test('many changes in one task notify the listeners once, and the state is current at once', async () => {
    const store = new Store({ initial: { count: 0 }, run: async () => {} })
    const seen: number[] = []
    const leave = store.subscribe(() => seen.push(store.get().count))
    for (const count of [1, 2, 3]) store.set({ count })
    assert.equal(store.get().count, 3)
    await until(() => seen.length > 0)
    assert.deepEqual(seen, [3])
    store.set({ count: 4 })
    await until(() => seen.length > 1)
    assert.deepEqual(seen, [3, 4])
    leave()
  })

  test('a store without listeners has no timer', async () => {
    const timers = () => process.getActiveResourcesInfo().filter((type) => type === 'Timeout').length
    const before = timers()
    const store = new Store({ initial: { count: 0 }, run: async () => {} })
    const leave = store.subscribe(() => assert.fail('notified after it left'))
    store.set({ count: 1 })
    assert.equal(timers(), before + 1)
    leave()
    await Promise.resolve()
    store.set({ count: 2 })
    assert.equal(timers(), before)
  })

  test('a store works once for all its listeners, survives a quick remount, and stops after the last listener', async () => {
    const starts: AbortSignal[] = []
    const store = new Store({ initial: {}, run: async (_store, signal) => void starts.push(signal) })
    const leave = [store.subscribe(() => {}), store.subscribe(() => {})]
    for (const one of leave) one()
    const again = store.subscribe(() => {})
    await new Promise(setImmediate)
    assert.equal(starts.length, 1)
    assert.equal(starts[0]?.aborted, false)
    again()
    await new Promise(setImmediate)
    assert.equal(starts[0]?.aborted, true)
    store.subscribe(() => {})
    assert.equal(starts.length, 2)
  })

  /** The states of a store, with a service that answers from this script. */
  async function show<State>(answer: ScriptedAnswer, kindOf: (api: ApiClient) => StoreKind<State>) {
    const server = await startScriptedServer(answer)
    const api = createClient({ url: server.url, token: 'a-token', clock: new QuickClock(), random: () => 1 })
    const store = new Store(kindOf(api))
    const seen: State[] = []
    const leave = store.subscribe(() => seen.push(store.get()))
    return { get: () => store.get(), seen, leave }
  }
  const json = (status: number, body: object): ScriptedAnswer => {
    return (response) => response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
  }
  const opened: ScriptedAnswer = (response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(':\n\n')
  }
  const refused = json(401, { error: { code: 'unauthorized', message: 'Expired', requestId: 'r' } })
  const choose = (pick: (path: string) => ScriptedAnswer): ScriptedAnswer => {
    return (response, request) => {
      const answer = pick(request.path)
      if (typeof answer === 'function') answer(response, request)
    }
  }

  test('useLive shows a run that began and paused between two reads of the job', async () => {
    let reads = 0
    const job = () => ({
      id: 'job_1',
      status: reads < 4 ? 'awaiting_input' : 'completed',
      run_id: reads < 2 ? 'run_1' : 'run_2',
    })
    const live: ScriptedAnswer = (response) => {
      const part = (id: string, event: string, data: object) =>
        response.write(`id: ${id}\nevent: ${event}\ndata: ${JSON.stringify(data)}\n\n`)
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      const isSecond = reads >= 2 && reads < 4
      if (isSecond) part('2-1', 'message', { id: 'm', role: 'assistant', node: 'n', partial: true, text: 'second' })
      part(`${reads < 2 ? 1 : 2}-end`, 'end', { status: job().status })
    }
    const read: ScriptedAnswer = (response, request) => {
      reads += 1
      const answer = json(200, job())
      if (typeof answer === 'function') answer(response, request)
    }
    const pick = (path: string) => (path.endsWith('/live') ? live : path === '/v1/events' ? opened : read)
    const { get, leave } = await show(choose(pick), (api) => liveStore(api.context, 'job_1'))
    await until(() => get().status === 'completed')
    assert.equal(get().text, 'second')
    leave()
  })

  test('useLive renders once for all parts that arrive together, up to the last one', async () => {
    const count = 5_000
    const live: ScriptedAnswer = (response) => {
      const part = (id: string, event: string, data: object) =>
        `id: ${id}\nevent: ${event}\ndata: ${JSON.stringify(data)}\n\n`
      const piece = { id: 'm', role: 'assistant', node: 'n', partial: true, text: 'x' }
      const parts = Array.from({ length: count }, (_, place) => part(`1-${place}`, 'message', piece))
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write([...parts, part('1-end', 'end', { status: 'completed' })].join(''))
    }
    const { seen, leave } = await show(live, (api) => liveStore(api.context, 'job_1'))
    await until(() => seen.at(-1)?.status === 'completed')
    assert.equal(seen.at(-1)?.text.length, count)
    assert.ok(seen.length < count / 10, `${seen.length} renders`)
    leave()
  })

  test('useJobs recovers by itself when the user signs in again after the session ended', async () => {
    let refusals = 4
    const page = json(200, { data: [{ id: 'job_1' }], has_more: false, next_cursor: null })
    const pick = (path: string) => (refusals-- > 0 ? refused : path === '/v1/events' ? opened : page)
    const { get, leave } = await show(choose(pick), (api) => jobsStore(api.context, {}))
    await until(() => get().jobs.length === 1)
    assert.equal(get().error, undefined)
    leave()
  })

  describe('in a real browser, in strict mode, from another origin', needsChromium(), () => {
    let script = ''
    before(() => {
      script = bundlePage(new URL('./hooks-page.ts', import.meta.url))
    })

    test('the newer of two starts that overlap sets the state, in whatever order they end', async () => {
      const { url } = await servePage(bundlePage(new URL('./start-job-page.ts', import.meta.url)))
      const { page, complaints } = await openPage(url)
      const click = (id: string) => page.locator(`#${id}`).click()
      const shows = (state: string) => page.locator('#state').getByText(state, { exact: true }).waitFor()
      await click('start')
      await click('start')
      await shows('undefined undefined pending, 0 ended')
      await click('answer-1')
      await shows('job_1 undefined idle, 1 ended')
      await click('answer-0')
      await shows('job_1 undefined idle, 2 ended')
      await click('start')
      await shows('job_1 undefined pending, 2 ended')
      await click('fail-2')
      await shows('job_1 Call 2 failed idle, 3 ended')
      await click('start')
      await click('start')
      await click('fail-3')
      await shows('job_1 undefined pending, 4 ended')
      await click('answer-4')
      await shows('job_4 undefined idle, 5 ended')
      assert.deepEqual(complaints, [])
    })

    forEachVariant((under) => {
      test('the hooks start a job, show it live and stored, list it, and get its events', async () => {
        const page = await servePage(script)
        const world = await startJobWorld(under, { env: { CORS_ORIGINS: page.url } })
        const settings = encodeURIComponent(JSON.stringify({ url: world.service.url, token: world.token('ada') }))
        const { page: browser, complaints } = await openPage(`${page.url}/#${settings}`)
        await browser.locator('#start').click()
        // The clock stands until the page views the run: a slow page would come after its end.
        await until(() => world.service.services.live.viewers > 0)
        const text = (id: string) => browser.locator(`#${id}`).first()
        await overTime(world, text('status').getByText('completed').waitFor())
        await overTime(world, text('jobs').getByText('agent completed').waitFor())
        await overTime(world, text('events').getByText('job.completed').waitFor())
        assert.equal(await text('output').textContent(), '"one two three"')
        await overTime(world, text('live-status').getByText('completed').waitFor())
        assert.equal(await text('live').textContent(), 'one two three')
        const second = browser.locator('#twice')
        await overTime(world, second.locator('#live-status').getByText('completed').waitFor())
        assert.equal(await second.locator('#live').textContent(), 'one two three')
        const events = (await text('events').textContent())?.split(',') ?? []
        assert.equal(events.filter((type) => type === 'job.completed').length, 1)
        await browser.locator('#toggle').click()
        await browser.locator('#toggle').click()
        await overTime(world, text('status').getByText('completed').waitFor())
        // The client closes a live stream after its end.
        assert.deepEqual(
          complaints.filter((one) => !/^failed to get \S+\/live$/.test(one)),
          [],
        )
      })
    })
  })
})
