import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { JsonObject } from '../../src/core/json.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { type CallbackReceiver, startCallbackReceiver } from '../support/callback-receiver.ts'
import { isOver } from '../support/calm-job-world.ts'
import { type JobWorld, type ShownJob, startJobWorld } from '../support/job-world.ts'
import { type LangGraph, startLangGraph } from '../support/langgraph.ts'
import { type RuntimeFaultProxy, startRuntimeFaultProxy } from '../support/runtime-fault-proxy.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const TYPES = toJobTypes({ agent: { assistant_id: 'agent' }, pausing: { assistant_id: 'pause', output_key: 'report' } })
const says = (content: string) => ({ messages: [{ role: 'user', content }] })

/** The service has its own clock here; the runtime gets a late start when the test says so. */
describe('a start that the real runtime handles late', () => {
  let server: Promise<LangGraph> | undefined
  after(async () => (await server)?.stop())

  forEachService((under) => {
    let world: JobWorld
    let proxy: RuntimeFaultProxy
    let receiver: CallbackReceiver
    before(async () => {
      server ??= startLangGraph()
      receiver = await startCallbackReceiver()
      proxy = await startRuntimeFaultProxy((await server).url)
      const env = { RUNTIME_URL: proxy.url, PUBLIC_URL: new URL(receiver.url).origin }
      world = await startJobWorld(under, { jobTypes: TYPES, env })
    })
    after(() => receiver?.close())
    const send = async (body: object): Promise<ShownJob> => {
      const answer = await world.request('POST', '/jobs', 'ada', { body: { type: 'agent', ...body } })
      assert.equal(answer.status, 202, answer.text)
      return answer.body
    }
    const over = async ({ id }: ShownJob): Promise<ShownJob> => {
      // The runtime has a clock of its own, so this is bounded by real time, not by rounds.
      await until(async () => {
        if (isOver(await world.stored(id))) return true
        await world.pass(500)
        return false
      })
      return world.stored(id)
    }
    /** The runtime gets the start of this job later, by `proxy.forwardStarts()`. */
    const sendBroken = async (body: object): Promise<ShownJob> => {
      proxy.keepStarts('broken')
      const job = await send(body)
      await until(() => proxy.kept === 1)
      await world.quiet()
      proxy.keepStarts(null)
      return job
    }
    const ask = async (path: string, body?: object): Promise<JsonObject[]> => {
      const post = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }
      return (await (await fetch(`${(await server)?.url}${path}`, body ? post : {})).json()) as JsonObject[]
    }
    const runsOf = async (threadId: string, { id }: ShownJob) =>
      (await ask(`/threads/${threadId}/runs`)).filter(({ metadata }) => (metadata as JsonObject).job_id === id)
    /** Now the late run happens, and ends. */
    const forwardLate = async (threadId: string, job: ShownJob, count: number) => {
      await proxy.forwardStarts()
      await until(async () => {
        const runs = await runsOf(threadId, job)
        return runs.length === count && runs.every(({ status }) => status === 'success')
      })
    }
    const historyOf = async ({ thread_id, run_id }: ShownJob) => {
      const [state] = await ask(`/threads/${thread_id}/history`, { limit: 1, metadata: { run_id } })
      const messages = ((state?.values as JsonObject | undefined)?.messages ?? []) as JsonObject[]
      return messages.filter(({ type }) => type === 'human').map(({ content }) => content)
    }

    test('a start that is held back for 12 s runs once', async () => {
      proxy.keepStarts('waiting')
      const first = await send({ input: says('q1') })
      await until(() => proxy.kept === 1)
      await world.clock.advance(12_000)
      proxy.keepStarts(null)
      await proxy.forwardStarts()
      await over(first)
      const second = await over(await send({ input: says('q2'), continues: first.id }))
      assert.equal((await runsOf(first.thread_id, first)).length, 1)
      assert.deepEqual(await historyOf(second), ['q1', 'q2'])
    })

    test('a late start of a first turn is not part of the conversation', async () => {
      const first = await sendBroken({ input: says('q1') })
      assert.equal((await over(first)).status, 'completed')
      await forwardLate(first.thread_id, first, 1)
      const second = await over(await send({ input: says('q2'), continues: first.id }))
      assert.notEqual(second.thread_id, first.thread_id)
      assert.deepEqual(await historyOf(second), ['q1', 'q2'])
    })

    test('a late start of a later turn is not part of the conversation', async () => {
      const first = await over(await send({ input: says('q1') }))
      const second = await sendBroken({ input: says('q2'), continues: first.id })
      assert.equal((await over(second)).status, 'completed')
      await forwardLate(first.thread_id, second, 2)
      const third = await over(await send({ input: says('q3'), continues: second.id }))
      assert.equal(third.thread_id, first.thread_id)
      assert.deepEqual(await historyOf(third), ['q1', 'q2', 'q3'])
      const fourth = await over(await send({ input: says('q4'), continues: third.id }))
      assert.deepEqual(await historyOf(fourth), ['q1', 'q2', 'q3', 'q4'])
    })

    test('an answer reaches the question of its job although a late run asked after it', async () => {
      const asked = { type: 'pausing', input: { title: 'one' } }
      const first = await over(await send(asked))
      assert.equal((await world.resume(first, { input: 'yes' })).status, 202)
      assert.deepEqual((await over(first)).output, { title: 'one', answer: 'yes' })
      const second = await sendBroken({ ...asked, input: { title: 'two' }, continues: first.id })
      const paused = await over(second)
      assert.equal(paused.status, 'awaiting_input')
      await forwardLate(first.thread_id, second, 2)
      assert.equal((await world.resume(paused, { input: 'no' })).status, 202)
      const answered = await over(second)
      assert.deepEqual([answered.status, answered.output], ['completed', { title: 'two', answer: 'no' }])
    })
  })
})
