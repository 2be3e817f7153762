import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { assertError } from '../support/assert-error.ts'
import {
  type JobWorld,
  RUN_MS,
  type ShownJob,
  START_RUN,
  sharedJobWorld,
  startJobWorld,
  type WorldOptions,
} from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

const BUSY = { status: 409, code: 'conflict', message: 'A job on the thread is unfinished' } as const
const UNKNOWN = { status: 404, code: 'not_found', message: 'No such job to continue' } as const
const invalid = (message: string | RegExp) => ({ status: 400, code: 'invalid_request', message }) as const

const TYPES: WorldOptions = {
  jobTypes: toJobTypes({
    agent: { assistant_id: 'agent' },
    report: { assistant_id: 'report', output_key: 'report', may_pause: false },
    chat: { assistant_id: 'agent', may_pause: false },
    pausing: { assistant_id: 'pause', output_key: 'report' },
    throwing: { assistant_id: 'throw', output_key: 'report' },
    graphless: { assistant_id: 'no-such-graph', output_key: 'report' },
  }),
}

const newUser = () => `user-${randomUUID()}`
const says = (content: string) => ({ messages: [{ role: 'user', content }] })

describe('conversations', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under, TYPES)

    const post = (world: JobWorld, sub: string, body: object, headers: Record<string, string> = {}) =>
      world.request('POST', '/jobs', sub, { body, headers })

    const turn = async (world: JobWorld, sub: string, body: object): Promise<ShownJob> => {
      const answer = await post(world, sub, body)
      assert.equal(answer.status, 202, answer.text)
      await world.quiet()
      return answer.body
    }
    const finished = async (world: JobWorld, sub: string, body: object): Promise<ShownJob> => {
      const { id } = await turn(world, sub, body)
      await world.sweepUntil(async () => (await world.stored(id)).finished_at !== null, RUN_MS)
      return world.stored(id)
    }
    const tokensOf = async ({ db }: JobWorld, { id }: ShownJob) => {
      const [row] = await db.query<{ total: number }>(
        sql`select coalesce(total_tokens, 0) as total from jobs where id = ${id}`,
      )
      return row?.total
    }
    /** Another client of the runtime starts a further run of this user on the thread. */
    const again = async (world: JobWorld, { thread_id }: { thread_id: string }, user_id: string) => {
      const run = { assistant_id: 'report', input: {}, metadata: { user_id } }
      return { thread_id, run_id: await world.continueElsewhere({ thread_id }, run) }
    }
    /** Another client of the runtime uses the thread. */
    const runElsewhere = async (world: JobWorld, threadId: string, body: object): Promise<void> => {
      const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }
      const response = await fetch(`${world.runtime.url}/threads/${threadId}/runs`, init)
      assert.equal(response.status, 200)
      await world.pass(RUN_MS)
    }
    const runsOn = ({ runtime }: JobWorld, { thread_id }: ShownJob) =>
      runtime.recentRuns.filter(({ threadId }) => threadId === thread_id)

    test('each turn is a job on the same thread, with its own run, output and tokens', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await finished(world, sub, { type: 'agent', input: says('one two three') })
      const second = await finished(world, sub, { type: 'agent', input: says('four'), continues: first.id })
      const third = await finished(world, sub, { type: 'agent', input: says('five six'), continues: second.id })
      assert.deepEqual([first.continues, second.continues, third.continues], [null, first.id, second.id])
      assert.equal(new Set([first, second, third].map(({ thread_id }) => thread_id)).size, 1)
      assert.equal(new Set([first, second, third].map(({ run_id }) => run_id)).size, 3)
      const outputs = [first, second, third].map(({ output }) => output)
      assert.deepEqual(outputs, ['You said: one two three', 'You said: four', 'You said: five six'])
      const tokens = [await tokensOf(world, first), await tokensOf(world, second), await tokensOf(world, third)]
      assert.deepEqual(tokens, [3 + 5, 1 + 3, 2 + 4])
      const { values } = world.runtime.recentRuns.find(({ runId }) => runId === third.run_id) ?? {}
      const messages = values?.messages as object[] | undefined
      assert.equal(messages?.length, 6, 'the graph saw the whole conversation')
      const list = await world.request<{ data: ShownJob[] }>('GET', `/jobs?thread_id=${first.thread_id}`, sub)
      assert.deepEqual(
        list.body.data.map(({ id }) => id),
        [third.id, second.id, first.id],
      )
    })

    for (const via of ['callback', 'read', 'sweep'] as const) {
      test(`a turn has its own output by ${via}, also when another run wrote the newest checkpoint`, async () => {
        const world = await startJobWorld(under, TYPES)
        const first = await finished(world, 'ada', { type: 'report', input: { title: 'first' } })
        world.runtime.setFaults({ drop_callbacks: 1 })
        const second = await turn(world, 'ada', { type: 'report', input: { title: 'second' }, continues: first.id })
        await world.clock.advance(RUN_MS)
        await runElsewhere(world, first.thread_id, { assistant_id: 'report', input: { title: 'elsewhere' } })
        const run = runsOn(world, first).find(({ metadata }) => metadata.job_id === second.id)
        const { runId: run_id, threadId: thread_id, status, values } = run ?? assert.fail('there is no run')
        if (via === 'callback') await world.callback('report', { run_id, thread_id, status, values })
        else if (via === 'read') await world.get(second.id)
        else await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null)
        const ended = await world.stored(second.id)
        assert.deepEqual([ended.status, ended.output], ['completed', { title: 'second', n: 0 }])
        assert.equal(ended.settled_by, via)
      })
    }

    test('a run that was started elsewhere never gets the answer of an earlier turn', async () => {
      const world = await shared()
      const history = [
        { type: 'human', content: 'one' },
        { type: 'ai', content: 'first' },
        { type: 'human', content: 'two' },
      ]
      const report = async (messages: object[]) => {
        const ids = { thread_id: randomUUID(), run_id: randomUUID() }
        const answer = await world.callback('chat', { ...ids, status: 'success', values: { messages } })
        assert.equal(answer.body.outcome, 'adopted')
        return world.stored(answer.body.job_id)
      }
      assert.equal((await report([...history, { type: 'ai', content: 'second' }])).output, 'second')
      const silent = await report(history)
      assert.deepEqual([silent.status, silent.output], ['processing', null], 'the runtime is asked')
    })

    test('only an ended job of the owner can be continued', async () => {
      const world = await shared()
      const [sub, other] = [newUser(), newUser()]
      const first = await finished(world, sub, { type: 'report', input: {} })
      const next = { type: 'report', input: {}, continues: first.id }
      assertError(world.service, await post(world, other, next), UNKNOWN)
      assertError(world.service, await post(world, sub, { ...next, continues: 'job_none' }), UNKNOWN)
      const admin = (body: object) => world.service.request<ShownJob>('POST', '/jobs', { token: world.admin, body })
      assertError(world.service, await admin(next), UNKNOWN)
      const forUser = await admin({ ...next, created_by: sub })
      assert.equal(forUser.status, 202, forUser.text)
      assert.deepEqual([forUser.body.created_by, forUser.body.continues], [sub, first.id])
      await world.quiet()
      assertError(world.service, await post(world, sub, next), BUSY)
      await world.pass(RUN_MS)
      assert.equal((await post(world, sub, next)).status, 202, 'any turn of the thread may be named')
      await world.pass(RUN_MS)
    })

    test('a job that a callback made is continued only by the caller that claimed it', async () => {
      const world = await shared()
      const sub = newUser()
      const { thread_id, run_id } = await world.startElsewhere({ user_id: sub })
      await world.pass(RUN_MS)
      const values = { report: { title: 'theirs' } }
      const adopted = await world.callback('report', { thread_id, run_id, status: 'success', values })
      assert.equal(adopted.body.outcome, 'adopted')
      const next = { type: 'report', input: { title: 'mine' }, continues: adopted.body.job_id }
      assertError(world.service, await post(world, sub, next), UNKNOWN)
      assert.equal((await post(world, sub, { type: 'report', thread_id, run_id })).status, 202)
      const second = await finished(world, sub, next)
      assert.deepEqual([second.thread_id, second.output], [thread_id, { title: 'mine', n: 0 }])
    })

    test('a paused turn must be answered or cancelled first; the next turn then starts afresh', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await turn(world, sub, { type: 'pausing', input: { title: 'first' } })
      await world.pass(RUN_MS)
      assert.equal((await world.get(first.id)).status, 'awaiting_input')
      const next = { type: 'pausing', input: { title: 'second' }, continues: first.id }
      assertError(world.service, await post(world, sub, next), BUSY)
      assert.equal((await world.request('POST', `/jobs/${first.id}/cancel`, sub)).status, 200)
      const second = await turn(world, sub, next)
      await world.pass(RUN_MS)
      const paused = await world.get(second.id)
      assert.deepEqual([paused.status, paused.thread_id], ['awaiting_input', first.thread_id])
      await world.request('POST', `/jobs/${second.id}/resume`, sub, { body: { input: 'yes' } })
      await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null, RUN_MS)
      assert.deepEqual((await world.stored(second.id)).output, { title: 'second', answer: 'yes' })
    })

    test('a turn that failed or was cancelled, before or after its start, can be continued', async () => {
      const world = await startJobWorld(under, TYPES)
      const failed = await finished(world, 'ada', { type: 'throwing', input: {} })
      assert.equal(failed.status, 'failed')
      const again = await finished(world, 'ada', { type: 'throwing', input: {}, continues: failed.id })
      assert.deepEqual([again.status, again.thread_id], ['failed', failed.thread_id])
      assert.equal(again.error?.code, 'run_failed')

      world.runtime.setFaults({ start_failure: 1 })
      const unstarted = await turn(world, 'ada', { type: 'report', input: { title: 'never' } })
      await world.request('POST', `/jobs/${unstarted.id}/cancel`, 'ada')
      await world.sweepUntil(async () => (await world.stored(unstarted.id)).status === 'cancelled')
      world.runtime.setFaults({ start_failure: 0 })
      const next = { type: 'report', input: { title: 'next' }, continues: unstarted.id }
      const second = await finished(world, 'ada', next)
      assert.deepEqual([second.status, second.output], ['completed', { title: 'next', n: 0 }])
    })

    test('an invalid request is refused before a run is started', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await finished(world, sub, { type: 'report', input: {} })
      const starts = world.calls(START_RUN)
      const refused = async (body: object, error: Parameters<typeof assertError>[2]) =>
        assertError(world.service, await post(world, sub, { type: 'report', continues: first.id, ...body }), error)
      const noInput = 'body/continues needs the field "input", which must not be null'
      await refused({}, invalid(noInput))
      await refused({ input: null }, invalid(noInput))
      await refused({ thread_id: first.thread_id, run_id: first.run_id }, invalid(noInput))
      await refused({ input: {}, thread_id: first.thread_id, run_id: first.run_id }, invalid(/either "input" or/))
      await refused({ input: {}, continues: 7 }, invalid(/body\/continues/))
      await refused({ input: {}, continues: '' }, invalid(/body\/continues/))
      const other = { status: 409, code: 'conflict', message: 'The job to continue is of the type report' } as const
      await refused({ type: 'agent', input: {} }, other)
      assert.equal(world.calls(START_RUN), starts)
    })

    test('one of many concurrent requests continues the thread', async () => {
      const world = await startJobWorld(under, { ...TYPES, db: await under.engine.openDatabase({ waitsLong: true }) })
      const sub = newUser()
      const first = await finished(world, sub, { type: 'report', input: {} })
      const next = { type: 'report', input: {}, continues: first.id }
      const answers = await Promise.all(Array.from({ length: 12 }, () => post(world, sub, next)))
      const accepted = answers.filter(({ status }) => status === 202)
      assert.equal(accepted.length, 1)
      for (const answer of answers) if (answer.status !== 202) assertError(world.service, answer, BUSY)
      await world.pass(RUN_MS)
      assert.equal(runsOn(world, first).length, 2)
    })

    test('an Idempotency-Key gets the first answer again, also when the turn has ended', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await finished(world, sub, { type: 'report', input: {} })
      const next = { type: 'report', input: {}, continues: first.id }
      const headers = { 'idempotency-key': randomUUID() }
      const answer = await post(world, sub, next, headers)
      const during = await post(world, sub, next, headers)
      await world.pass(RUN_MS)
      const after = await post(world, sub, next, headers)
      assert.deepEqual([during.body.id, after.body.id], [answer.body.id, answer.body.id])
      assert.equal(after.headers['idempotency-replayed'], 'true')
      assert.equal(runsOn(world, first).length, 2)
    })

    test('a start whose answer was lost finds its own run, never that of an earlier turn', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'report', input: { title: 'first' } })
      world.runtime.setFaults({ lose_start_answers: 1, drop_callbacks: 1 })
      const second = await turn(world, 'ada', { type: 'report', input: { title: 'second' }, continues: first.id })
      assert.equal((await world.stored(second.id)).run_id, null)
      world.runtime.setFaults({ lose_start_answers: 0 })
      await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null)
      const ended = await world.stored(second.id)
      assert.deepEqual([ended.status, ended.output], ['completed', { title: 'second', n: 0 }])
      assert.notEqual(ended.run_id, first.run_id)
      assert.equal(runsOn(world, first).length, 2)
    })

    test('an unknown run on the thread is not mistaken for the run of the waiting turn', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'report', input: { title: 'first' } })
      world.runtime.setFaults({ start_failure: 1 })
      const second = await turn(world, 'ada', { type: 'report', input: { title: 'second' }, continues: first.id })
      const foreign = {
        thread_id: first.thread_id,
        run_id: randomUUID(),
        status: 'success',
        values: { report: { title: 'of an earlier turn' } },
      }
      const answer = await world.callback('report', foreign)
      assert.deepEqual([answer.body.outcome, answer.body.job_id], ['deferred', second.id])
      const waiting = await world.stored(second.id)
      assert.deepEqual([waiting.status, waiting.run_id], ['processing', null])
      world.runtime.setFaults({ start_failure: 0 })
      await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null)
      assert.deepEqual((await world.stored(second.id)).output, { title: 'second', n: 0 })
    })

    test('a callback of the turn that names no job causes a check, which ends the turn', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'report', input: { title: 'first' } })
      world.runtime.setFaults({ lose_start_answers: 1, drop_callbacks: 1 })
      const second = await turn(world, 'ada', { type: 'report', input: { title: 'second' }, continues: first.id })
      await world.pass(RUN_MS)
      const [run] = runsOn(world, first)
      assert.ok(run && run.runId !== first.run_id)
      world.runtime.setFaults({ lose_start_answers: 0 })
      const { runId: run_id, threadId: thread_id, values } = run
      const answer = await world.callback('report', { run_id, thread_id, status: 'success', values })
      assert.deepEqual([answer.body.outcome, answer.body.job_id], ['deferred', second.id])
      await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null)
      const ended = await world.stored(second.id)
      assert.deepEqual([ended.run_id, ended.output], [run_id, { title: 'second', n: 0 }])
    })

    test('the replay of a callback that names no job proves nothing about a turn that waits for its start', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'report', input: { title: 'first' } })
      world.runtime.setFaults({ start_failure: 1 })
      const second = await turn(world, 'ada', { type: 'report', input: { title: 'second' }, continues: first.id })
      const late = { thread_id: first.thread_id, run_id: randomUUID(), status: 'success', values: { report: 1 } }
      assert.equal((await world.callback('report', late)).body.job_id, second.id)
      const [stored] = await world.db.query<{ id: string }>(sql`select id from callbacks where run_id = ${late.run_id}`)
      const replay = `/v1/callbacks/${stored?.id}/replay`
      const answer = await world.service.request<{ outcome: string }>('POST', replay, { token: world.admin })
      assert.deepEqual([answer.status, answer.body.outcome], [200, 'deferred'])
      world.runtime.setFaults({ start_failure: 0 })
      await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null)
      const ended = await world.stored(second.id)
      assert.notEqual(ended.run_id, late.run_id)
      assert.deepEqual(ended.output, { title: 'second', n: 0 })
    })

    test('a thread that the runtime has lost fails the turn: it is not answered without its history', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'agent', input: says('remember me') })
      await fetch(`${world.runtime.url}/threads/${first.thread_id}`, { method: 'DELETE' })
      const starts = world.calls(START_RUN)
      const second = await finished(world, 'ada', { type: 'agent', input: says('who am I?'), continues: first.id })
      assert.equal(second.status, 'failed')
      assert.deepEqual(second.error, { code: 'run_lost', message: 'The runtime no longer knows the thread' })
      assert.equal(world.calls(START_RUN), starts)
    })

    test('a deleted turn leaves the later ones as they are, and its late callback changes nothing', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'report', input: { title: 'first' } })
      world.runtime.setFaults({ start_failure: 1 })
      const second = await turn(world, 'ada', { type: 'report', input: { title: 'second' }, continues: first.id })
      assert.equal((await world.request('DELETE', `/jobs/${first.id}`, 'ada')).status, 204)
      const late = { thread_id: first.thread_id, run_id: first.run_id, status: 'success', values: { report: 1 } }
      assert.equal((await world.callback('report', late)).body.outcome, 'stale')
      world.runtime.setFaults({ start_failure: 0 })
      await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null)
      const ended = await world.stored(second.id)
      assert.deepEqual([ended.continues, ended.output], [first.id, { title: 'second', n: 0 }])
      assertError(world.service, await post(world, 'ada', { type: 'report', input: {}, continues: first.id }), UNKNOWN)
      assert.equal((await post(world, 'ada', { type: 'report', input: {}, continues: second.id })).status, 202)
    })

    test('a turn fails if its thread is lost, also when the turn before it was deleted', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'agent', input: says('remember me') })
      world.runtime.setFaults({ start_failure: 1 })
      const second = await turn(world, 'ada', { type: 'agent', input: says('who am I?'), continues: first.id })
      assert.equal((await world.request('DELETE', `/jobs/${first.id}`, 'ada')).status, 204)
      await fetch(`${world.runtime.url}/threads/${first.thread_id}`, { method: 'DELETE' })
      world.runtime.setFaults({ start_failure: 0 })
      await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null)
      const ended = await world.stored(second.id)
      assert.deepEqual([ended.status, ended.error?.code, ended.thread_id], ['failed', 'run_lost', first.thread_id])
    })

    test('a turn can be repeated when the turn before it was deleted', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'agent', input: says('one') })
      const second = await finished(world, 'ada', { type: 'agent', input: says('two'), continues: first.id })
      assert.equal((await world.request('DELETE', `/jobs/${first.id}`, 'ada')).status, 204)
      const retried = await world.request('POST', `/jobs/${second.id}/retry`, 'ada')
      assert.equal(retried.status, 202, retried.text)
      await world.quiet()
      await world.sweepUntil(async () => (await world.stored(retried.body.id)).finished_at !== null, RUN_MS)
      const { status, thread_id, continues } = await world.stored(retried.body.id)
      assert.deepEqual([status, thread_id, continues], ['completed', first.thread_id, first.id])
    })

    const threadOf = async ({ db }: JobWorld, { thread_id }: ShownJob) => {
      const [row] = await db.query<{ newest: string; title: string | null; owner: string | null }>(
        sql`select newest, title, owner from threads where id = ${thread_id}`,
      )
      return row
    }

    test('a conversation has a title and its newest turn, and is gone with its last job', async () => {
      const world = await shared()
      const sub = newUser()
      const long = `What  is\n${'so '.repeat(40)}long?`
      const first = await finished(world, sub, { type: 'agent', input: says(long) })
      const title = `What is ${'so '.repeat(40)}`.slice(0, 79)
      assert.deepEqual(await threadOf(world, first), { newest: first.id, title: `${title}…`, owner: sub })
      const second = await finished(world, sub, { type: 'agent', input: says('two'), continues: first.id })
      assert.deepEqual(await threadOf(world, first), { newest: second.id, title: `${title}…`, owner: sub })
      assert.equal((await world.request('DELETE', `/jobs/${second.id}`, sub)).status, 204)
      assert.equal((await threadOf(world, first))?.newest, first.id)
      assert.equal((await world.request('DELETE', `/jobs/${first.id}`, sub)).status, 204)
      assert.equal(await threadOf(world, first), undefined)
    })

    test('a conversation is deleted with all its jobs, and its thread at the runtime', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'agent', input: says('one') })
      const path = `/v1/conversations/${first.thread_id.toUpperCase()}`
      const second = await turn(world, 'ada', { type: 'agent', input: says('two'), continues: first.id })
      const refused = (sub: string) => world.request('DELETE', path, sub)
      const none = { status: 404, code: 'not_found', message: 'No such conversation' } as const
      assertError(world.service, await refused('ada'), BUSY)
      assertError(world.service, await refused('eve'), none)
      assertError(world.service, await world.request('DELETE', `/v1/conversations/${randomUUID()}`, 'ada'), none)
      await world.pass(RUN_MS)
      const threadStatus = async () => (await fetch(`${world.runtime.url}/threads/${first.thread_id}/state`)).status
      assert.equal(await threadStatus(), 200)
      assert.equal((await refused('ada')).status, 204)
      assert.equal(await threadStatus(), 404)
      for (const { id } of [first, second]) assert.equal((await world.request('GET', `/jobs/${id}`, 'ada')).status, 404)
      assert.equal(await threadOf(world, first), undefined)
      assertError(world.service, await refused('ada'), none)
    })

    test('a conversation stays whole if the runtime cannot delete its thread', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'agent', input: says('one') })
      const path = `/v1/conversations/${first.thread_id}`
      world.runtime.setFaults({ lookup_failure: 1 })
      assertError(world.service, await world.request('DELETE', path, 'ada'), {
        status: 503,
        code: 'service_unavailable',
        message: 'The agent runtime cannot delete the thread now',
      })
      world.runtime.setFaults({ lookup_failure: 0 })
      const second = await finished(world, 'ada', { type: 'agent', input: says('two'), continues: first.id })
      assert.equal(second.status, 'completed')
      const token = world.admin
      assert.equal((await world.service.request('DELETE', path, { token })).status, 204)
      const audit = await world.service.request<{ data: { action: string; object: { id: string } }[] }>(
        'GET',
        '/v1/audit?action=conversation.deleted',
        { token },
      )
      assert.deepEqual(
        audit.body.data.map(({ object }) => object.id),
        [first.thread_id],
      )
    })

    test('a thread that was started elsewhere stays at the runtime when its conversation is deleted', async () => {
      const world = await shared()
      const sub = newUser()
      const { thread_id, run_id } = await world.startElsewhere({ user_id: sub })
      const followed = await post(world, sub, { type: 'report', thread_id, run_id })
      assert.equal(followed.status, 202, followed.text)
      await world.sweepUntil(async () => (await world.stored(followed.body.id)).finished_at !== null)
      assert.equal((await world.request('DELETE', `/v1/conversations/${thread_id}`, sub)).status, 204)
      assert.equal((await fetch(`${world.runtime.url}/threads/${thread_id}/state`)).status, 200)
      assert.equal((await world.request('GET', `/jobs/${followed.body.id}`, sub)).status, 404)
    })

    test('a user deletes only their own jobs on a thread whose runs several users follow', async () => {
      const world = await shared()
      const [ada, bob] = [newUser(), newUser()]
      const ofAda = await world.startElsewhere({ user_id: ada })
      const follow = async (sub: string, run: { thread_id: string; run_id: string }) => {
        const { body } = await post(world, sub, { type: 'report', ...run })
        await world.sweepUntil(async () => (await world.stored(body.id)).finished_at !== null)
        return body.id
      }
      const adas = await follow(ada, ofAda)
      const bobs = await follow(bob, await again(world, ofAda, bob))
      const path = `/v1/conversations/${ofAda.thread_id}`
      assert.equal((await world.request('DELETE', path, ada)).status, 204)
      assert.equal((await world.request('GET', `/jobs/${adas}`, ada)).status, 404)
      assert.equal((await world.request('GET', `/jobs/${bobs}`, bob)).status, 200)
      assert.equal((await world.request('DELETE', path, ada)).status, 404)
      assert.equal((await world.request('DELETE', path, bob)).status, 204)
    })

    test('a thread on which another user has jobs stays at the runtime, and no other user can interrupt its turns', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'agent', input: says('one') })
      const { thread_id } = first
      const run_id = await world.continueElsewhere(
        { thread_id },
        { assistant_id: 'agent', input: says('two'), metadata: { user_id: 'bob' } },
      )
      await world.pass(RUN_MS)
      const followed = await finished(world, 'bob', { type: 'agent', thread_id, run_id })
      const slow = { ...says('three'), sandbox: { duration_ms: 20_000 } }
      const third = await turn(world, 'ada', { type: 'agent', input: slow, continues: first.id })
      const interrupting = { type: 'agent', input: says('mine'), continues: followed.id, on_busy: 'interrupt' }
      assertError(world.service, await post(world, 'bob', interrupting), {
        status: 409,
        code: 'conflict',
        message: 'A job of another user on the thread is unfinished',
      })
      await world.sweepUntil(async () => (await world.stored(third.id)).finished_at !== null)
      assert.equal((await world.stored(third.id)).status, 'completed')
      assert.equal((await world.request('DELETE', `/v1/conversations/${thread_id}`, 'bob')).status, 204)
      assert.equal((await world.request('GET', `/jobs/${followed.id}`, 'bob')).status, 404)
      const fourth = await finished(world, 'ada', { type: 'agent', input: says('four'), continues: third.id })
      assert.equal(fourth.status, 'completed')
      assert.equal((await world.request('DELETE', `/v1/conversations/${thread_id}`, 'ada')).status, 204)
      assert.equal((await fetch(`${world.runtime.url}/threads/${thread_id}/state`)).status, 404)
    })

    test('a conversation whose owner deletes it, and on which another user has jobs, then belongs to that user and has no title', async () => {
      const world = await shared()
      const [ada, bob] = [newUser(), newUser()]
      const first = await finished(world, ada, { type: 'agent', input: says('my words') })
      const { thread_id } = first
      const run = { assistant_id: 'agent', input: says('two'), metadata: { user_id: bob } }
      const run_id = await world.continueElsewhere({ thread_id }, run)
      await world.pass(RUN_MS)
      const followed = await finished(world, bob, { type: 'agent', thread_id, run_id })
      assert.deepEqual(await threadOf(world, first), { newest: followed.id, title: 'my words', owner: ada })
      assert.equal((await world.request('DELETE', `/v1/conversations/${thread_id}`, ada)).status, 204)
      assert.deepEqual(await threadOf(world, first), { newest: followed.id, title: null, owner: bob })
      const listed = await world.service.request<{ data: { thread_id: string }[] }>('GET', '/v1/conversations', {
        token: world.token(bob),
      })
      assert.deepEqual(
        listed.body.data.map((one) => one.thread_id),
        [thread_id],
      )
    })

    test('the conversation of a claimed job belongs to its new owner', async () => {
      const world = await shared()
      const sub = newUser()
      const run = await world.startElsewhere({ user_id: sub })
      const adopted = await world.callback('report', { ...run, status: 'success', values: { report: 1 } })
      assert.equal(adopted.body.outcome, 'adopted')
      assert.equal((await post(world, sub, { type: 'report', ...run })).status, 202)
      await world.sweepUntil(async () => (await world.stored(adopted.body.job_id)).finished_at !== null)
      assert.equal((await world.request('DELETE', `/v1/conversations/${run.thread_id}`, sub)).status, 204)
    })

    test('no job follows a run on a thread that is being deleted', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await world.startElsewhere({ user_id: sub })
      const followed = await post(world, sub, { type: 'report', ...first })
      await world.sweepUntil(async () => (await world.stored(followed.body.id)).finished_at !== null)
      const { thread_id } = first
      await world.db.query(sql`update threads set deleting_at = ${world.clock.now()} where id = ${thread_id}`)
      const second = await again(world, first, sub)
      assertError(world.service, await post(world, sub, { type: 'report', ...second }), {
        status: 409,
        code: 'conflict',
        message: 'The conversation is being deleted',
      })
    })

    test('a late callback that names no job becomes no second job: the thread is known', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'report', input: { title: 'first' } })
      const late = { thread_id: first.thread_id, run_id: randomUUID(), status: 'success', values: { report: 1 } }
      const answer = await world.callback('report', late)
      assert.deepEqual([answer.body.outcome, answer.body.job_id], ['stale', first.id])
      const [jobs] = await world.db.query<{ n: number }>(sql`select count(*) as n from jobs`)
      assert.equal(jobs?.n, 1)
    })

    test('cancelling a turn ends that turn alone', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await finished(world, 'ada', { type: 'report', input: { title: 'first' } })
      const second = await turn(world, 'ada', { type: 'report', input: { title: 'second' }, continues: first.id })
      await world.clock.advance(100)
      await world.request('POST', `/jobs/${second.id}/cancel`, 'ada')
      await world.sweepUntil(async () => (await world.stored(second.id)).finished_at !== null)
      assert.equal((await world.stored(second.id)).status, 'cancelled')
      const kept = await world.stored(first.id)
      assert.deepEqual([kept.status, kept.output], ['completed', { title: 'first', n: 0 }])
      const third = await finished(world, 'ada', { type: 'report', input: { title: 'third' }, continues: second.id })
      assert.deepEqual(third.output, { title: 'third', n: 0 })
    })
  })
})
