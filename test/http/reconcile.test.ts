import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { beforeEach, describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import { countStartAttempt, leaseJob } from '../../src/jobs/worker/lease-store.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { assertError } from '../support/assert-error.ts'
import { addDevice, essenceOf, readJobRows } from '../support/job-rows.ts'
import {
  GET_RUN,
  GET_STATE,
  type JobWorld,
  RUN_MS,
  type ShownJob,
  START_RUN,
  sharedJobWorld,
  startJobWorld,
  TEST_JOB_TYPES,
} from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const CANCEL_RUN = 'POST /threads/{t}/runs/{r}/cancel'
const QUESTION = { question: 'Publish it?' }
const newUser = () => `user-${randomUUID()}`
const isOver = ({ status }: ShownJob) => status !== 'processing' && status !== 'generating'

async function timelineOf(world: JobWorld, { id }: { id: string }): Promise<TimelineEntry[]> {
  const path = `/jobs/${id}/timeline?limit=100`
  return (await world.service.request<{ data: TimelineEntry[] }>('GET', path, { token: world.admin })).body.data
}

describe('reconciliation', () => {
  forEachService((under) => {
    // Longer than the budget of a read, so that it is the budget that ends one.
    const shared = sharedJobWorld(under, { env: { RUNTIME_TIMEOUT_MS: '10000' } })
    const cancel = (world: JobWorld, { id, created_by }: ShownJob) =>
      world.request('POST', `/jobs/${id}/cancel`, String(created_by))
    const resume = (world: JobWorld, { id, created_by }: ShownJob, input: unknown) =>
      world.request('POST', `/jobs/${id}/resume`, String(created_by), { body: { input } })
    /** Ends all faults of the runtime, and closes the circuit breaker. */
    const heal = async (world: JobWorld) => {
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.pass(5_000)
      const job = await world.start('report', { sub: newUser() })
      await world.sweepUntil(async () => isOver(await world.stored(job.id)), 5_000)
    }
    // A job of one test must not be checked in the next test.
    beforeEach(async () => {
      const world = await shared()
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      const unfinished = sql`select id from jobs where status in ('processing', 'generating')`
      await world.sweepUntil(async () => (await world.db.query(unfinished)).length === 0, 5_000)
    })

    test('with no callback at all every job ends, by read or by sweep, with the rows of the callback path', async () => {
      const world = await shared()
      const inputs: [type: string, input: object][] = [
        ['report', { title: 'Done', n: 1, trace_id: 'trace-1', tracer_trace_id: 'tracer-1' }],
        ['agent', { messages: [{ role: 'user', content: 'one two three' }] }],
        ['summary', { prompt: 'x', usage: { input_tokens: 1, output_tokens: 2 } }],
        ['throwing', {}],
        ['keyless', {}],
        ['pausing', {}],
        ['tricky', {}],
        ['silent', {}],
        ['decided', {}],
        ['careless', {}],
        ['graphless', {}],
      ]
      const begin = async () => {
        const jobs = []
        for (const [type, input] of inputs) {
          const sub = newUser()
          await addDevice(world.db, sub)
          await addDevice(world.db, sub)
          jobs.push(await world.start(type, { input, sub }))
        }
        await world.pass(RUN_MS)
        return jobs
      }
      const called = await begin()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const dropped = world.runtime.stats.callbacks.dropped
      const [read, swept] = [await begin(), await begin()]
      assert.equal(world.runtime.stats.callbacks.dropped, dropped + 20)
      for (const { id } of read) await world.get(id)
      const all = [...called, ...read, ...swept]
      await world.sweepUntil(async () => (await Promise.all(all.map(({ id }) => world.stored(id)))).every(isOver))

      for (const [n, [type]] of inputs.entries()) {
        const paths = { callback: called[n], read: read[n], sweep: swept[n] }
        const expected = essenceOf(await readJobRows(world.db, String(called[n]?.id)))
        for (const [path, job] of Object.entries(paths)) {
          const rows = await readJobRows(world.db, String(job?.id))
          assert.deepEqual(essenceOf(rows), expected, `${type} by ${path}`)
          assert.equal(rows.job.settled_by, type === 'graphless' ? null : path, `${type} by ${path}`)
          assert.equal(rows.deliveries.length, 2)
          assert.equal(rows.job.next_check_at, null)
        }
      }
    })

    test('a read fetches the run, then its state, once each; a read of a finished job fetches nothing', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id } = await world.start('report')
      await world.pass(100)
      const [runs, states] = [world.calls(GET_RUN), world.calls(GET_STATE)]
      assert.equal((await world.get(id)).status, 'generating')
      assert.deepEqual([world.calls(GET_RUN), world.calls(GET_STATE)], [runs + 1, states])
      await world.pass(RUN_MS)
      const job = await world.get(id)
      assert.equal(job.status, 'completed')
      assert.equal(job.settled_by, 'read')
      assert.equal(job.reconcile.checked_at, new Date(world.clock.now()).toISOString())
      assert.deepEqual([world.calls(GET_RUN), world.calls(GET_STATE)], [runs + 2, states + 1])
      const all = world.allCalls
      await world.get(id)
      assert.equal(world.allCalls, all)
    })

    test('the callback of a graph that may pause is confirmed by one call, for the state of its run', async () => {
      const world = await shared()
      const { id } = await world.start('agent')
      const [runs, states] = [world.calls(GET_RUN), world.calls(GET_STATE)]
      await world.pass(RUN_MS)
      await world.quiet()
      const job = await world.stored(id)
      assert.deepEqual([job.status, job.settled_by], ['completed', 'callback'])
      assert.deepEqual([world.calls(GET_RUN), world.calls(GET_STATE)], [runs, states + 1])
    })

    test('if the runtime fails or refuses, the stored job is returned with the reason; when it is back, the job continues', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id } = await world.start('report')
      await world.pass(RUN_MS)
      const before = await world.stored(id)
      for (const status of [503, 500, 401, 403]) {
        world.runtime.setFaults({ lookup_failure: 1, lookup_failure_status: status })
        const job = await world.get(id)
        assert.equal(job.status, before.status)
        assert.equal(job.reconcile.last_error, `the runtime answered ${status}`)
        assert.ok(job.reconcile.next_at)
      }
      const troubled = await world.stored(id)
      assert.equal(troubled.reconcile.attempts, before.reconcile.attempts + 4)
      world.runtime.setFaults({ lookup_failure: 0 })
      const job = await world.get(id)
      assert.equal(job.status, 'completed')
      assert.equal(job.reconcile.last_error, null)
      const entries = await timelineOf(world, job)
      assert.ok(entries.some(({ kind, detail }) => kind === 'check' && /503/.test(JSON.stringify(detail))))
    })

    test('a read takes at most three seconds, and concurrent reads share one check', async (t) => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id } = await world.start('report')
      world.runtime.setFaults({ hang_lookups: true })
      const before = world.calls(GET_RUN)
      const arrived = t.mock.method(world.service.services.reconciler, 'refresh')
      let answered = 0
      const reads = Array.from({ length: 10 }, async () => {
        const job = await world.get(id)
        answered += 1
        return job
      })
      await until(() => world.calls(GET_RUN) > before && arrived.mock.callCount() === 10)
      await world.clock.advance(2_999)
      await world.service.request('GET', '/healthz')
      assert.equal(answered, 0)
      await world.clock.advance(1)
      for (const job of await Promise.all(reads)) {
        assert.match(job.status, /^(?:processing|generating)$/)
        assert.equal(job.reconcile.last_error, 'the runtime has not answered yet')
      }
      assert.equal(world.calls(GET_RUN), before + 1)
      world.runtime.setFaults({ hang_lookups: false })
      await heal(world)
    })

    test('a job that another node holds is waited for, but not beyond the budget', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id } = await world.start('report')
      await world.pass(RUN_MS)
      await world.leaseElsewhere(id)
      const before = world.allCalls
      const beganAtMs = world.clock.now()
      const reading = world.get(id)
      let answered = false
      void reading.then(() => {
        answered = true
      })
      await until(async () => {
        await world.clock.advance(50)
        return answered
      })
      assert.equal((await reading).status, 'processing')
      assert.ok(world.clock.now() - beganAtMs >= 3_000)
      assert.equal(world.allCalls, before)
      await world.leap(3_600_000)
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      assert.equal((await world.stored(id)).settled_by, 'sweep', 'once the lease has run out')
    })

    test('concurrent reads of one stale job on two nodes make one check', async (t) => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const env = { RUNTIME_URL: world.runtime.url, RUNTIME_TIMEOUT_MS: '10000' }
      const options = { db: world.db, clock: world.clock, jobTypes: TEST_JOB_TYPES, env }
      const other = await under.start(options)
      const { id } = await world.start('report')
      await world.pass(RUN_MS)
      world.runtime.setFaults({ hang_lookups: true })
      const before = world.calls(GET_RUN)
      const arrived = [world.service, other].map((node) => t.mock.method(node.services.reconciler, 'refresh'))
      let answered = 0
      const reads = Array.from({ length: 40 }, async (_, n) => {
        const node = n % 2 ? world.service : other
        const answer = await node.request<ShownJob>('GET', `/jobs/${id}`, { token: world.admin })
        answered += 1
        return answer
      })
      await until(() => world.calls(GET_RUN) > before && arrived.every(({ mock }) => mock.callCount() === 20))
      // All of them share the check, or wait for the lease holder.
      for (let n = 0; n < 20; n++) await world.clock.advance(50)
      world.runtime.setFaults({ hang_lookups: false })
      await until(async () => {
        await world.clock.advance(1)
        return answered === 40
      })
      for (const { status, body } of await Promise.all(reads)) {
        assert.deepEqual([status, body.status, body.settled_by], [200, 'completed', 'read'])
      }
      assert.equal(world.calls(GET_RUN), before + 1)
      await other.close()
    })

    test('a run that the runtime no longer knows is lost; if it was being cancelled, it is cancelled', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const [lost, cancelled] = [await world.start('report'), await world.start('report')]
      world.runtime.setFaults({ lookup_failure: 1 })
      assert.equal((await cancel(world, cancelled)).status, 202)
      world.runtime.setFaults({ lookup_failure: 0, lose_runs: true })
      assert.match((await world.get(lost.id)).status, /processing|generating/, 'a replica may lag: once is not enough')
      assert.match((await world.get(cancelled.id)).status, /processing|generating/, 'its run may still be active')
      await world.pass(9_999)
      for (const { id } of [lost, cancelled]) {
        await world.get(id)
        assert.match((await world.stored(id)).status, /processing|generating/, 'nor is twice in a moment')
      }
      await world.pass(1)
      const isOver = async (id: string) => (await world.get(id)).finished_at !== null
      await world.sweepUntil(async () => (await isOver(cancelled.id)) && (await isOver(lost.id)))
      assert.equal((await world.stored(cancelled.id)).status, 'cancelled')
      const job = await world.stored(lost.id)
      assert.deepEqual(job.error, { code: 'run_lost', message: 'The runtime no longer knows the run' })
      assert.deepEqual([job.status, job.settled_by], ['failed', 'read'])
    })

    test('a run or an output that a lagging replica hides once does not end the job', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1, lose_runs: true })
      const { id } = await world.start('report')
      await world.pass(RUN_MS)
      await world.get(id)
      world.runtime.setFaults({ lose_runs: false })
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      const job = await world.stored(id)
      assert.deepEqual([job.status, job.settled_by], ['completed', 'read'])
      const { job: row } = await readJobRows(world.db, id)
      assert.deepEqual([row.doubt_code, row.doubt_at], [null, null])
    })

    test('a run that was hidden once and then seen running ends by its callback', async () => {
      const world = await shared()
      world.runtime.setFaults({ lose_runs: true })
      const input = { title: 'Done', sandbox: { duration_ms: 20_000 } }
      const { id } = await world.start('report', { input })
      await world.get(id)
      world.runtime.setFaults({ lose_runs: false })
      await world.pass(11_000)
      assert.equal((await world.get(id)).status, 'generating')
      await world.pass(10_000)
      const job = await world.stored(id)
      assert.deepEqual([job.status, job.settled_by], ['completed', 'callback'])
    })

    test('a check that ends after its job was deleted leaves nothing of the job', async () => {
      const world = await startJobWorld(under, { env: { RUNTIME_TIMEOUT_MS: '5000' } })
      const { id } = await world.start('report')
      world.runtime.setFaults({ hang_lookups: true })
      const before = world.calls(GET_RUN)
      const reading = world.request('GET', `/jobs/${id}`, 'ada')
      await until(() => world.calls(GET_RUN) > before)
      await world.clock.advance(RUN_MS)
      await until(async () => (await world.stored(id)).status === 'completed')
      assert.equal((await world.request('DELETE', `/jobs/${id}`, 'ada')).status, 204)
      await world.pass(5_000)
      await reading
      assert.deepEqual(await world.db.query(sql`select kind from job_timeline where job_id = ${id}`), [])
    })

    test('an error without its text is fetched, so that the job has the same error by callback and by check', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id, thread_id } = await world.start('throwing')
      await world.clock.advance(RUN_MS)
      const run = world.runtime.recentRuns.find(({ threadId }) => threadId === thread_id)
      const answer = await world.callback('throwing', { thread_id, run_id: run?.runId, status: 'error' })
      assert.equal(answer.body.outcome, 'deferred')
      await world.quiet()
      const job = await world.stored(id)
      assert.deepEqual(job.error, { code: 'run_failed', message: 'kaboom: upstream 500' })
      assert.equal(job.settled_by, 'callback')
    })

    test('a callback of an earlier run never settles the next one, even if that run is not known yet', async () => {
      const world = await shared()
      const started = await world.start('pausing', { sub: newUser() })
      await world.pass(RUN_MS)
      world.runtime.setFaults({ start_failure: 1 })
      await resume(world, started, 'yes')
      await world.quiet()
      assert.equal((await world.stored(started.id)).run_id, null)
      const stale = { thread_id: started.thread_id, run_id: randomUUID(), status: 'error', error: 'of the first run' }
      for (const run_seq of [1, 3]) {
        const metadata = { job_id: started.id, run_seq }
        const answer = await world.callback('pausing', { ...stale, metadata })
        assert.deepEqual(answer.body, { received: true, outcome: 'stale', job_id: started.id })
      }
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.sweepUntil(async () => isOver(await world.stored(started.id)))
      assert.equal((await world.stored(started.id)).status, 'completed')
    })

    test('a run whose thread was deleted is lost as well', async () => {
      const world = await shared()
      const sub = newUser()
      const run = await world.startElsewhere({ user_id: sub })
      const followed = await world.request('POST', '/jobs', sub, { body: { type: 'report', ...run } })
      assert.equal(followed.status, 202, followed.text)
      await fetch(`${world.runtime.url}/threads/${run.thread_id}`, { method: 'DELETE' })
      await world.sweepUntil(async () => isOver(await world.stored(followed.body.id)))
      assert.equal((await world.stored(followed.body.id)).error?.code, 'run_lost')
    })

    test('an output deeper than we keep fails the job, from callback, read and sweep alike', async () => {
      const world = await shared()
      const title = JSON.parse(`${'['.repeat(98)}${']'.repeat(98)}`)
      const { id } = await world.start('report', { input: { title } })
      await world.pass(RUN_MS)
      const job = await world.stored(id)
      assert.deepEqual(job.error, { code: 'output_invalid', message: 'The output is nested deeper than 100 levels' })
      assert.equal(job.settled_by, 'callback')
    })

    test('a graph that pauses asks its question; the answer goes on as a new run of the same job', async () => {
      const world = await shared()
      const sub = newUser()
      await addDevice(world.db, sub)
      const started = await world.start('pausing', { sub, input: { title: 'Paused' } })
      await world.pass(RUN_MS)
      const paused = await world.get(started.id)
      assert.equal(paused.status, 'awaiting_input')
      assert.equal(paused.output, null)
      assert.equal(paused.finished_at, null)
      assert.deepEqual(
        (paused.interrupts as { value: unknown }[]).map(({ value }) => value),
        [QUESTION],
      )
      const all = world.allCalls
      await world.pass(60_000)
      await world.get(started.id)
      assert.equal(world.allCalls, all, 'the runtime is not asked while the start is in progress')

      const answer = await resume(world, paused, { approved: true })
      assert.equal(answer.status, 202, answer.text)
      assert.equal(answer.body.status, 'processing')
      assert.equal(answer.body.run_id, null)
      assert.equal(answer.body.interrupts, null)
      await world.quiet()
      const late = { thread_id: paused.thread_id, run_id: paused.run_id, status: 'success', values: { report: 'old' } }
      assert.equal((await world.callback('pausing', late)).body.outcome, 'stale')
      await world.pass(RUN_MS)
      const job = await world.get(started.id)
      assert.equal(job.status, 'completed')
      assert.deepEqual(job.output, { title: 'Paused', answer: { approved: true } })
      assert.notEqual(job.run_id, paused.run_id)
      assert.equal(job.thread_id, paused.thread_id)
      const rows = await readJobRows(world.db, job.id)
      assert.deepEqual(
        rows.runs.map(({ run_id, run_seq }) => [run_id, run_seq]),
        [
          [paused.run_id, 1],
          [job.run_id, 2],
        ],
      )
      assert.equal(rows.usage.length, 1)
      assert.deepEqual(
        rows.events.map(({ type }) => type).filter((type) => type !== 'job.updated'),
        ['job.created', 'job.awaiting_input', 'job.completed'],
      )
      assert.deepEqual(
        rows.notifications.map(({ title }) => title),
        ['Your answer is needed', 'Your result is ready'],
      )
    })

    test('a graph may ask twice, and each question is shown and pushed', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const sub = newUser()
      await addDevice(world.db, sub)
      const { id } = await world.start('asking', { sub })
      await world.pass(RUN_MS)
      await resume(world, await world.get(id), 'yes')
      await world.quiet()
      await world.pass(RUN_MS)
      const again = await world.get(id)
      assert.equal(again.status, 'awaiting_input')
      assert.match(JSON.stringify(again.interrupts), /Are you sure\?/)
      await resume(world, again, 'sure')
      await world.quiet()
      await world.pass(RUN_MS)
      const job = await world.get(id)
      assert.deepEqual(job.output, { title: 'Asked twice', answers: ['yes', 'sure'] })
      const { notifications, events } = await readJobRows(world.db, id)
      assert.equal(notifications.length, 3)
      assert.equal(events.filter(({ type }) => type === 'job.awaiting_input').length, 2)
    })

    test('two concurrent resumes start one run', async () => {
      const world = await shared()
      const started = await world.start('pausing', { sub: newUser() })
      await world.pass(RUN_MS)
      const before = world.calls(START_RUN)
      const answers = await Promise.all([1, 2, 3, 4].map((n) => resume(world, started, n)))
      assert.deepEqual(answers.map(({ status }) => status).sort(), [202, 409, 409, 409])
      await world.quiet()
      assert.equal(world.calls(START_RUN), before + 1)
      await world.pass(RUN_MS)
      assert.equal((await world.stored(started.id)).status, 'completed')
    })

    test('a callback that was stored first is named as the first hint, though a later check confirms it', async () => {
      const world = await shared()
      for (const confirm of ['read', 'sweep']) {
        world.runtime.setFaults({ lookup_failure: 1 })
        const { id } = await world.start('tricky')
        await world.pass(RUN_MS)
        const [callback] = (await timelineOf(world, { id })).filter(({ kind }) => kind === 'callback')
        assert.match(JSON.stringify(callback?.detail), /"outcome":"deferred"/)
        world.runtime.setFaults({ lookup_failure: 0 })
        if (confirm === 'read') await world.get(id)
        await world.sweepUntil(async () => isOver(await world.stored(id)))
        const job = await world.stored(id)
        assert.deepEqual([job.status, job.settled_by], ['awaiting_input', 'callback'], confirm)
      }
    })

    test('a job of a type with may_pause false still awaits input if it pauses without an output', async () => {
      const world = await shared()
      const { id } = await world.start('careless')
      await world.pass(RUN_MS)
      assert.equal((await world.stored(id)).status, 'awaiting_input')
    })

    test('cancelled while it waits for a worker, no callback comes, and the job is cancelled at once', async () => {
      const world = await shared()
      world.runtime.setFaults({ pending_ms: 60_000 })
      const started = await world.start('report', { sub: newUser() })
      const due = world.runtime.stats.callbacks.due
      const answer = await cancel(world, started)
      assert.equal(answer.status, 200, answer.text)
      assert.equal(answer.body.status, 'cancelled')
      assert.equal(world.runtime.stats.callbacks.due, due)
      assertError(world.service, await cancel(world, started), {
        status: 409,
        code: 'conflict',
        message: 'The job is cancelled already',
      })
    })

    test('cancelled while it runs: the runtime cancels the run, and the job ends once', async () => {
      const world = await shared()
      const started = await world.start('report', { sub: newUser() })
      await world.pass(100)
      assert.equal((await world.get(started.id)).status, 'generating')
      const answer = await cancel(world, started)
      assert.equal(answer.body.status, 'cancelled', answer.text)
      await world.quiet()
      const { job, usage, events } = await readJobRows(world.db, started.id)
      assert.equal(job.status, 'cancelled')
      assert.equal(usage.length, 1)
      assert.equal(events.filter(({ type }) => type === 'job.cancelled').length, 1)
      const run = world.runtime.recentRuns.find(({ threadId }) => threadId === started.thread_id)
      assert.equal(run?.status, 'interrupted')
    })

    test('cancelled while it awaits input: it ends at once without a call of the runtime', async () => {
      const world = await shared()
      const started = await world.start('pausing', { sub: newUser() })
      await world.pass(RUN_MS)
      const before = world.allCalls
      const answer = await cancel(world, started)
      assert.equal(answer.status, 200)
      assert.equal(answer.body.status, 'cancelled')
      assert.equal(answer.body.interrupts, null)
      assert.equal(world.allCalls, before)
      const resumed = await resume(world, started, 1)
      assertError(world.service, resumed, { status: 409, code: 'conflict' })
    })

    test('cancelled before it could be started, it never runs', async () => {
      const world = await shared()
      world.runtime.setFaults({ start_failure: 1 })
      const [known, unknown] = [
        await world.start('report', { sub: newUser() }),
        await world.start('report', { sub: newUser() }),
      ]
      const first = await cancel(world, known)
      assert.deepEqual([first.status, first.body.status], [202, 'processing'], 'its run may still appear')
      world.runtime.setFaults({ lookup_failure: 1 })
      const answer = await cancel(world, unknown)
      assert.equal(answer.status, 202, 'an earlier start may have got through: the runtime has to be asked')
      assert.equal(answer.body.status, 'processing')
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      for (const { id } of [known, unknown]) {
        await world.sweepUntil(async () => isOver(await world.stored(id)))
        assert.equal((await world.stored(id)).status, 'cancelled')
      }
      for (const { thread_id } of [known, unknown]) {
        assert.ok(!world.runtime.recentRuns.some(({ threadId }) => threadId === thread_id))
      }
    })

    test('cancelled while a worker is about to start it, it never runs', async () => {
      const world = await shared()
      world.runtime.setFaults({ start_failure: 1 })
      const job = await world.start('report', { sub: newUser() })
      // The stored state of a job for whose start no slot is free.
      await world.db.query(sql`update job_checks set starts = 0 where job_id = ${job.id}`)
      const nowMs = world.clock.now()
      const leased = await leaseJob(world.db, job.id, { token: 'of a worker', node: 'node', nowMs, untilMs: nowMs + 1 })
      assert.equal(leased?.start_attempts, 0)
      const answer = await cancel(world, job)
      assert.deepEqual([answer.status, answer.body.status], [200, 'cancelled'])
      assert.equal(await countStartAttempt(world.db, { id: job.id, token: 'of a worker', nowMs }), false)
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
    })

    test('a cancel request that did not reach the runtime is repeated, even if the graph pauses meanwhile', async () => {
      const world = await shared()
      for (const type of ['report', 'pausing']) {
        world.runtime.setFaults({ drop_callbacks: 1, zombie: type === 'report' })
        const started = await world.start(type, { sub: newUser() })
        await world.pass(100)
        world.runtime.setFaults({ lookup_failure: 1 })
        const answer = await cancel(world, started)
        assert.equal(answer.status, 202, answer.text)
        await world.clock.advance(RUN_MS)
        world.runtime.setFaults({ lookup_failure: 0 })
        await world.sweepUntil(async () => isOver(await world.stored(started.id)))
        const job = await world.stored(started.id)
        assert.equal(job.status, 'cancelled', type)
        assert.equal(job.interrupts, null)
      }
    })

    test('a run that never ends fails its job at the deadline, and is cancelled', async () => {
      const world = await shared()
      world.runtime.setFaults({ zombie: true })
      const { id } = await world.start('hasty')
      const [looks, stops] = [world.calls(GET_RUN), world.calls(CANCEL_RUN)]
      for (let second = 0; second < 19; second++) await world.pass(1_000)
      assert.equal((await world.stored(id)).status, 'generating')
      await world.pass(1_000)
      await world.pass(1_000)
      const job = await world.stored(id)
      assert.deepEqual(job.error, { code: 'deadline_exceeded', message: 'The run did not end in time' })
      assert.equal(job.settled_by, 'sweep')
      assert.equal(world.calls(CANCEL_RUN), stops + 1)
      assert.ok(world.calls(GET_RUN) - looks <= 5, `${world.calls(GET_RUN) - looks} looks`)
    })

    test('a job that could not be started before its deadline fails, and is not started after it', async () => {
      const world = await shared()
      world.runtime.setFaults({ start_failure: 1 })
      const { id, thread_id } = await world.start('hasty')
      await world.leap(21_000)
      world.runtime.setFaults({ start_failure: 0 })
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      assert.equal((await world.stored(id)).error?.code, 'deadline_exceeded')
      assert.ok(!world.runtime.recentRuns.some(({ threadId }) => threadId === thread_id))
    })

    test('started while the runtime is down, it is accepted, and started once when the runtime is back', async () => {
      const world = await shared()
      world.runtime.setFaults({ start_failure: 1, lookup_failure: 1 })
      const { id, thread_id } = await world.start('report')
      const waiting = await world.stored(id)
      assert.deepEqual([waiting.status, waiting.run_id], ['processing', null])
      assert.equal(waiting.reconcile.last_error, 'the runtime answered 503')
      await world.pass(5_000)
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      assert.equal((await world.stored(id)).status, 'completed')
      assert.equal(world.runtime.recentRuns.filter(({ threadId }) => threadId === thread_id).length, 1)
      await heal(world)
    })

    test('a lost answer to the start causes no second run', async () => {
      const world = await shared()
      for (const ended of [false, true]) {
        // The thread is made and its answer arrives; the run is made and its answer is lost.
        world.runtime.setFaults({ lose_start_answers: 0.5, drop_callbacks: 1 })
        world.chances.push(0.9, 0.1)
        const { id, thread_id } = await world.start('report')
        world.runtime.setFaults({ lose_start_answers: 0 })
        assert.equal((await world.stored(id)).run_id, null)
        const runs = () => world.runtime.recentRuns.filter(({ threadId }) => threadId === thread_id)
        assert.equal(runs().length, 1)
        if (ended) await world.clock.advance(RUN_MS)
        assert.equal((await world.get(id)).run_id, runs()[0]?.runId, 'a read finds it')
        await world.sweepUntil(async () => isOver(await world.stored(id)))
        assert.equal((await world.stored(id)).status, 'completed')
        assert.equal(runs().length, 1)
      }
    })

    test('a callback that names no job finds the one whose start got no answer, by its thread or our URL', async () => {
      const world = await shared()
      for (const query of [{}, { job_id: true }]) {
        world.runtime.setFaults({ lose_start_answers: 0.5, drop_callbacks: 1 })
        world.chances.push(0.9, 0.1)
        const { id, thread_id } = await world.start('report')
        world.runtime.setFaults(NO_RUNTIME_FAULTS)
        const run = world.runtime.recentRuns.find(({ threadId }) => threadId === thread_id)
        const values = { report: { title: 'Told', n: 1 } }
        const payload = { thread_id, run_id: run?.runId, status: 'success', values }
        const answer = await world.callback('report', payload, { query: 'job_id' in query ? { job_id: id } : {} })
        assert.deepEqual(answer.body, { received: true, outcome: 'applied', job_id: id })
        const job = await world.get(id)
        assert.deepEqual([job.status, job.run_id], ['completed', run?.runId])
      }
    })

    test('a job whose run another job follows fails with that reason', async () => {
      const world = await shared()
      world.runtime.setFaults({ lose_start_answers: 0.5, drop_callbacks: 1 })
      world.chances.push(0.9, 0.1)
      const { id, thread_id } = await world.start('report')
      world.runtime.setFaults({ lose_start_answers: 0 })
      const run = world.runtime.recentRuns.find(({ threadId }) => threadId === thread_id)
      const body = { type: 'report', thread_id, run_id: run?.runId }
      const followed = await world.service.request<ShownJob>('POST', '/jobs', { token: world.admin, body })
      assert.equal(followed.status, 202)
      const job = await world.get(id)
      assert.deepEqual(job.error, { code: 'run_lost', message: 'Another job already follows this run' })
      await world.sweepUntil(async () => isOver(await world.stored(followed.body.id)))
      assert.equal((await world.stored(followed.body.id)).status, 'completed')
    })

    test('a callback decides if the runtime deleted the run before it could confirm the end', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1, lookup_failure: 1 })
      const messages = [{ type: 'ai', content: 'The answer' }]
      const followed = { thread_id: randomUUID(), run_id: randomUUID(), status: 'success', values: { messages } }
      const { body } = await world.callback('agent', followed)
      assert.equal(body.outcome, 'adopted')
      await world.quiet()
      assert.equal((await world.stored(body.job_id)).status, 'processing', 'the runtime is to be asked first')
      await heal(world)
      await world.sweepUntil(async () => isOver(await world.stored(body.job_id)))
      const job = await world.get(body.job_id)
      assert.deepEqual([job.status, job.error], ['completed', null])
      assert.match(JSON.stringify(job.output), /The answer/)
    })

    test('a callback decides if the runtime deleted the thread, also when the callback comes twice', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id, thread_id } = await world.start('agent')
      const { run_id } = await world.stored(id)
      await fetch(`${world.runtime.url}/threads/${thread_id}`, { method: 'DELETE' })
      const messages = [{ type: 'ai', content: 'The answer' }]
      const callback = { thread_id, run_id, status: 'success', values: { messages } }
      assert.equal((await world.callback('agent', callback)).body.outcome, 'deferred')
      await world.quiet()
      // The second sighting is that of the second callback: only the clock goes on, not the sweep.
      await world.clock.leap(10_000)
      await world.callback('agent', { ...callback, webhook_sent_at: 'later' })
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      const job = await world.get(id)
      assert.deepEqual([job.status, job.error], ['completed', null])
      assert.match(JSON.stringify(job.output), /The answer/)
    })

    test('a runtime that refuses our callback URL is asked instead', async () => {
      const world = await shared()
      world.runtime.setFaults({ refuse_webhook: true })
      const { id, thread_id } = await world.start('report')
      const [run, ...more] = world.runtime.recentRuns.filter(({ threadId }) => threadId === thread_id)
      assert.equal(more.length, 0)
      assert.equal(run?.webhook, null)
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      const job = await world.stored(id)
      assert.deepEqual([job.status, job.settled_by], ['completed', 'sweep'])
    })

    test('the circuit breaker stops calls to a failing runtime, probes it with one call, and closes again', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const jobs: ShownJob[] = []
      for (let n = 0; n < 8; n++) jobs.push(await world.start('report'))
      await world.clock.advance(RUN_MS)
      world.runtime.setFaults({ lookup_failure: 1 })
      const before = world.allCalls
      for (const { id } of jobs) await world.get(id)
      assert.equal(world.allCalls - before, 5, 'five failures in a row open the breaker')
      const last = await world.stored((jobs[7] as ShownJob).id)
      assert.equal(last.reconcile.last_error, 'the runtime keeps failing; the next attempt is in a moment')
      assert.match(
        (await world.service.request('GET', '/readyz')).text,
        /the runtime keeps failing: results arrive later/,
      )
      await world.pass(1_000)
      assert.equal(world.allCalls - before, 5, 'the sweep does not call it either')
      await world.clock.advance(1_000)
      await Promise.all(jobs.map(({ id }) => world.get(id)))
      assert.equal(world.allCalls - before, 6, 'one goes ahead')
      world.runtime.setFaults({ lookup_failure: 0 })
      await world.sweepUntil(async () => (await Promise.all(jobs.map(({ id }) => world.stored(id)))).every(isOver))
      assert.doesNotMatch((await world.service.request('GET', '/readyz')).text, /it keeps failing/)
    })
  })
})
