import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { LangGraph } from '../support/langgraph.ts'
import { startLangGraph } from '../support/langgraph.ts'
import { type LiveView, openLive } from '../support/live-view.ts'
import { freshFolder } from '../support/program.ts'
import { type Served, sharedIssuer, startServe } from '../support/served.ts'

const TYPES = {
  types: {
    talk: { assistant_id: 'talk', output_key: 'messages', live: ['messages', 'custom'] },
    team: { assistant_id: 'team', output_key: 'messages', live: ['messages'] },
    pause: { assistant_id: 'pause', output_key: 'report', live: ['messages'] },
    silent: { assistant_id: 'talk', output_key: 'messages' },
  },
}
const ANSWER = 'One two three four'
const SLOW_MS = 400

describe('live output of the real runtime', () => {
  let runtime: LangGraph
  const nodes: Served[] = []
  let token: string
  const views: LiveView[] = []

  before(async () => {
    runtime = await startLangGraph()
    token = (await sharedIssuer()).mint({ user: 'ada' })
    const folder = freshFolder()
    writeFileSync(join(folder, 'job-types.json'), JSON.stringify(TYPES))
    // Without a public URL the runtime sends no callback: only the end of the stream shows that the run may have ended.
    nodes.push(
      await startServe({ folder, settings: { RUNTIME_URL: runtime.url, RATE_LIMIT_AUTHENTICATED: '1000000' } }),
    )
  })
  after(async () => {
    for (const view of views) view.close()
    await runtime?.stop()
  })

  const node = () => nodes[0] as Served
  const start = async (type: string, input: object) => {
    const { status, body } = await node().request<{ id: string }>('POST', '/jobs', { token, body: { type, input } })
    assert.equal(status, 202)
    return body.id
  }
  const view = async (id: string, lastEventId?: string) => {
    const opened = await openLive(node().url, id, { token, ...(lastEventId === undefined ? {} : { lastEventId }) })
    views.push(opened)
    return opened
  }
  /** The pieces of the answer, without the whole message after it. */
  const answerIn = (viewer: LiveView) =>
    viewer
      .of<{ partial: boolean; text?: string }>('message')
      .map(({ partial, text = '' }) => (partial ? text : ''))
      .join('')

  test('live output arrives piece by piece, with progress and steps, and its end settles the job without a callback', async () => {
    const id = await start('talk', { messages: [{ role: 'user', content: 'Hi' }] })
    const viewer = await view(id)
    await viewer.ended()
    assert.equal(viewer.status, 'completed')
    assert.deepEqual(viewer.of('progress'), [{ percent: 10 }, 'half'])
    assert.deepEqual(viewer.of('step'), [{ node: 'work' }, { node: 'answer' }, { node: 'close' }])
    assert.equal(answerIn(viewer), ANSWER)
    assert.equal(viewer.reasoning, 'Hm.')
    const messages = viewer.of<{ id: string; role: string; node: string; partial: boolean; text?: string }>('message')
    const pieces = messages.filter(({ partial }) => partial)
    assert.ok(pieces.length >= 5, 'not all at once')
    assert.equal(new Set(pieces.map((piece) => `${piece.id} ${piece.role} ${piece.node}`)).size, 1)
    const whole = messages.filter(({ partial }) => !partial)
    assert.deepEqual(
      whole.map(({ node, role, text }) => [node, role, text]),
      [['close', 'assistant', 'That was all.']],
    )
    const { body: job } = await node().request<{ settled_by: string }>('GET', `/jobs/${id}`, { token })
    assert.equal(job.settled_by, 'read')
  })

  test('the messages and steps of a sub-agent name its node and its namespace, each once', async () => {
    const viewer = await view(await start('team', { messages: [{ role: 'user', content: 'Hi' }] }))
    await viewer.ended()
    assert.equal(viewer.status, 'completed')
    assert.equal(answerIn(viewer), ANSWER)
    type Place = { node: string; namespace?: string[] }
    const placeOf = ({ node, namespace = [] }: Place) =>
      [...namespace.map((task) => task.split(':')[0]), node].join('/')
    assert.deepEqual(
      [...new Set(viewer.of<Place>('message').map(placeOf))],
      ['researcher/answer', 'researcher/close', 'boss'],
    )
    assert.deepEqual(viewer.of<Place>('step').map(placeOf), [
      'researcher/work',
      'researcher/answer',
      'researcher/close',
      'researcher',
      'boss',
    ])
  })

  test('live output resumes at the cursor of a viewer, and starts at the beginning for a viewer who comes late', async () => {
    const id = await start('talk', { messages: [], prompt: SLOW_MS })
    const first = await view(id)
    await first.until(() => answerIn(first).includes('two'))
    first.close()
    const second = await view(id, first.ids.at(-1))
    const late = await view(id)
    await Promise.all([second.ended(), late.ended()])
    assert.equal(answerIn(first) + answerIn(second), ANSWER)
    assert.equal(answerIn(late), ANSWER)
    assert.deepEqual(late.ids, [...first.ids, ...second.ids])
  })

  test('live output ends with awaiting_input at a question; a new stream shows the next run', async () => {
    const id = await start('pause', { title: 'Done' })
    const first = await view(id)
    await first.ended()
    assert.equal(first.status, 'awaiting_input')
    await node().request('POST', `/jobs/${id}/resume`, { token, body: { input: 'yes' } })
    const second = await view(id, first.ids.at(-1))
    await second.ended()
    assert.equal(second.status, 'completed')
    assert.deepEqual(second.of('step').at(-1), { node: 'write' })
    assert.ok(second.ids.every((one) => one.startsWith('2-')))
  })

  test('live output shows only the end for a job type without live output', async () => {
    const viewer = await view(await start('silent', { messages: [] }))
    await viewer.ended()
    assert.deepEqual([viewer.names, viewer.status], [['end'], 'completed'])
  })
})
