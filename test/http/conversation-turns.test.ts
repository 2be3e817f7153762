import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Json } from '../../src/core/json.ts'
import { sql } from '../../src/db/sql.ts'
import { assertError } from '../support/assert-error.ts'
import { calmJobWorld, newUser } from '../support/calm-job-world.ts'
import { type JobWorld, RUN_MS, type ShownJob } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

interface Turn extends ShownJob {
  run: number
  pauses: { run: number; questions: Json; answers: Json; answered_at: string | null }[]
}

interface Page<Item> {
  data: Item[]
  has_more: boolean
  next_cursor: string | null
}

type Conversation = Page<Turn> & { thread_id: string; type: string; title: string | null }
type Listed = Page<{ thread_id: string; type: string; title: string | null; last_job: string; status: string }>

const MEGABYTE = 1024 * 1024
const UNKNOWN = { status: 404, code: 'not_found', message: 'No such conversation' } as const
const says = (content: string) => ({ messages: [{ role: 'user', content }] })
const withSandbox = (content: string, sandbox: object) => ({ ...says(content), sandbox })

describe('the turns of a conversation', () => {
  forEachService((under) => {
    const shared = calmJobWorld(under)

    const turn = async (world: JobWorld, sub: string, body: object): Promise<ShownJob> => {
      const answer = await world.request('POST', '/jobs', sub, { body })
      assert.equal(answer.status, 202, answer.text)
      await world.quiet()
      return answer.body
    }
    const until = (world: JobWorld, { id }: { id: string }, status: string) =>
      world.sweepUntil(async () => (await world.stored(id)).status === status, RUN_MS)
    const finished = async (world: JobWorld, sub: string, body: object): Promise<ShownJob> => {
      const job = await turn(world, sub, body)
      await until(world, job, 'completed')
      return job
    }
    const read = async (world: JobWorld, sub: string, path: string): Promise<Conversation> => {
      const answer = await world.request<Conversation>('GET', `/v1/conversations/${path}`, sub)
      assert.equal(answer.status, 200, answer.text)
      return answer.body
    }
    const list = async (world: JobWorld, sub: string, query = ''): Promise<Listed> => {
      const answer = await world.request<Listed>('GET', `/v1/conversations${query}`, sub)
      assert.equal(answer.status, 200, answer.text)
      return answer.body
    }

    test('a conversation has its turns with input, output, questions and answers, and the one that runs', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await finished(world, sub, { type: 'agent', input: says('Hello') })
      const second = await turn(world, sub, {
        type: 'agent',
        input: withSandbox('Publish', { pause: 'Really?', say: 'Done' }),
        continues: first.id,
      })
      await until(world, second, 'awaiting_input')
      const asked = (await world.stored(second.id)).interrupts as { id: string; value: Json }[]
      const open = (await read(world, sub, first.thread_id)).data[0]
      assert.deepEqual([open?.status, open?.run, open?.pauses, open?.interrupts], ['awaiting_input', 1, [], asked])
      assert.equal((await world.resume(await world.stored(second.id), { input: 'yes' })).status, 202)
      await until(world, second, 'completed')
      const third = await turn(world, sub, {
        type: 'agent',
        input: withSandbox('Count', { say: 'one two', duration_ms: 60_000 }),
        continues: first.id,
      })
      const { data, ...conversation } = await read(world, sub, first.thread_id.toUpperCase())
      assert.deepEqual(conversation, {
        thread_id: first.thread_id,
        type: 'agent',
        title: 'Hello',
        has_more: false,
        next_cursor: null,
      })
      assert.deepEqual(
        data.map(({ id, run, output }) => [id, run, output]),
        [
          [third.id, 1, null],
          [second.id, 2, 'Done'],
          [first.id, 1, 'You said: Hello'],
        ],
      )
      assert.deepEqual(data[2]?.input, says('Hello'))
      assert.ok(['processing', 'generating'].includes(String(data[0]?.status)))
      const [pause] = data[1]?.pauses ?? []
      assert.deepEqual([data[1]?.pauses.length, pause?.run, pause?.questions], [1, 1, asked])
      assert.deepEqual(pause?.answers, { [String(asked[0]?.id)]: 'yes' })
      assert.ok(pause?.answered_at)
      const [summary] = (await read(world, sub, `${first.thread_id}?limit=1&fields=summary`)).data
      assert.deepEqual([summary?.id, summary?.run, summary?.pauses], [third.id, 1, []])
      assert.ok(summary && !('input' in summary) && !('output' in summary))
    })

    test('several answers, a breakpoint and questions that were cancelled or answered elsewhere stay in their turn', async () => {
      const world = await shared()
      const sub = newUser()
      const pauseOf = async (type: string) => {
        const job = await turn(world, sub, { type, input: { title: 'Done' } })
        await until(world, job, 'awaiting_input')
        return world.stored(job.id)
      }
      const pausesOf = async ({ id, thread_id }: ShownJob) => {
        await world.sweepUntil(async () => (await world.stored(id)).finished_at !== null)
        return (await read(world, sub, thread_id)).data[0]?.pauses
      }
      const both = await pauseOf('both')
      const answers = Object.fromEntries((both.interrupts as { id: string }[]).map(({ id }, n) => [id, n]))
      assert.equal((await world.resume(both, { answers })).status, 202)
      assert.deepEqual((await pausesOf(both))?.[0]?.answers, answers)

      const stopped = await pauseOf('stopping')
      assert.equal((await world.resume(stopped, { input: null })).status, 202)
      const [breakpoint] = (await pausesOf(stopped)) ?? []
      assert.deepEqual([breakpoint?.questions, breakpoint?.answers], [[], {}])

      const cancelled = await pauseOf('pausing')
      assert.equal((await world.cancel(cancelled)).status, 200)
      const [left] = (await pausesOf(cancelled)) ?? []
      assert.deepEqual([left?.questions, left?.answers, left?.answered_at], [cancelled.interrupts, null, null])

      const elsewhere = await pauseOf('pausing')
      await world.pass(10_000)
      await world.answerElsewhere(elsewhere, 'from elsewhere')
      await world.pass(RUN_MS)
      await world.get(elsewhere.id)
      const [closed] = (await pausesOf(elsewhere)) ?? []
      assert.deepEqual([closed?.questions, closed?.answers], [elsewhere.interrupts, null])
    })

    test('an answer that was accepted, but not used because another client answered first, is not shown as given', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await turn(world, sub, { type: 'pausing', input: { title: 'Done' } })
      await until(world, job, 'awaiting_input')
      const paused = await world.stored(job.id)
      world.runtime.setFaults({ start_failure: 1, lookup_failure: 1 })
      assert.equal((await world.resume(paused, { input: 'too late' })).status, 202)
      await world.quiet()
      world.runtime.setFaults({ start_failure: 0, lookup_failure: 0 })
      await world.answerElsewhere(paused, 'first')
      await world.sweepUntil(async () => (await world.stored(job.id)).finished_at !== null)
      const [shown] = (await read(world, sub, job.thread_id)).data
      assert.deepEqual(shown?.output, { title: 'Done', answer: 'first' })
      assert.deepEqual([shown?.pauses[0]?.questions, shown?.pauses[0]?.answers], [paused.interrupts, null])
    })

    test('turns are visible to their owner and to operators; for other users the conversation does not exist', async () => {
      const world = await shared()
      const [sub, other] = [newUser(), newUser()]
      const { id, thread_id } = await finished(world, sub, { type: 'agent', input: says('Secret') })
      const path = `/v1/conversations/${thread_id}`
      for (const unknown of [path, '/v1/conversations/00000000-0000-4000-8000-000000000000', '/v1/conversations/x']) {
        assertError(world.service, await world.request('GET', unknown, other), UNKNOWN)
      }
      const token = world.service.tokenFor({ sub: other, scopes: ['read:operations'] })
      const seen = await world.service.request<Conversation>('GET', path, { token })
      assert.deepEqual([seen.body.title, seen.body.data.map((one) => one.id)], ['Secret', [id]])
      assert.deepEqual((await list(world, other)).data, [])
    })

    test('conversations are listed by their newest turns, with title and status, page by page', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await finished(world, sub, { type: 'agent', input: says('one  and\nmore') })
      const second = await finished(world, sub, { type: 'report', input: { title: 'two' } })
      const next = await turn(world, sub, {
        type: 'agent',
        input: withSandbox('again', { duration_ms: 60_000 }),
        continues: first.id,
      })
      const { data } = await list(world, sub)
      assert.deepEqual(
        data.map(({ thread_id, type, title, last_job }) => [thread_id, type, title, last_job]),
        [
          [first.thread_id, 'agent', 'one and more', next.id],
          [second.thread_id, 'report', 'two', second.id],
        ],
      )
      assert.ok(['processing', 'generating'].includes(String(data[0]?.status)))
      assert.equal(data[1]?.status, 'completed')
      const page = await list(world, sub, '?limit=1')
      assert.deepEqual([page.data.length, page.has_more], [1, true])
      const rest = await list(world, sub, `?limit=1&cursor=${page.next_cursor}`)
      assert.deepEqual([rest.data[0]?.thread_id, rest.has_more], [second.thread_id, false])
      const wrong = await world.request('GET', `/v1/conversations/${first.thread_id}?cursor=${page.next_cursor}`, sub)
      const message = 'querystring/cursor is not a cursor of this list'
      assertError(world.service, wrong, { status: 400, code: 'invalid_request', message })
    })

    test('the read brings the turn that runs up to date, also when its callback is lost', async () => {
      const world = await shared()
      const sub = newUser()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const job = await turn(world, sub, { type: 'agent', input: says('Hello') })
      await world.clock.advance(RUN_MS + 2_000)
      assert.equal((await read(world, sub, job.thread_id)).data[0]?.status, 'completed')
      const other = await turn(world, sub, { type: 'agent', input: says('Hello') })
      await world.clock.advance(RUN_MS + 2_000)
      const { data } = await list(world, sub)
      assert.deepEqual([data[0]?.last_job, data[0]?.status], [other.id, 'completed'])
      world.runtime.setFaults({ drop_callbacks: 0 })
    })

    test('a page ends early when its turns exceed 2 MB, and a turn whose pauses exceed it keeps the newest', async () => {
      const world = await shared()
      const sub = newUser()
      const large = 'x'.repeat(0.9 * MEGABYTE)
      const first = await finished(world, sub, { type: 'report', input: { title: large } })
      const asking = await turn(world, sub, { type: 'asking', input: { title: 'Ask' } })
      for (const status of ['awaiting_input', 'awaiting_input', 'completed'] as const) {
        await until(world, asking, status)
        if (status === 'completed') break
        assert.equal((await world.resume(await world.stored(asking.id), { input: large })).status, 202)
      }
      // An answer has at most 1 MB, and the graph asks twice: the documents of three such answers are written here.
      await world.db.query(sql`update job_runs set answers = ${`{"":"${large}${large}"}`} where job_id = ${asking.id}`)
      await world.db.query(sql`update jobs set thread_id = ${first.thread_id} where id = ${asking.id}`)
      const page = await read(world, sub, first.thread_id)
      assert.deepEqual([page.data.map(({ id }) => id), page.has_more], [[asking.id], true])
      const pauses = page.data[0]?.pauses.map(({ run, questions, answers }) => [
        run,
        questions === null,
        answers === null,
      ])
      assert.deepEqual(pauses, [
        [1, true, true],
        [2, false, false],
      ])
      const rest = await read(world, sub, `${first.thread_id}?cursor=${page.next_cursor}`)
      assert.deepEqual([rest.data.map(({ id }) => id), rest.has_more], [[first.id], false])
    })

    test('a thread id that was replaced leads to the conversation on its new thread', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await finished(world, sub, { type: 'agent', input: says('Hello') })
      const old = '11111111-2222-4333-8444-555555555555'
      await world.db.query(sql`
        insert into threads (id, owner, type, title, newest, is_own, is_pinned, replaced_by)
        select ${old}, owner, type, title, newest, is_own, is_pinned, id from threads where id = ${job.thread_id}`)
      const found = await read(world, sub, old)
      assert.deepEqual([found.thread_id, found.data[0]?.id], [job.thread_id, job.id])
      assert.equal((await list(world, sub)).data.length, 1)
    })

    test('an export has the questions and answers of a user, and an erasure removes them', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await turn(world, sub, { type: 'pausing', input: { title: 'Done' } })
      await until(world, job, 'awaiting_input')
      assert.equal((await world.resume(await world.stored(job.id), { input: 'my secret' })).status, 202)
      await until(world, job, 'completed')
      const token = world.admin
      const exported = await world.service.request<{ jobs: Turn[] }>('GET', `/v1/users/${sub}/export`, { token })
      const [pause] = exported.body.jobs[0]?.pauses ?? []
      assert.deepEqual(Object.values((pause?.answers ?? {}) as object), ['my secret'])
      const left = () =>
        world.db.query(sql`
        select run_id from job_runs where job_id = ${job.id} and (questions is not null or answers is not null)`)
      assert.equal((await left()).length, 1)
      assert.equal((await world.service.request('DELETE', `/v1/users/${sub}`, { token })).status, 202)
      await world.sweepUntil(async () => (await left()).length === 0)
    })
  })
})
