import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import { describe, test } from 'node:test'
import type { FastifyReply } from 'fastify'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { EventFeed } from '../../src/events/event-feed.ts'
import { SseStream } from '../../src/http/streams/sse.ts'
import type { JobContext } from '../../src/jobs/job-context.ts'
import { BUILT_IN_JOB_TYPES } from '../../src/jobs/job-types.ts'
import { LiveChannel } from '../../src/jobs/live/live-channel.ts'
import { toLiveEvents } from '../../src/jobs/live/live-event.ts'
import { LiveLog, LiveMemory } from '../../src/jobs/live/live-log.ts'
import {
  comparePositions,
  type LivePosition,
  RUN_END,
  RUN_START,
  readLiveCursor,
  readRuntimeId,
  writeCursor,
} from '../../src/jobs/live/live-position.ts'
import { LiveViewer } from '../../src/jobs/live/live-viewer.ts'
import { type RunStreamEvent, RunStreamParser } from '../../src/runtime/run-stream.ts'
import { ManualClock } from '../support/manual-clock.ts'

describe('the parser of a run’s stream', () => {
  const TEXT = 'event: custom\r\ndata: {"a":\rdata:1}\nid: 7\n\n: comment\nevent: ping\n\ndata: x\n\n'
  const EVENTS = [
    { id: '7', event: 'custom', data: '{"a":\n1}', isCut: false },
    { id: null, event: '', data: 'x', isCut: false },
  ]

  test('the parser reads every line end and field, however the text is cut into pieces', () => {
    for (let size = 1; size <= TEXT.length; size++) {
      const parser = new RunStreamParser()
      const events = []
      for (let at = 0; at < TEXT.length; at += size) events.push(...parser.push(TEXT.slice(at, at + size)))
      assert.deepEqual(events, EVENTS, `pieces of ${size}`)
    }
  })

  test('the parser cuts an event that is too long, and reads the next one', () => {
    const parser = new RunStreamParser()
    const parts = ['data: "', ...Array<string>(3).fill('x'.repeat(500_000)), '"\nid: 1\n\n', 'data: 2\nid: 2\n\n']
    const [long, next] = parts.flatMap((part) => parser.push(part))
    assert.deepEqual([long?.id, long?.isCut], ['1', true])
    assert.ok((long?.data.length ?? 0) <= 1024 * 1024)
    assert.deepEqual(next, { id: '2', event: '', data: '2', isCut: false })
    const lines = Array.from({ length: 30 }, () => `data: ${'y'.repeat(100_000)}\n`).join('')
    const [many] = parser.push(`${lines}\n`)
    assert.deepEqual([many?.isCut, many?.data.length], [true, 1024 * 1024])
  })
})

describe('a position in a run', () => {
  test('a position comes back from the cursor that clients keep', () => {
    const positions: LivePosition[] = [
      RUN_START,
      [0, -1, 0],
      [17, -1, 2],
      [1781663454132, 0, 0],
      [1781663454132, 3, 1],
      RUN_END,
    ]
    const cursors = positions.map((position) => writeCursor({ runSeq: 2, position }))
    assert.deepEqual(cursors, ['2-start', '2-0', '2-17.2', '2-1781663454132-0', '2-1781663454132-3.1', '2-end'])
    for (const [n, cursor] of cursors.entries())
      assert.deepEqual(readLiveCursor(cursor), { runSeq: 2, position: positions[n] })
  })

  test('a position is ordered by the two numbers of the runtime’s id, then by the count', () => {
    const ordered: LivePosition[] = [
      RUN_START,
      [0, -1, 0],
      [9, -1, 0],
      [9, -1, 1],
      [10, 0, 0],
      [10, 0, 1],
      [10, 2, 0],
      [10, 10, 0],
      RUN_END,
    ]
    const shuffled = [...ordered].reverse().sort(comparePositions)
    assert.deepEqual(shuffled, ordered)
  })

  test('a position does not exist for an id without an order, nor for a text that is no cursor', () => {
    for (const id of [null, '', 'abc', '-1', '1-2-3', '1e3', '9'.repeat(20)])
      assert.equal(readRuntimeId(id), null, String(id))
    for (const text of ['', '1', '1-', '-1', 'a-1', '1-start-1', '1-2.', '1-2.x', '1-2-3-4'])
      assert.equal(readLiveCursor(text), null, text)
  })
})

describe('the log of a run', () => {
  const frame = (bytes: number) => Buffer.alloc(bytes)
  const at = (n: number): LivePosition => [n, -1, 0]

  test('the log of a run finds the first event after a position', () => {
    const log = new LiveLog(new LiveMemory())
    for (const n of [0, 2, 4]) log.append({ position: at(n), frame: frame(10) })
    assert.deepEqual(
      [RUN_START, at(0), at(1), at(2), at(4), at(9)].map((position) => log.indexAfter(position)),
      [0, 1, 1, 2, 3, 3],
    )
  })

  test('the log of a run drops its oldest events beyond its limit, and knows which', () => {
    const memory = new LiveMemory({ perLog: 10_000, total: 1_000_000 })
    const log = new LiveLog(memory)
    for (let n = 0; n < 100; n++) {
      log.append({ position: at(n), frame: frame(800) })
      assert.ok(log.bytes <= 10_000 && memory.bytes === log.bytes)
    }
    assert.equal(log.end, 100)
    assert.deepEqual(log.trimmedTo, at(log.start - 1))
    assert.deepEqual(log.at(log.start)?.position, at(log.start))
    assert.equal(log.at(log.start - 1), undefined)
    memory.remove(log)
    assert.equal(memory.bytes, 0)
  })

  test('the largest log loses its oldest events when the memory of the node is full', () => {
    const memory = new LiveMemory({ perLog: 50_000, total: 60_000 })
    const [large, small] = [new LiveLog(memory), new LiveLog(memory)]
    for (let n = 0; n < 45; n++) large.append({ position: at(n), frame: frame(800) })
    for (let n = 0; n < 20; n++) {
      small.append({ position: at(n), frame: frame(800) })
      assert.ok(memory.bytes <= 60_000)
    }
    assert.ok(large.start > 0)
    assert.equal(small.start, 0)
    assert.equal(memory.bytes, large.bytes + small.bytes)
  })
})

describe('a viewer', () => {
  const view = ({ endsAtMs = Number.POSITIVE_INFINITY } = {}) => {
    const clock = new ManualClock()
    const client = Object.assign(new EventEmitter(), {
      sent: '',
      writableNeedDrain: false,
      writableEnded: false,
      destroyed: false,
      socket: { bytesWritten: 0, writableLength: 0 },
      writeHead: () => {},
      flushHeaders: () => {},
      write: (data: string | Buffer) => {
        client.sent += data.toString()
      },
      end: () => {
        client.writableEnded = true
      },
      destroy: () => {
        client.destroyed = true
      },
    })
    let cuts = 0
    const onCut = () => {
      cuts += 1
    }
    const sse = new SseStream({ clock, endsAtMs, isBlocked: () => false, retryMs: 1_000, onCut })
    const reply = { hijack: () => ({ raw: client }), getHeaders: () => ({}), request: { raw: {} } }
    sse.begin(reply as unknown as FastifyReply)
    const log = new LiveLog(new LiveMemory({ perLog: 3_000, total: 100_000 }))
    const run = { log, runSeq: 1, isOver: false }
    const viewer = new LiveViewer({ sse, run, after: null })
    const append = (n: number, text = `${n} `) => {
      log.append({ position: [n, -1, 0], frame: Buffer.from(text) })
      viewer.pump()
    }
    const read = async () => {
      client.writableNeedDrain = false
      client.emit('drain')
      await new Promise(setImmediate)
    }
    /** The stream is looked at every second. */
    const pass = async (seconds: number) => {
      for (let second = 0; second < seconds; second++) {
        sse.tick()
        await clock.advance(1_000)
      }
    }
    return { clock, client, sse, run, viewer, append, read, pass, cuts: () => cuts }
  }

  test('a viewer gets nothing more while its buffer is full, and the rest when it reads', async () => {
    const { client, run, append, read, viewer } = view()
    client.writableNeedDrain = true
    for (const n of [0, 1, 2]) append(n)
    assert.equal(client.sent, '0 ')
    await read()
    assert.equal(client.sent, '0 1 2 ')
    run.isOver = true
    viewer.pump()
    assert.equal(client.writableEnded, true)
  })

  test('a viewer is cut when it reads nothing for 30 s, and gets no comment meanwhile', async () => {
    const { client, sse, append, pass, cuts } = view()
    client.writableNeedDrain = true
    append(0)
    await pass(30)
    assert.deepEqual([client.sent, client.destroyed], ['0 ', false])
    sse.tick()
    assert.deepEqual([client.destroyed, cuts()], [true, 1])
  })

  test('a viewer is cut, and not only ended, when it reads nothing and its time is over', async () => {
    const { client, sse, append, pass } = view({ endsAtMs: 30_000 })
    client.writableNeedDrain = true
    append(0)
    await pass(30)
    sse.tick()
    assert.equal(client.destroyed, true)
  })

  test('an idle stream of events is cut when its client takes nothing of a full buffer for 30 s, and not while it takes something', async () => {
    const { client, sse, pass, cuts } = view()
    client.writableNeedDrain = true
    sse.send({ id: '1', event: 'job.updated', data: '{}' })
    await pass(20)
    client.socket.bytesWritten += 1
    await pass(20)
    sse.send({ id: '2', event: 'job.updated', data: '{}' })
    await pass(10)
    assert.equal(client.destroyed, false)
    sse.tick()
    assert.deepEqual([client.destroyed, cuts()], [true, 1])
  })

  test('a viewer is cut when the log has dropped what it has not read', () => {
    const { client, append, cuts } = view()
    client.writableNeedDrain = true
    for (let n = 0; n < 4; n++) append(n, 'x'.repeat(500))
    assert.deepEqual([client.sent.length, client.destroyed], [500, false])
    for (let n = 4; n < 30; n++) append(n, 'x'.repeat(500))
    assert.deepEqual([client.destroyed, cuts()], [true, 1])
  })
})

describe('an event of the runtime', () => {
  const BOTH = ['messages', 'custom'] as const
  const shown = (event: string, data: unknown, modes: readonly ('messages' | 'custom')[] = BOTH, isCut = false) =>
    toLiveEvents({ id: '1', event, data: typeof data === 'string' ? data : JSON.stringify(data), isCut }, modes).map(
      ({ event, data }) => ({ event, data: JSON.parse(data) as unknown }),
    )
  const message = (fields: object, metadata: object = { langgraph_node: 'answer' }) => {
    const [first] = shown('messages', [{ id: 'm1', ...fields }, metadata])
    return first?.data
  }
  const piece = { id: 'm1', role: 'assistant', node: 'answer', partial: true }

  test('a message and a step of a sub-agent name the outer tasks, from the event or from the metadata', () => {
    const said = { id: 'm1', type: 'AIMessageChunk', content: 'Hel' }
    const place = { langgraph_node: 'answer', langgraph_checkpoint_ns: 'team:t1|researcher:t2|answer:t3' }
    const namespace = ['team:t1', 'researcher:t2']
    const expected = { ...piece, text: 'Hel', namespace }
    assert.deepEqual(shown('messages|team:t1|researcher:t2', [said, { langgraph_node: 'answer' }])[0]?.data, expected)
    assert.deepEqual(message(said, place), expected)
    const whole = 'messages|team:t1|researcher:t2|answer:t3'
    assert.deepEqual(shown(whole, [said, place])[0]?.data, expected, 'the JS server adds the task itself')
    const own = { langgraph_node: 'answer', langgraph_checkpoint_ns: 'answer:t3' }
    assert.deepEqual(message(said, own), { ...piece, text: 'Hel' })
    assert.deepEqual(shown('updates|team:t1', { answer: {} })[0]?.data, { node: 'answer', namespace: ['team:t1'] })
    assert.deepEqual(shown('updates', { answer: {} })[0]?.data, { node: 'answer' })
  })

  test('an event of the runtime becomes a piece of a message, in the spelling of either server', () => {
    const js = { type: 'ai', content: 'Hel', tool_calls: [], tool_call_chunks: [], additional_kwargs: {} }
    assert.deepEqual(message(js), { ...piece, text: 'Hel' })
    assert.deepEqual(message({ type: 'AIMessageChunk', content: 'Hel' }), { ...piece, text: 'Hel' })
    const lc = {
      lc: 1,
      type: 'constructor',
      id: ['langchain_core', 'messages', 'AIMessageChunk'],
      kwargs: { id: 'm1', content: 'Hel' },
    }
    assert.deepEqual(shown('messages|sub:1', [lc, {}])[0]?.data, {
      ...piece,
      node: null,
      namespace: ['sub:1'],
      text: 'Hel',
    })
  })

  test('an event of the runtime becomes a whole message when it is one', () => {
    const whole = { id: 'm1', node: 'answer', partial: false }
    assert.deepEqual(message({ type: 'ai', content: 'Hello' }), { ...whole, role: 'assistant', text: 'Hello' })
    assert.deepEqual(message({ type: 'human', content: 'Hi' }), { ...whole, role: 'user', text: 'Hi' })
    assert.deepEqual(message({ type: 'system', content: 'Be kind' }), { ...whole, role: 'system', text: 'Be kind' })
    const tool = { type: 'tool', content: '', tool_call_id: 'call_1' }
    assert.deepEqual(message(tool), { ...whole, role: 'tool', text: '', tool_call_id: 'call_1' })
  })

  test('an event of the runtime holds text and reasoning in the spellings of the model providers', () => {
    const content = [
      { type: 'thinking', thinking: 'a' },
      { type: 'reasoning', reasoning: 'b' },
      { type: 'reasoning', summary: [{ type: 'summary_text', text: 'c' }] },
      { type: 'reasoning_content', reasoning_content: { text: 'd' } },
      { type: 'image_url', image_url: 'https://x' },
      { type: 'text', text: 'one ' },
      { type: 'output_text', text: 'two ' },
      'three',
    ]
    const additional_kwargs = { reasoning_content: 'x', reasoning: { summary: [{ text: 'y' }] } }
    const expected = { ...piece, text: 'one two three', reasoning: 'xyabcd' }
    assert.deepEqual(message({ type: 'AIMessageChunk', content, additional_kwargs }), expected)
  })

  test('an event of the runtime holds the calls of tools: their pieces, or whole ones with exact numbers', () => {
    const tool_call_chunks = [
      { index: 0, id: 'c1', name: 'search', args: '{"q"' },
      { index: 1, id: null, name: null, args: ':1}' },
    ]
    assert.deepEqual(
      message({ type: 'AIMessageChunk', content: '', tool_call_chunks, tool_calls: [{ name: 'search', args: {} }] }),
      {
        ...piece,
        tool_calls: [
          { index: 0, id: 'c1', name: 'search', args: '{"q"' },
          { index: 1, args: ':1}' },
        ],
      },
    )
    const text =
      '[{"type":"ai","id":"m1","content":"","tool_calls":[{"name":"pay","args":{"n":12345678901234567890},"id":"c2"}]},{}]'
    assert.deepEqual(shown('messages', text)[0]?.data, {
      ...piece,
      node: null,
      partial: false,
      tool_calls: [{ index: 0, id: 'c2', name: 'pay', args: '{"n":12345678901234567890}' }],
    })
  })

  test('an event of the runtime becomes nothing when there is nothing to see', () => {
    assert.equal(message({ type: 'AIMessageChunk', content: '', usage_metadata: { total_tokens: 3 } }), undefined)
    assert.equal(message({ type: 'remove', content: 'x' }), undefined)
    for (const data of ['null', '[]', '[null,null]', '{}', '[1,2]', '[{"type":7}]', '[{"type":"ai","content":{}}]']) {
      assert.deepEqual(shown('messages', data), [], data)
    }
    for (const event of ['values', 'error', 'debug', '', 'end']) assert.deepEqual(shown(event, { a: 1 }), [], event)
  })

  test('an event of the runtime is a reset if its message has so many values that it would hold the event loop', () => {
    const call = (values: number) => ({ name: 'add', id: 'c1', args: Array.from({ length: values }, () => 1) })
    const written = (values: number) => [{ type: 'ai', content: 'x'.repeat(900_000), tool_calls: [call(values)] }, {}]
    assert.deepEqual(
      [20_000, 19_000].map((values) => shown('messages', written(values)).map(({ event }) => event)),
      [['reset'], ['message']],
    )
  })

  test('a custom event of the runtime becomes progress exactly as the graph wrote it', () => {
    const data = '{"n": 12345678901234567890,\n "z": -0, "e": 1e400, "a": 1, "a": 2}'
    const [progress] = toLiveEvents({ id: '1', event: 'custom', data, isCut: false }, BOTH)
    assert.deepEqual(progress, { event: 'progress', data: data.replace('\n', ' ') })
  })

  test('an update of the runtime becomes the names of the nodes that finished, and nothing of what they wrote', () => {
    const steps = (data: unknown, isCut = false) => shown('updates', data, BOTH, isCut)
    assert.deepEqual(steps({ think: { secret: 1 }, answer: null }), [
      { event: 'step', data: { node: 'think' } },
      { event: 'step', data: { node: 'answer' } },
    ])
    assert.deepEqual(steps({ __interrupt__: [] }), [])
    assert.deepEqual(steps('{"big \\"node\\"": {"text": "xxxx', true), [
      { event: 'step', data: { node: 'big "node"' } },
    ])
    assert.deepEqual(steps('[1,2', true), [])
  })

  test('an event of the runtime is left out when the type does not ask for it', () => {
    const tuple = [{ type: 'ai', content: 'x' }, {}]
    assert.deepEqual(shown('messages', tuple, ['custom']), [])
    assert.deepEqual(shown('custom', { a: 1 }, ['messages']), [])
  })

  test('an event of the runtime becomes a reset when it was too long or cannot be read, or when the run begins again', () => {
    const reset = [{ event: 'reset', data: {} }]
    assert.deepEqual(shown('messages', '[{', BOTH, true), reset)
    assert.deepEqual(shown('custom', '{', BOTH, true), reset)
    assert.deepEqual(shown('metadata', { run_id: 'r', attempt: 2 }), reset)
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`
    const unreadable = ['', 'no json', `[{"type":"ai","content":"","tool_calls":[{"args":${deep}}]},{}]`]
    for (const data of unreadable) assert.deepEqual(shown('messages', data), reset, data.slice(0, 20))
    assert.deepEqual(shown('custom', '{"half":'), reset)
    assert.deepEqual(shown('metadata', { run_id: 'r', attempt: 1 }), [])
  })
})

describe('a channel', () => {
  const metadata = { langgraph_node: 'n' }
  const upstream = (id: string, text: string): RunStreamEvent => ({
    id,
    event: 'messages',
    data: JSON.stringify([{ type: 'AIMessageChunk', id: 'm', content: text }, metadata]),
    isCut: false,
  })

  /** Follows a run whose runtime answers each join with the next of these lists. The job ends with the last one. */
  async function follow(
    joins: readonly (readonly RunStreamEvent[])[],
    storedRunId: string | null = 'r',
  ): Promise<{ log: string[]; asked: string[] }> {
    const asked: string[] = []
    const row = { status: 'generating', run_id: storedRunId, run_seq: 1 }
    const clock = { now: () => 0, sleep: async () => new Promise<void>((resolve) => setImmediate(resolve)) }
    const context = {
      db: { query: async () => [row] },
      clock,
      random: systemRandom,
      log: silentLog,
      types: BUILT_IN_JOB_TYPES,
      runtime: {
        streamRun: async function* (_thread: string, _run: string, { after }: { after: string }) {
          const events = joins[asked.length] ?? []
          asked.push(after)
          yield events
        },
      },
    } as unknown as JobContext
    const channel = new LiveChannel({
      context,
      feed: { subscribe: async () => ({ from: 0, unsubscribe: () => {} }) } as unknown as EventFeed,
      memory: new LiveMemory(),
      check: async () => {
        if (asked.length === joins.length) row.status = 'completed'
      },
      job: { id: 'job_1', type: 'agent', thread_id: 't', run_id: 'r', run_seq: 1, status: 'generating' },
      onOver: () => {},
    })
    await channel.follow()
    const log: string[] = []
    for (let n = channel.log.start; n < channel.log.end; n++) {
      const [, id, data = ''] = /^id: (.*)\n.*\ndata: (.*)\n\n$/.exec(String(channel.log.at(n)?.frame)) ?? []
      const { text, status } = JSON.parse(data) as { text?: string; status?: string }
      log.push(`${id} ${text ?? status}`)
    }
    return { log, asked }
  }

  test('a channel resumes at the last event, and skips what a runtime repeats', async () => {
    const [a, b, c] = [upstream('10-0', 'a'), upstream('10-1', 'b'), upstream('11-0', 'c')]
    const { log, asked } = await follow([[a, b], [a, b, c], []])
    assert.deepEqual(asked, ['-1', '10-1', '11-0'])
    assert.deepEqual(log, ['1-10-0 a', '1-10-1 b', '1-11-0 c', '1-end completed'])
  })

  test('a channel counts events to which the runtime gives the same id, alike in every replay', async () => {
    const all = [upstream('10-0', 'a'), upstream('10-0', 'b'), upstream('10-0', 'c'), upstream('12-0', 'd')]
    const expected = ['1-10-0 a', '1-10-0.1 b', '1-10-0.2 c', '1-12-0 d', '1-end completed']
    assert.deepEqual((await follow([all])).log, expected)
    assert.deepEqual((await follow([all.slice(0, 2), all])).log, expected)
  })

  test('a channel does not forget its run when a late answer of the database is older', async () => {
    const { log } = await follow([[upstream('3', 'a')]], null)
    assert.deepEqual(log, ['1-3 a', '1-end completed'])
  })

  test('a channel shows nothing of events without an id, from which no viewer could resume', async () => {
    const { log } = await follow([[{ ...upstream('', 'a'), id: null }, upstream('x', 'b'), upstream('3', 'c')]])
    assert.deepEqual(log, ['1-3 c', '1-end completed'])
  })
})
