import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { writeCodeOf } from '../support/doc-code.ts'
import { closeFetchConnections } from '../support/fetch-connections.ts'
import { startJobWorld } from '../support/job-world.ts'
import { overTime } from '../support/over-time.ts'
import { type ScriptedAnswer, type ScriptedServer, startScriptedServer } from '../support/scripted-server.ts'
import { forEachVariant } from '../support/service.ts'
import { until } from '../support/until.ts'

interface StreamItem {
  id: string
  event: string
  data: { data?: { job_id: string } }
}
interface Follow {
  url: string
  getToken: (request: { refresh: boolean }) => string
  signal: AbortSignal
  lastId?: string
}
interface Reader {
  followStream(options: Follow): AsyncGenerator<StreamItem>
}
interface Uses {
  followMyEvents(options: Omit<Follow, 'url'> & { api: string; screen: object }): Promise<void>
  showLive(options: Omit<Follow, 'url'> & { api: string; jobId: string; show: (text: string) => void }): Promise<string>
}

/** Replaces the reader's timers: pauses end at once and are recorded, and a test triggers the watchdog. */
const timers = {
  pauses: [] as number[],
  watchdogs: new Set<() => void>(),
  setTimeout(wake: () => void, ms: number): unknown {
    if (ms === 45_000) timers.watchdogs.add(wake)
    else {
      timers.pauses.push(ms)
      setImmediate(wake)
    }
    return wake
  },
  clearTimeout(timer: () => void): void {
    timers.watchdogs.delete(timer)
  },
}
Object.assign(globalThis, { readerTimers: timers })

const folder = writeCodeOf('docs/without-the-client.md', (code, name) =>
  name === 'follow-stream.js' ? `const { setTimeout, clearTimeout } = globalThis.readerTimers\n${code}` : code,
)
const load = <Module>(name: string): Promise<Module> => import(pathToFileURL(join(folder, name)).href)
const { followStream } = await load<Reader>('follow-stream.js')
const { followMyEvents, showLive } = await load<Uses>('use-it.js')
after(closeFetchConnections)

const refusal = (status: number, headers = {}): ScriptedAnswer => ({ status, headers, body: { error: {} } })

function stream(text: string, { ends = false } = {}): ScriptedAnswer {
  return (response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(text)
    if (ends) response.end()
  }
}

const event = (id: number) => `id: ${id}\nevent: job.updated\ndata: {"n":${id}}\n\n`
const cursors = ({ requests }: ScriptedServer) => requests.map(({ headers }) => headers['last-event-id'] ?? null)

/** The ids of the first events of a scripted service. */
async function read(server: ScriptedServer, count: number, getToken: Follow['getToken'] = () => 'a-token') {
  timers.pauses = []
  const ids: string[] = []
  for await (const { id } of followStream({ url: server.url, getToken, signal: new AbortController().signal })) {
    ids.push(id)
    if (ids.length === count) break
  }
  return ids
}

describe('the documented reader', () => {
  test('the reader resumes after each break at the last id, also if the id came without an event', async () => {
    const server = await startScriptedServer(
      stream(`:\n\n${event(1)}id: 7\n\n`, { ends: true }),
      (response) => response.destroy(),
      stream(event(8)),
    )
    assert.deepEqual(await read(server, 2), ['1', '8'])
    assert.deepEqual(cursors(server), [null, '7', '7'])
  })

  test('the reader fetches a new token after a 401 and continues; it stops at the second 401', async () => {
    const server = await startScriptedServer(refusal(401), stream(event(1), { ends: true }), refusal(401))
    const asked: boolean[] = []
    const getToken = ({ refresh }: { refresh: boolean }) => {
      asked.push(refresh)
      return refresh ? 'fresh' : 'old'
    }
    await assert.rejects(read(server, 2, getToken), { status: 401 })
    assert.deepEqual(asked, [false, true, false, true])
    assert.deepEqual(
      server.requests.map(({ headers }) => headers.authorization),
      ['Bearer old', 'Bearer fresh', 'Bearer old', 'Bearer fresh'],
    )
  })

  test('the reader closes a connection that is silent for 45 s, and resumes on another', async () => {
    const server = await startScriptedServer(stream(event(1)), stream(event(2)))
    const events = followStream({ url: server.url, getToken: () => 't', signal: new AbortController().signal })
    assert.equal((await events.next()).value.id, '1')
    assert.equal(timers.watchdogs.size, 0, 'a slow handler does not count as silence')
    const second = events.next()
    assert.equal(timers.watchdogs.size, 1)
    for (const runOut of timers.watchdogs) runOut()
    assert.equal((await second).value.id, '2')
    await events.return(undefined)
    assert.deepEqual(cursors(server), [null, '1'])
    assert.equal(timers.watchdogs.size, 0, 'the watchdog ends with the loop')
  })

  test('the reader waits as Retry-After and retry say, and longer after each failure', async () => {
    const server = await startScriptedServer(
      refusal(429, { 'retry-after': '7' }),
      refusal(503),
      stream(`${event(1)}retry: 9000\n\n`, { ends: true }),
      stream(event(2)),
    )
    assert.deepEqual(await read(server, 2), ['1', '2'])
    const [afterBusy = 0, afterFault = 0, afterEnd = 0] = timers.pauses
    assert.ok(afterBusy >= 8_000 && afterBusy <= 9_000, `${afterBusy}`)
    assert.ok(afterFault >= 2_000 && afterFault <= 4_000, `${afterFault}`)
    assert.ok(afterEnd >= 4_500 && afterEnd <= 9_000, `${afterEnd}`)
  })

  for (const status of [400, 403, 404]) {
    test(`the reader stops at ${status}, because a retry would not help`, async () => {
      const server = await startScriptedServer(refusal(status))
      await assert.rejects(read(server, 1), { status })
      assert.equal(server.requests.length, 1)
    })
  }

  test('an aborted reader ends without an error', async () => {
    const server = await startScriptedServer(stream(event(1)))
    const stop = new AbortController()
    for await (const _ of followStream({ url: server.url, getToken: () => 't', signal: stop.signal })) stop.abort()
    assert.equal(server.requests.length, 1)
  })

  test('the reader shows an empty text for a whole message that only calls a tool', async () => {
    const message = { id: 'm1', role: 'assistant', node: 'n', partial: false, tool_calls: [] }
    const part = (id: string, name: string, data: object) =>
      `id: ${id}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`
    const text = part('1-1', 'message', message) + part('1-end', 'end', { status: 'completed' })
    const { url: api } = await startScriptedServer(stream(text))
    const shown: string[] = []
    const { signal } = new AbortController()
    await showLive({ api, getToken: () => 't', signal, jobId: 'job_1', show: (words) => shown.push(words) })
    assert.deepEqual(shown, [''])
  })

  forEachVariant((under) => {
    test('the reader shows the events and the live words of a job of the real service', async () => {
      const world = await startJobWorld(under)
      const stop = new AbortController()
      const common = { api: world.service.url, getToken: () => world.token('ada'), signal: stop.signal }
      const reloaded: string[] = []
      const screen = { reloadEverything: () => {}, reloadJob: (id: string) => reloaded.push(id) }
      const following = followMyEvents({ ...common, screen, lastId: '0' })
      const sandbox = { say: 'one two three', duration_ms: 1_000 }
      const { id } = await world.start('agent', { input: { messages: [], sandbox } })
      const shown: string[] = []
      const status = await overTime(world, showLive({ ...common, jobId: id, show: (text) => shown.push(text) }))
      assert.equal(status, 'completed')
      assert.deepEqual([shown[0], shown.at(-1)], ['one ', 'one two three'])
      await until(() => reloaded.includes(id))
      stop.abort()
      await following
    })
  })
})
