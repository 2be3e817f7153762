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

const TYPES: WorldOptions = {
  jobTypes: toJobTypes({
    agent: { assistant_id: 'agent', deadline_seconds: 60 },
    limited: { assistant_id: 'agent', max_running: 1 },
    strict: { assistant_id: 'agent', input_schema: { type: 'object', required: ['messages'] } },
    pausing: { assistant_id: 'pause', output_key: 'report' },
  }),
}

const BUSY = { status: 409, code: 'conflict', message: 'A job on the thread is unfinished' } as const
const invalid = (message: string | RegExp) => ({ status: 400, code: 'invalid_request', message }) as const
const newUser = () => `user-${randomUUID()}`
const says = (content: string, durationMs?: number) => ({
  messages: [{ role: 'user', content }],
  ...(durationMs !== undefined && { sandbox: { duration_ms: durationMs } }),
})

describe('turns of a conversation', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under, TYPES)

    const post = (world: JobWorld, sub: string, body: object) =>
      world.request('POST', '/jobs', sub, { body: { type: 'agent', ...body } })
    const begun = async (world: JobWorld, sub: string, body: object): Promise<ShownJob> => {
      const answer = await post(world, sub, body)
      assert.equal(answer.status, 202, answer.text)
      await world.quiet()
      return answer.body
    }
    const ended = async (world: JobWorld, { id }: ShownJob, everyMs = RUN_MS): Promise<ShownJob> => {
      await world.sweepUntil(async () => (await world.stored(id)).finished_at !== null, everyMs)
      return world.stored(id)
    }
    const runsOf = ({ runtime }: JobWorld, { thread_id }: ShownJob) =>
      runtime.runs.filter(({ threadId }) => threadId === thread_id)
    const kindsOf = async ({ db }: JobWorld, { id }: ShownJob) => {
      const rows = await db.query<{ kind: string }>(sql`select kind from job_timeline where job_id = ${id} order by id`)
      return rows.map(({ kind }) => kind)
    }

    test('turns that are enqueued wait, and run one after the other in their order', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await begun(world, sub, { input: says('one', 5_000) })
      const second = await begun(world, sub, { input: says('two', 5_000), continues: first.id, on_busy: 'enqueue' })
      const third = await begun(world, sub, { input: says('three'), continues: first.id, on_busy: 'enqueue' })
      const shown = await world.get(third.id)
      assert.deepEqual(
        [second.queued_behind, third.queued_behind, shown.queued_behind],
        [first.id, second.id, second.id],
      )
      assert.deepEqual([shown.status, shown.run_id, shown.reconcile.next_at], ['processing', null, null])
      assert.equal(runsOf(world, first).length, 1)
      assert.equal((await ended(world, first)).output, 'You said: one')
      await world.sweepUntil(async () => (await world.stored(second.id)).run_id !== null)
      assert.equal((await world.stored(third.id)).queued_behind, second.id)
      assert.equal((await world.stored(second.id)).queued_behind, null)
      assert.equal((await ended(world, third)).output, 'You said: three')
      const runs = runsOf(world, first)
      assert.deepEqual(
        runs.map(({ metadata }) => metadata.job_id),
        [first.id, second.id, third.id],
      )
      for (const [n, run] of runs.slice(1).entries()) assert.ok(run.createdAtMs >= (runs[n]?.endedAtMs ?? 0))
      assert.equal(
        (runs.at(-1)?.values?.messages as object[] | undefined)?.length,
        6,
        'the last turn saw the whole conversation',
      )
      assert.ok((await kindsOf(world, third)).includes('turn_began'))
    })

    test('the deadline of a turn begins when the turn begins', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await begun(world, sub, { input: says('long', 50_000) })
      const second = await begun(world, sub, { input: says('short', 20_000), continues: first.id, on_busy: 'enqueue' })
      assert.equal((await ended(world, second, 5_000)).status, 'completed', 'after 70 s, with a deadline of 60 s')
    })

    test('five turns may wait on a thread; a further one is refused', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await begun(world, sub, { input: says('one', 5_000) })
      const next = { input: says('next'), continues: first.id, on_busy: 'enqueue' }
      const waiting: ShownJob[] = []
      for (let n = 0; n < 5; n++) waiting.push(await begun(world, sub, next))
      const full = { status: 409, code: 'conflict', message: '5 turns already wait on the thread' } as const
      assertError(world.service, await post(world, sub, next), full)
      assertError(world.service, await post(world, sub, { ...next, on_busy: 'reject' }), BUSY)
      assertError(world.service, await post(world, sub, { input: says('next'), continues: first.id }), BUSY)
      for (const job of waiting) assert.equal((await ended(world, job)).status, 'completed')
    })

    test('a failed or cancelled turn does not drop those behind it', async () => {
      const world = await shared()
      const sub = newUser()
      const failing = { ...says('one'), sandbox: { duration_ms: 5_000, fail: 'no' } }
      const first = await begun(world, sub, { input: failing })
      const enqueue = (content: string) =>
        begun(world, sub, { input: says(content), continues: first.id, on_busy: 'enqueue' })
      const second = await enqueue('two')
      const third = await enqueue('three')
      const cancelled = await world.cancel(second)
      assert.deepEqual([cancelled.status, cancelled.body.status], [200, 'cancelled'])
      assert.equal((await world.stored(third.id)).queued_behind, first.id)
      assert.equal((await ended(world, first)).status, 'failed')
      assert.equal((await ended(world, third)).output, 'You said: three')
      assert.equal((await world.stored(second.id)).run_id, null)
    })

    test('a paused turn holds those behind it', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await begun(world, sub, { type: 'pausing', input: { title: 'first' } })
      const enqueued = { type: 'pausing', input: { title: 'second' }, continues: first.id, on_busy: 'enqueue' }
      const second = await begun(world, sub, enqueued)
      await world.sweepUntil(async () => (await world.stored(first.id)).status === 'awaiting_input', RUN_MS)
      await world.pass(5_000)
      assert.equal((await world.stored(second.id)).queued_behind, first.id)
      assert.equal((await world.resume(first, { input: 'yes' })).status, 202)
      assert.equal((await ended(world, first)).status, 'completed')
      await world.sweepUntil(async () => (await world.stored(second.id)).status === 'awaiting_input')
    })

    test('an interrupting turn cancels the unfinished ones, and starts when the runtime has ended its run', async () => {
      const world = await startJobWorld(under, TYPES)
      const first = await begun(world, 'ada', { input: says('one', 60_000) })
      await world.pass(1_000)
      const second = await begun(world, 'ada', { input: says('two'), continues: first.id, on_busy: 'enqueue' })
      world.runtime.setFaults({ hang_lookups: true })
      const third = await post(world, 'ada', { input: says('three'), continues: first.id, on_busy: 'interrupt' })
      assert.equal(third.status, 202)
      assert.equal(third.body.queued_behind, first.id)
      assert.equal((await world.stored(second.id)).status, 'cancelled')
      assert.deepEqual([(await world.stored(first.id)).finished_at, world.calls(START_RUN)], [null, 1])
      world.runtime.setFaults({ hang_lookups: false })
      const last = await ended(world, third.body)
      assert.equal(last.output, 'You said: three')
      assert.equal((await world.stored(first.id)).status, 'cancelled')
      const [before, after] = runsOf(world, first)
      assert.ok(before && after && after.createdAtMs >= (before.endedAtMs ?? Number.POSITIVE_INFINITY))
    })

    test('an interrupting turn starts at once if no run is active', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await begun(world, sub, { type: 'pausing', input: { title: 'first' } })
      await world.sweepUntil(async () => (await world.stored(first.id)).status === 'awaiting_input', RUN_MS)
      const interrupting = { type: 'pausing', input: { title: 'second' }, continues: first.id, on_busy: 'interrupt' }
      const second = await begun(world, sub, interrupting)
      assert.deepEqual([second.queued_behind, (await world.stored(first.id)).status], [null, 'cancelled'])
      await world.sweepUntil(async () => (await world.stored(second.id)).status === 'awaiting_input', RUN_MS)
      const third = await begun(world, sub, { ...interrupting, on_busy: 'interrupt', continues: second.id })
      assert.equal(third.queued_behind, null)
    })

    test('of many interrupting turns one runs at a time, and only the last one is not cancelled', async () => {
      const world = await startJobWorld(under, { ...TYPES, db: await under.engine.openDatabase({ waitsLong: true }) })
      const first = await begun(world, 'ada', { input: says('one', 10_000) })
      await world.pass(500)
      const interrupting = { continues: first.id, on_busy: 'interrupt' }
      const answers = await Promise.all(
        Array.from({ length: 6 }, (_, n) => post(world, 'ada', { ...interrupting, input: says(`n${n}`, 2_000) })),
      )
      await world.quiet()
      for (const { status, text } of answers) assert.equal(status, 202, text)
      const jobs: ShownJob[] = []
      for (const { body } of answers) jobs.push(await ended(world, body))
      assert.deepEqual(jobs.map(({ status }) => status).sort(), [
        ...Array.from({ length: 5 }, () => 'cancelled'),
        'completed',
      ])
      const last = jobs
        .map(({ id }) => id)
        .sort()
        .at(-1)
      assert.equal(jobs.find(({ status }) => status === 'completed')?.id, last)
    })

    test('a turn of a type with a limit waits for its turn, then for its place', async () => {
      const world = await startJobWorld(under, TYPES)
      const limited = (body: object) => begun(world, 'ada', { type: 'limited', ...body })
      const first = await limited({ input: says('one', 5_000) })
      const second = await limited({ input: says('two'), continues: first.id, on_busy: 'enqueue' })
      const other = await limited({ input: says('other', 5_000) })
      assert.equal((await ended(world, first)).status, 'completed')
      await world.sweepUntil(async () => (await world.stored(second.id)).queued_behind === null, RUN_MS)
      for (const job of [other, second]) assert.equal((await ended(world, job)).status, 'completed')
      const runs = [...world.runtime.runs].sort((a, b) => a.createdAtMs - b.createdAtMs)
      assert.equal(runs.length, 3)
      for (const [n, run] of runs.slice(1).entries()) assert.ok(run.createdAtMs >= (runs[n]?.endedAtMs ?? 0))
    })

    test('a turn that waits does not begin beyond a limit that its owner has used up meanwhile', async () => {
      const world = await shared()
      for (const { runs, status } of [
        { runs: 1, status: 'cancelled' },
        { runs: 2, status: 'completed' },
      ]) {
        const sub = newUser()
        const first = await begun(world, sub, { input: says('one', 5_000) })
        const second = await begun(world, sub, { input: says('two'), continues: first.id, on_busy: 'enqueue' })
        const limits = { token: world.admin, body: { runs, tokens: null } }
        assert.equal((await world.service.request('PUT', `/v1/users/${sub}/limits`, limits)).status, 200)
        assert.equal((await ended(world, first)).status, 'completed')
        assert.equal((await ended(world, second)).status, status)
        assert.equal(runsOf(world, first).length, runs)
        const reasons = await world.db.query<{ detail: string }>(
          sql`select detail from job_timeline where job_id = ${second.id} and kind = 'cancel_requested'`,
        )
        assert.deepEqual(
          reasons.map(({ detail }) => JSON.parse(detail) as object),
          status === 'cancelled' ? [{ reason: 'usage_limit_exceeded' }] : [],
        )
      }
    })

    test('the input of a turn can be replaced while the turn waits', async () => {
      const world = await shared()
      const [sub, other] = [newUser(), newUser()]
      const first = await begun(world, sub, { type: 'strict', input: says('one', 5_000) })
      const enqueued = { type: 'strict', input: says('two'), continues: first.id, on_busy: 'enqueue' }
      const second = await begun(world, sub, enqueued)
      const patch = (job: ShownJob, body: object, by = sub) => world.request('PATCH', `/jobs/${job.id}`, by, { body })
      const changed = await patch(second, { input: says('two again') })
      assert.equal(changed.status, 200, changed.text)
      assert.deepEqual([changed.body.input, changed.body.queued_behind], [says('two again'), first.id])
      assert.ok((await kindsOf(world, second)).includes('input_replaced'))
      assertError(world.service, await patch(second, { input: {} }), invalid(/^body\/input must have/))
      assertError(world.service, await patch(second, {}), invalid(/input/))
      assertError(world.service, await patch(second, { input: says('x'), type: 'agent' }), invalid(/type/))
      assertError(world.service, await patch(second, { input: says('x') }, other), {
        status: 404,
        code: 'not_found',
        message: 'No such job',
      })
      const tooLate = (status: string) => ({
        status: 409,
        code: 'conflict' as const,
        message: `The job is ${status}: only the input of a turn that waits can be replaced`,
      })
      assertError(world.service, await patch(first, { input: says('x') }), tooLate('processing'))
      assert.equal((await ended(world, second)).output, 'You said: two again')
      assertError(world.service, await patch(second, { input: says('x') }), tooLate('completed'))
    })

    test('on_busy is refused where it means nothing', async () => {
      const world = await shared()
      const sub = newUser()
      const refused = async (body: object, message: string | RegExp) =>
        assertError(world.service, await post(world, sub, body), invalid(message))
      await refused({ input: says('one'), on_busy: 'enqueue' }, 'body/on_busy needs the field "continues"')
      await refused({ thread_id: randomUUID(), run_id: randomUUID(), on_busy: 'reject' }, /on_busy needs/)
      await refused({ input: says('one'), continues: 'job_1', on_busy: 'wait' }, /body\/on_busy/)
    })
  })
})
