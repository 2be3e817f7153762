import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { toRfc3339 } from '../../src/core/clock.ts'
import { sql } from '../../src/db/sql.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { assertError } from '../support/assert-error.ts'
import { SteppedClock } from '../support/clocked-database.ts'
import { readJobRows } from '../support/job-rows.ts'
import { type JobWorld, RUN_MS, type ShownJob, START_RUN, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { forEachService } from '../support/service.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const jobTypes = toJobTypes({
  agent: { assistant_id: 'agent', deadline_seconds: 60 },
  pausing: { assistant_id: 'pause', output_key: 'report' },
  single: { assistant_id: 'report', output_key: 'report', may_pause: false, max_running: 1 },
})
const newUser = () => `user-${randomUUID()}`
const says = (content: string) => ({ messages: [{ role: 'user', content }] })
const invalid = (message: string) => ({ status: 400, code: 'invalid_request', message }) as const

interface Entry {
  kind: string
  detail: { reason?: string; run_at?: string }
}

describe('jobs with run_at', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under, { jobTypes, env: { MAX_UNFINISHED_JOBS: '3' } })
    const post = (world: JobWorld, sub: string, body: object) =>
      world.request('POST', '/jobs', sub, { body: { type: 'agent', input: says('hello'), ...body } })
    const delay = async (
      world: JobWorld,
      sub: string,
      { inMs = HOUR_MS, ...body }: { inMs?: number; [field: string]: unknown } = {},
    ) => {
      const answer = await post(world, sub, { run_at: toRfc3339(world.clock.now() + inMs), ...body })
      assert.equal(answer.status, 202, answer.text)
      await world.quiet()
      return answer.body
    }
    const runsOf = ({ runtime }: JobWorld, { thread_id }: ShownJob) =>
      runtime.runs.filter(({ threadId }) => threadId === thread_id)
    const ended = async (world: JobWorld, { id }: ShownJob): Promise<ShownJob> => {
      await world.sweepUntil(async () => (await world.stored(id)).finished_at !== null)
      return world.stored(id)
    }
    const timelineOf = async (world: JobWorld, { id }: ShownJob): Promise<Entry[]> => {
      const answer = await world.service.request<{ data: Entry[] }>('GET', `/jobs/${id}/timeline`, {
        token: world.admin,
      })
      return answer.body.data
    }

    const cancelReasonsOf = async (world: JobWorld, job: ShownJob) =>
      (await timelineOf(world, job)).flatMap(({ kind, detail }) => (kind === 'cancel_requested' ? [detail] : []))

    test('a delayed job does not start early, starts once, and its deadline begins then', async () => {
      const world = await shared()
      const job = await delay(world, newUser())
      assert.deepEqual(
        [job.status, job.run_id, job.queued_behind, job.reconcile.next_at],
        ['processing', null, null, null],
      )
      assert.equal(job.run_at, toRfc3339(Date.parse(job.created_at) + HOUR_MS))
      await world.leap(HOUR_MS - 1)
      assert.equal((await world.get(job.id)).run_id, null)
      assert.equal(runsOf(world, job).length, 0)
      const done = await ended(world, job)
      assert.deepEqual([done.status, done.output, done.run_at], ['completed', 'You said: hello', job.run_at])
      assert.ok(Date.parse(String(done.started_at)) >= Date.parse(String(job.run_at)))
      const { deadline_at } = (await readJobRows(world.db, job.id)).job
      assert.ok(Number(deadline_at) >= Date.parse(String(job.run_at)) + 60_000)
      assert.equal(runsOf(world, job).length, 1)
      const entries = await timelineOf(world, job)
      assert.deepEqual([entries[0]?.kind, entries[0]?.detail.run_at], ['created', job.run_at])
      assert.ok(entries.some(({ kind }) => kind === 'turn_began'))
    })

    test('run_at in the past starts at once, and more than 30 days ahead is refused', async () => {
      const world = await shared()
      const past = await delay(world, newUser(), { inMs: -DAY_MS })
      assert.equal(runsOf(world, past).length, 1)
      const now = await delay(world, newUser(), { inMs: 0 })
      assert.equal(runsOf(world, now).length, 1)
      const answer = await post(world, newUser(), { run_at: toRfc3339(world.clock.now() + 30 * DAY_MS + 1_000) })
      assertError(world.service, answer, invalid('body/run_at must be at most 30 days ahead'))
      assert.equal((await delay(world, newUser(), { inMs: 30 * DAY_MS - 1_000 })).run_id, null)
      const malformed = await post(world, newUser(), { run_at: 'tomorrow' })
      assert.equal(malformed.status, 400)
    })

    test('run_at fits no run that is followed, and no interruption', async () => {
      const world = await shared()
      const sub = newUser()
      const run_at = toRfc3339(world.clock.now() + HOUR_MS)
      const follow = { type: 'agent', thread_id: randomUUID(), run_id: randomUUID(), run_at }
      const followed = await world.request('POST', '/jobs', sub, { body: follow })
      assertError(world.service, followed, invalid('body/run_at needs the field "input"'))
      const first = await delay(world, sub, { inMs: 0 })
      const interrupting = await post(world, sub, { continues: first.id, on_busy: 'interrupt', run_at })
      const message = 'body/on_busy must not be "interrupt" with "run_at": nothing starts now'
      assertError(world.service, interrupting, invalid(message))
    })

    test('while it waits, its input can be replaced, it can be cancelled, and it counts as unfinished', async () => {
      const world = await shared()
      const sub = newUser()
      const [kept, cancelled] = [await delay(world, sub), await delay(world, sub), await delay(world, sub)]
      const fourth = await post(world, sub, { run_at: toRfc3339(world.clock.now() + HOUR_MS) })
      assertError(world.service, fourth, {
        status: 429,
        code: 'usage_limit_exceeded',
        message: 'The limit of 3 unfinished jobs is reached',
      })
      const patched = await world.request('PATCH', `/jobs/${kept.id}`, sub, { body: { input: says('replaced') } })
      assert.equal(patched.status, 200, patched.text)
      const titles = await world.db.query(sql`select title from threads where id = ${kept.thread_id}`)
      assert.deepEqual(titles, [{ title: 'replaced' }])
      assert.deepEqual((await world.cancel(cancelled)).body.status, 'cancelled')
      await world.leap(HOUR_MS)
      assert.equal((await ended(world, kept)).output, 'You said: replaced')
      assert.equal(runsOf(world, cancelled).length, 0)
      const late = await world.request('PATCH', `/jobs/${kept.id}`, sub, { body: { input: says('late') } })
      assert.equal(late.status, 409)
    })

    test('a delayed turn keeps its place in the conversation', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await delay(world, sub, { inMs: 0 })
      const second = await delay(world, sub, { continues: first.id, on_busy: 'enqueue', input: says('second') })
      assert.equal(second.queued_behind, first.id)
      await ended(world, first)
      assert.equal((await world.stored(second.id)).queued_behind, null)
      const refused = await post(world, sub, { continues: first.id })
      const message = 'A job on the thread is unfinished'
      assertError(world.service, refused, { status: 409, code: 'conflict', message })
      const third = await post(world, sub, { continues: first.id, on_busy: 'enqueue', input: says('third') })
      assert.equal(third.body.queued_behind, second.id)
      await world.leap(HOUR_MS / 2)
      assert.equal(runsOf(world, first).length, 1)
      await world.leap(HOUR_MS / 2)
      await ended(world, third.body)
      const inputs = runsOf(world, first).map(({ metadata }) => metadata.job_id)
      assert.deepEqual(inputs, [first.id, second.id, third.body.id])
    })

    test('the delayed job of a user who is blocked then ends cancelled, and the timeline says why', async () => {
      const world = await shared()
      const admin = { token: world.admin }
      const [blocked, unblocked] = [newUser(), newUser()]
      const jobs = [await delay(world, blocked), await delay(world, unblocked)] as const
      for (const sub of [blocked, unblocked]) await world.service.request('POST', `/v1/users/${sub}/block`, admin)
      await world.service.request('POST', `/v1/users/${unblocked}/unblock`, admin)
      await world.leap(HOUR_MS)
      assert.equal((await ended(world, jobs[0])).status, 'cancelled')
      assert.equal((await ended(world, jobs[1])).status, 'completed')
      assert.equal(runsOf(world, jobs[0]).length, 0)
      assert.deepEqual(await cancelReasonsOf(world, jobs[0]), [{ reason: 'user_blocked' }])
    })

    test('a block after run_at cancels a delayed job that still waits for its place', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const input = { title: 'Done', sandbox: { duration_ms: 30_000 } }
      const job = await delay(world, 'ada', { type: 'single', input })
      await world.leap(HOUR_MS - 5_000)
      const busy = await world.start('single', { input, sub: 'bob' })
      await world.sweepUntil(async () => (await timelineOf(world, job)).some(({ kind }) => kind === 'turn_began'))
      assert.equal((await world.service.request('POST', '/v1/users/ada/block', { token: world.admin })).status, 200)
      await ended(world, busy)
      assert.equal((await ended(world, job)).status, 'cancelled')
      assert.deepEqual(await cancelReasonsOf(world, job), [{ reason: 'user_blocked' }])
      assert.equal(world.calls(START_RUN), 1)
    })

    test('a delayed job does not start beyond the limits of that time; jobs that still wait do not count', async () => {
      const world = await shared()
      const sub = newUser()
      const [first, second] = [await delay(world, sub), await delay(world, sub, { inMs: HOUR_MS + 5_000 })]
      const limits = { token: world.admin, body: { runs: 1, tokens: null } }
      assert.equal((await world.service.request('PUT', `/v1/users/${sub}/limits`, limits)).status, 200)
      await world.leap(HOUR_MS)
      assert.equal((await ended(world, first)).status, 'completed')
      assert.equal((await ended(world, second)).status, 'cancelled')
      assert.deepEqual(await cancelReasonsOf(world, second), [{ reason: 'usage_limit_exceeded' }])
      assert.equal(runsOf(world, second).length, 0)
    })

    test('the delayed job of a user who is erased ends cancelled and never starts', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await delay(world, sub)
      const erasing = await world.service.request('DELETE', `/v1/users/${sub}`, { token: world.admin })
      assert.equal(erasing.status, 202, erasing.text)
      assert.equal((await ended(world, job)).status, 'cancelled')
      const audit = await world.service.request('GET', `/v1/audit?object=${job.id}`, { token: world.admin })
      const entries = (audit.body as { data: { action: string; after: object | null }[] }).data
      assert.deepEqual(
        entries.map(({ action, after }) => ({ action, after })),
        [{ action: 'job.cancelled', after: { reason: 'user_erased' } }],
      )
      await world.leap(HOUR_MS)
      await world.pass(2_000)
      assert.equal(runsOf(world, job).length, 0)
    })

    test('a delayed job waits for a place of its type only from its time on', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const input = { title: 'Done', sandbox: { duration_ms: 5_000 } }
      const job = await delay(world, 'ada', { type: 'single', input })
      const now = await world.start('single', { input })
      assert.notEqual((await world.stored(now.id)).run_id, null, 'the delayed job takes no place yet')
      await ended(world, now)
      await world.leap(HOUR_MS)
      const busy = await world.start('single', { input, sub: 'bob' })
      await ended(world, job)
      await ended(world, busy)
      assert.equal(world.calls(START_RUN), 3)
    })

    test('the deadline of a delayed job that never ends is counted from its start', async () => {
      const world = await startJobWorld(under, { jobTypes })
      world.runtime.setFaults({ zombie: true, drop_callbacks: 1 })
      const job = await delay(world, 'ada')
      await world.leap(HOUR_MS)
      await world.leap(55_000)
      assert.equal((await world.stored(job.id)).finished_at, null)
      assert.equal((await ended(world, job)).error?.code, 'deadline_exceeded')
    })

    test('a delayed turn behind a paused one waits for its end, also after its run_at', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const input = { title: 'Done' }
      const first = await delay(world, 'ada', { type: 'pausing', input, inMs: 0 })
      await world.sweepUntil(async () => (await world.stored(first.id)).status === 'awaiting_input', RUN_MS)
      const turn = { type: 'pausing', input, continues: first.id, on_busy: 'enqueue' }
      const second = await delay(world, 'ada', turn)
      await world.leap(HOUR_MS)
      for (let s = 0; s < 3; s++) await world.pass(1_000)
      assert.equal(runsOf(world, first).length, 1)
      assert.equal((await world.stored(second.id)).queued_behind, first.id)
      assert.equal((await world.resume(first, { input: 'yes' })).status, 202)
      await ended(world, first)
      await world.sweepUntil(async () => (await world.stored(second.id)).status === 'awaiting_input')
      assert.equal(runsOf(world, first).length, 3)
    })

    test('a delayed job starts once after a restart', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const job = await delay(world, 'ada')
      await world.service.close()
      const next = await startJobWorld(under, { jobTypes, db: world.db, clock: world.clock })
      await next.leap(HOUR_MS)
      assert.equal((await ended(next, job)).status, 'completed')
      assert.deepEqual([world.calls(START_RUN), next.calls(START_RUN)], [0, 1])
    })

    test('two nodes start a delayed job once', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const env = { RUNTIME_URL: world.runtime.url }
      await under.start({ db: world.db, clock: world.clock, jobTypes, env })
      const jobs = [await delay(world, 'ada'), await delay(world, 'bob')]
      await world.leap(HOUR_MS)
      for (const job of jobs) await ended(world, job)
      await world.pass(60_000)
      assert.equal(world.calls(START_RUN), 2)
    })

    test('run_at follows the calendar when the clock is set', async () => {
      const clock = new ManualClock()
      const database = new SteppedClock(clock)
      const world = await startJobWorld(under, { jobTypes, clock, databaseClock: database })
      const job = await delay(world, 'ada')
      database.stepMs = HOUR_MS
      await world.pass(5_000)
      assert.equal((await world.stored(job.id)).run_id, null, 'a step counts once it has lasted for a minute')
      for (let s = 0; s < 70; s++) await world.pass(1_000)
      await world.sweepUntil(async () => (await world.stored(job.id)).run_id !== null, RUN_MS)
      assert.ok(clock.now() < Date.parse(String(job.run_at)))
      await ended(world, job)
      const token = world.service.tokenFor({ sub: 'root', scopes: ['admin:*'], expiresInSeconds: DAY_MS / 1_000 })
      const { text } = await world.service.request('GET', '/metrics', { token })
      const [, seconds] = /^project_api_job_duration_seconds_sum\{.*\} (\S+)$/m.exec(text) ?? []
      assert.ok(Number(seconds) >= 60, `${seconds} s since its run_at`)
    })
  })
})
