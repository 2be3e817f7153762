import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { describe, test } from 'node:test'
import { type ClientOptions, createClient } from '../../client/src/client.ts'
import { SseParser } from '../../client/src/streams/sse-parser.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { QuickClock, type ScriptedAnswer, type SeenRequest, startScriptedServer } from '../support/scripted-server.ts'
import { until } from '../support/until.ts'

/** A stream with these blocks. It stays open if `ends` is false. */
function stream(blocks: string[], { ends = false } = {}): ScriptedAnswer {
  return (response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
    response.write(`:\n\n${blocks.join('')}`)
    if (ends) response.end()
  }
}

function event(id: number, type = 'job.updated', data: object = { job_id: 'job_1' }): string {
  const body = { id: String(id), type, created_at: '2026-01-01T00:00:00.000Z', data }
  return `id: ${id}\nevent: ${type}\ndata: ${JSON.stringify(body)}\n\n`
}

const unauthorized: ScriptedAnswer = {
  status: 401,
  body: { error: { code: 'unauthorized', message: 'Invalid or expired token', requestId: 'r' } },
}

async function clientOf(script: ScriptedAnswer[], options: Partial<ClientOptions> = {}) {
  const server = await startScriptedServer(...script)
  const clock = new QuickClock()
  const api = createClient({ url: server.url, token: 'a-token', clock, random: () => 1, ...options })
  return { api, server, clock }
}

const cursorsOf = (requests: SeenRequest[]) => requests.map(({ headers }) => headers['last-event-id'] ?? null)

async function take(events: AsyncIterable<{ id: string }>, count: number): Promise<string[]> {
  const ids: string[] = []
  for await (const { id } of events) {
    ids.push(id)
    if (ids.length === count) break
  }
  return ids
}

describe('a stream of events', () => {
  test('a stream of events resumes after each break at the last id, also if the id came without an event', async () => {
    const { api, server } = await clientOf([
      stream([event(1), event(2)], { ends: true }),
      stream(['id: 9\n\n'], { ends: true }),
      (response) => response.destroy(),
      stream([event(10)]),
    ])
    assert.deepEqual(await take(api.events(), 3), ['1', '2', '10'])
    assert.deepEqual(cursorsOf(server.requests), [null, '2', '9', '9'])
  })

  test('a stream of events waits as long as retry and Retry-After say', async () => {
    const busy: ScriptedAnswer = {
      status: 503,
      headers: { 'retry-after': '12' },
      body: { detail: { code: 'service_unavailable', message: 'Too many open streams' } },
    }
    const { api, clock } = await clientOf([
      stream(['retry: 2500\n\n', event(1)], { ends: true }),
      busy,
      stream([event(2)]),
    ])
    assert.deepEqual(await take(api.events(), 2), ['1', '2'])
    assert.deepEqual(clock.pauses.slice(0, 2), [2_500, 12_000 + 5_000])
  })

  test('a stream that breaks within a block waits as long as the retry of that block says', async () => {
    const { api, clock } = await clientOf([
      stream([event(1), 'retry: 2500\nretry: soon\ndata: '], { ends: true }),
      stream([event(2)]),
    ])
    assert.deepEqual(await take(api.events(), 2), ['1', '2'])
    assert.deepEqual(clock.pauses.slice(0, 1), [2_500])
  })

  test('a 500 is retried with backoff, with an error envelope and without', async () => {
    const failed = (body: unknown) => ({ status: 500, body })
    const { api, clock } = await clientOf([
      stream([event(1)], { ends: true }),
      failed({ error: { code: 'internal_error', message: 'Oops', requestId: 'r' } }),
      failed('<h1>Oops</h1>'),
      stream([event(2)]),
    ])
    assert.deepEqual(await take(api.events(), 2), ['1', '2'])
    assert.deepEqual(clock.pauses.slice(0, 3), [1_000, 2_000, 4_000])
  })

  test('a refused stream is opened again after a pause, for the remaining listeners', async () => {
    const clock = new ManualClock()
    const { api, server } = await clientOf([unauthorized, stream([event(1)])], { clock })
    const seen: unknown[] = []
    const leave = api.context.events.listen({
      onEvent: ({ id }) => seen.push(id),
      onError: (error) => seen.push((error as { code: string }).code),
    })
    await assert.rejects(api.events().next(), { code: 'unauthorized' })
    await until(() => clock.sleeping > 0)
    await clock.advance(14_000)
    assert.equal(server.requests.length, 1)
    await clock.advance(1_000)
    await until(() => seen.length === 2)
    assert.deepEqual(seen, ['unauthorized', '1'])
    leave()
    await clock.advance(1_000)
  })

  test('a refused stream that is opened again continues after the last id, so no event is lost', async () => {
    const { api, server } = await clientOf([stream(['id: 4\n\n'], { ends: true }), unauthorized, stream([event(5)])])
    const seen: unknown[] = []
    const leave = api.context.events.listen({
      onEvent: ({ id }) => seen.push(id),
      onError: (error) => seen.push((error as { code: string }).code),
    })
    await until(() => seen.length === 2)
    leave()
    assert.deepEqual(seen, ['unauthorized', '5'])
    assert.deepEqual(cursorsOf(server.requests), [null, '4', '4'])
  })

  test("a proxy's page in place of a stream that was open counts as an outage", async () => {
    const { api, server, clock } = await clientOf([
      stream([event(1)], { ends: true }),
      { status: 404, body: '<h1>Not found</h1>' },
      { status: 200, body: '<h1>We are back soon</h1>' },
      stream([event(2)]),
    ])
    assert.deepEqual(await take(api.events(), 2), ['1', '2'])
    assert.deepEqual(cursorsOf(server.requests), [null, '1', '1', '1'])
    assert.deepEqual(clock.pauses.slice(0, 3), [1_000, 2_000, 4_000])
  })

  test('a token provider that throws is an outage of an open stream', async () => {
    let calls = 0
    const token = () => {
      calls += 1
      if (calls === 2) throw new Error('offline')
      return 'a-token'
    }
    const { api, server } = await clientOf([stream([event(1)], { ends: true }), stream([event(2)])], { token })
    assert.deepEqual(await take(api.events(), 2), ['1', '2'])
    assert.equal(calls, 3)
    assert.equal(server.requests.length, 2)
  })

  test('a connection that is silent for 45 s is replaced, and no event is lost', async () => {
    const clock = new ManualClock()
    const { api, server } = await clientOf([stream([event(1)]), stream([event(2)])], { clock })
    const events = api.events()
    assert.equal((await events.next()).value?.id, '1')
    const second = events.next()
    await until(() => clock.sleeping > 0)
    await clock.advance(44_000)
    assert.equal(server.requests.length, 1)
    await clock.advance(1_000)
    await until(() => clock.sleeping > 0)
    await clock.advance(5_000)
    assert.equal((await second).value?.id, '2')
    assert.deepEqual(cursorsOf(server.requests), [null, '1'])
    await events.return(undefined)
  })

  test('a connection to a server that never answers is replaced too', async () => {
    const clock = new ManualClock()
    const { api, server } = await clientOf([() => {}, stream([event(1)])], { clock })
    const events = api.events()
    const first = events.next()
    await until(() => server.requests.length === 1)
    await clock.advance(45_000)
    await until(() => clock.sleeping > 0)
    await clock.advance(5_000)
    assert.equal((await first).value?.id, '1')
    await events.return(undefined)
  })

  test('an expired token is refreshed for the next connection, a refused token only once', async () => {
    const asked: boolean[] = []
    let count = 0
    const { api, server } = await clientOf(
      [stream([event(1)], { ends: true }), unauthorized, stream([event(2)], { ends: true }), unauthorized],
      {
        token: ({ refresh }) => {
          asked.push(refresh)
          return refresh ? `token-${++count}` : `token-${count}`
        },
      },
    )
    const events = api.events()
    assert.deepEqual([(await events.next()).value?.id, (await events.next()).value?.id], ['1', '2'])
    await assert.rejects(events.next(), { code: 'unauthorized', status: 401 })
    assert.deepEqual(
      server.requests.map(({ headers }) => headers.authorization),
      ['Bearer token-0', 'Bearer token-0', 'Bearer token-1', 'Bearer token-1', 'Bearer token-2'],
    )
    assert.equal(asked.filter(Boolean).length, 2)
  })

  test('a reset is passed on, and the stream continues', async () => {
    const { api } = await clientOf([stream([event(5, 'reset', {}), event(6)])])
    const events = api.events()
    assert.equal((await events.next()).value?.type, 'reset')
    assert.equal((await events.next()).value?.id, '6')
    await events.return(undefined)
  })

  test('all loops of a client share one connection, which closes after the last loop', async () => {
    const open = new Set<ServerResponse>()
    const { api, server } = await clientOf([
      (response) => {
        open.add(response)
        response.once('close', () => open.delete(response))
        response.writeHead(200, { 'content-type': 'text/event-stream' })
        response.write(event(1))
      },
    ])
    const loops = [api.events(), api.events(), api.events()]
    await Promise.all(loops.map((loop) => loop.next()))
    assert.equal(server.requests.length, 1)
    await Promise.all(loops.map((loop) => loop.return(undefined)))
    await until(() => open.size === 0)
  })

  test('a loop with a stored cursor has its own connection, begins there and reports every id', async () => {
    const { api, server } = await clientOf([stream([event(8), 'id: 12\n\n', event(13)])])
    const places: string[] = []
    assert.deepEqual(await take(api.events({ after: '7', onCursor: (id) => places.push(id) }), 2), ['8', '13'])
    assert.deepEqual(cursorsOf(server.requests), ['7'])
    assert.deepEqual(places, ['8', '12'])
  })

  test('an error of onCursor ends the loop and reaches the app', async () => {
    const { api, server } = await clientOf([stream([event(1), event(2)])])
    const full = new Error('The storage is full')
    const events = api.events({
      onCursor: () => {
        throw full
      },
    })
    assert.equal((await events.next()).value?.id, '1')
    await assert.rejects(events.next(), full)
    assert.equal(server.requests.length, 1)
  })

  test('an abort ends a loop without an error, while it waits and before it starts', async () => {
    const { api } = await clientOf([stream([event(1)])])
    const stop = new AbortController()
    const ids: string[] = []
    for await (const { id } of api.events({ signal: stop.signal })) {
      ids.push(id)
      setImmediate(() => stop.abort())
    }
    for await (const { id } of api.events({ signal: stop.signal })) ids.push(id)
    for await (const part of api.jobs.handle('job_1').live({ signal: stop.signal })) ids.push(part.type)
    assert.deepEqual(ids, ['1'])
  })

  test('a loop that falls far behind gets one reset instead of the events it missed', async () => {
    const many = Array.from({ length: 1_500 }, (_, n) => event(n + 1))
    const { api, server } = await clientOf([stream([event(0)]), stream(many)])
    const slow = api.events()
    await slow.next()
    assert.equal(server.requests.length, 1)
    const flooded = await clientOf([stream(many)])
    const [late, quick] = [flooded.api.events(), flooded.api.events()]
    const first = late.next()
    await take(quick, 1_500)
    assert.equal((await first).value?.id, '1')
    const types = new Set<string>()
    for (let n = 0; n < 499; n++) types.add(String((await late.next()).value?.type))
    assert.ok(types.has('reset'), [...types].join())
    await Promise.all([slow.return(undefined), late.return(undefined)])
  })

  test('if bodies do not stream, a reset every 10 s replaces the events', async () => {
    const clock = new ManualClock()
    const { api, server } = await clientOf([stream([event(1)])], {
      clock,
      // Like older React Native: no body stream, only the whole text.
      fetch: async (input, init) => {
        const response = await fetch(input, init)
        return Object.defineProperty(response, 'body', { value: null })
      },
    })
    const events = api.events()
    let type: string | undefined
    void events.next().then(({ value }) => {
      type = value?.type
    })
    await until(() => server.requests.length === 1)
    // The client detects at an unknown time that the body does not stream.
    await until(async () => {
      await clock.advance(10_000)
      return type !== undefined
    })
    assert.equal(type, 'reset')
    await events.return(undefined)
  })
})

describe('live output', () => {
  const part = (id: string, name: string, data: object) =>
    `id: ${id}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`
  const piece = (id: string, text: string) =>
    part(id, 'message', { id: 'm1', role: 'assistant', node: 'answer', partial: true, text })

  test('live output continues after a break without a gap, and ends with the run', async () => {
    const { api, server } = await clientOf([
      stream([piece('1-1', 'Hello'), piece('1-2', ' wor')], { ends: true }),
      stream([piece('1-3', 'ld'), part('1-4', 'later', {}), part('1-end', 'end', { status: 'completed' })]),
    ])
    let text = ''
    const types: string[] = []
    for await (const each of api.jobs.handle('job_1').live()) {
      types.push(each.type)
      if (each.type === 'message') text += each.message.text ?? ''
    }
    assert.equal(text, 'Hello world')
    assert.deepEqual(types, ['message', 'message', 'message', 'end'])
    assert.deepEqual(cursorsOf(server.requests), [null, '1-2'])
    assert.equal(server.requests[0]?.path, '/jobs/job_1/live')
  })

  test('the next call for live output after a question shows the next run', async () => {
    const { api, server } = await clientOf([
      stream([part('1-end', 'end', { status: 'awaiting_input' })]),
      stream([part('2-end', 'end', { status: 'completed' })]),
    ])
    const job = api.jobs.handle('job_1')
    for await (const { type } of job.live()) assert.equal(type, 'end')
    for await (const { type } of job.live()) assert.equal(type, 'end')
    assert.deepEqual(cursorsOf(server.requests), [null, '1-end'])
  })

  test('if bodies do not stream, the client reads the job to find its end', async () => {
    const { api, server } = await clientOf([{ status: 200, body: { id: 'job_1', status: 'completed' } }], {
      streaming: false,
    })
    const parts: unknown[] = []
    for await (const each of api.jobs.handle('job_1').live()) parts.push(each)
    assert.deepEqual(parts, [{ type: 'end', cursor: '1-end', status: 'completed' }])
    assert.ok(server.requests.every(({ path }) => path === '/jobs/job_1'))
  })
})

describe('the parser of server-sent events', () => {
  const TEXT =
    ': hi\r\nid: 1\r\nevent: a\r\ndata: {"x":\r\ndata: 1}\r\n\r\nid: 2\n\nretry: 5\rdata:no space\r\rdata\n\n'
  const EXPECTED = [
    { id: '1', event: 'a', data: '{"x":\n1}' },
    { id: '2', event: 'message', data: null },
    { id: '2', event: 'message', data: 'no space' },
    { id: '2', event: 'message', data: '' },
  ]
  for (const size of [1, 2, 3, 7, 1_000]) {
    test(`the parser reads every kind of line ending in pieces of ${size}`, () => {
      const parser = new SseParser()
      const pieces = Array.from({ length: Math.ceil(TEXT.length / size) }, (_, n) => n * size)
      assert.deepEqual(
        pieces.flatMap((at) => parser.feed(TEXT.slice(at, at + size))),
        EXPECTED,
      )
    })
  }

  test('a bare CR ends a line at once, and an LF that follows in the next piece is part of the same line end', () => {
    const parser = new SseParser()
    assert.deepEqual(parser.feed('data: 1\r\r'), [{ id: '', event: 'message', data: '1' }])
    assert.deepEqual(parser.feed('\n'), [])
    assert.deepEqual(parser.feed('data: 2\r'), [])
    assert.deepEqual(parser.feed(''), [])
    assert.deepEqual(parser.feed('\ndata: 3\n\r'), [{ id: '', event: 'message', data: '2\n3' }])
    assert.deepEqual(parser.feed('\n\n'), [])
  })

  test('a retry counts from its line on, and an invalid one changes nothing', () => {
    const parser = new SseParser()
    parser.feed('retry: 2')
    assert.equal(parser.retryMs, null)
    parser.feed('500\n')
    assert.equal(parser.retryMs, 2_500)
    for (const bad of ['', ' ', '-1', '1.5', '5s', '٣', '1e3', '0x10']) parser.feed(`retry: ${bad}\n`)
    parser.feed('retry\n\n')
    assert.equal(parser.retryMs, 2_500)
    parser.feed('retry:0\r')
    assert.equal(parser.retryMs, 0)
  })

  test('an id with NUL is ignored: the id before it stays', () => {
    const parser = new SseParser()
    assert.deepEqual(parser.feed('id: 1\nid: 2\0\ndata: a\n\n'), [{ id: '1', event: 'message', data: 'a' }])
    assert.deepEqual(parser.feed('id: \0\ndata: b\n\n'), [{ id: '1', event: 'message', data: 'b' }])
  })

  test('a line that never ends is refused before it fills the memory', () => {
    const parser = new SseParser()
    const megabyte = 'x'.repeat(1024 * 1024)
    assert.throws(() => {
      for (let n = 0; n < 100; n++) parser.feed(megabyte)
    }, /too long/)
  })
})
