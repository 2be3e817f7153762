import assert from 'node:assert/strict'
import { after, afterEach, test } from 'node:test'
import { type ApiClient, type ClientOptions, createClient } from '../../client/src/client.ts'
import { closeFetchConnections } from '../support/fetch-connections.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { startScriptedServer } from '../support/scripted-server.ts'
import { until } from '../support/until.ts'

/** The part of a page's document that the client reads. */
class Tab extends EventTarget {
  hidden = false

  show(isVisible: boolean): void {
    this.hidden = !isVisible
    this.dispatchEvent(new Event('visibilitychange'))
  }
}

const stops: AbortController[] = []
afterEach(() => {
  for (const stop of stops.splice(0)) stop.abort()
  Object.assign(globalThis, { document: undefined })
})
after(closeFetchConnections)

function event(id: number): string {
  const body = { id: String(id), type: 'job.updated', created_at: '2026-01-01T00:00:00.000Z', data: {} }
  return `id: ${id}\nevent: job.updated\ndata: ${JSON.stringify(body)}\n\n`
}

async function openTab(options: Partial<ClientOptions> & { isHidden?: boolean } = {}) {
  const { isHidden = false, ...own } = options
  const tab = new Tab()
  tab.hidden = isHidden
  Object.assign(globalThis, { document: tab })
  const state = { open: 0 }
  const server = await startScriptedServer((response, { headers }) => {
    state.open += 1
    response.on('close', () => {
      state.open -= 1
    })
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(event(Number(headers['last-event-id'] ?? 0) + 1))
  })
  const clock = new ManualClock()
  const seen: string[] = []
  const follow = async (api: ApiClient, signal: AbortSignal) => {
    for await (const { id } of api.events({ signal })) seen.push(id)
  }
  const stop = new AbortController()
  stops.push(stop)
  const following = follow(createClient({ url: server.url, token: 'a-token', clock, ...own }), stop.signal)
  return { tab, state, server, clock, seen, stop, following }
}

test('a hidden tab closes its stream after two seconds, and resumes after its last event when it is shown', async () => {
  const { tab, state, server, clock, seen, stop, following } = await openTab()
  await until(() => seen.length === 1)
  tab.show(false)
  await clock.advance(1_000)
  tab.show(true)
  await clock.advance(5_000)
  assert.equal(server.requests.length, 1, 'a tab that is hidden for a moment keeps its stream')
  tab.show(false)
  await clock.advance(2_000)
  await until(() => state.open === 0)
  await clock.advance(600_000)
  assert.equal(server.requests.length, 1, 'a hidden tab opens no stream')
  tab.show(true)
  await until(() => seen.length === 2)
  assert.deepEqual(seen, ['1', '2'])
  stop.abort()
  await following
})

test('a tab that is opened in the background has no stream until it is shown', async () => {
  const { tab, server, clock, seen, stop, following } = await openTab({ isHidden: true })
  await clock.advance(60_000)
  assert.equal(server.requests.length, 0)
  tab.show(true)
  await until(() => seen.length === 1)
  tab.show(false)
  await clock.advance(2_000)
  stop.abort()
  await following
})

test('with streamsWhileHidden a hidden tab keeps its stream', async () => {
  const { tab, state, clock, seen } = await openTab({ streamsWhileHidden: true })
  await until(() => seen.length === 1)
  tab.show(false)
  await clock.advance(30_000)
  assert.equal(state.open, 1)
})
