import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import { calmJobWorld, heal, isOver, newUser } from '../support/calm-job-world.ts'
import { addDevice, essenceOf, readJobRows } from '../support/job-rows.ts'
import {
  GET_RUN,
  GET_STATE,
  type JobWorld,
  RUN_MS,
  type ShownJob,
  startJobWorld,
  TEST_JOB_TYPES,
} from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const CANCEL_RUN = 'POST /threads/{t}/runs/{r}/cancel'

async function timelineOf(world: JobWorld, { id }: { id: string }): Promise<TimelineEntry[]> {
  const path = `/jobs/${id}/timeline?limit=100`
  return (await world.service.request<{ data: TimelineEntry[] }>('GET', path, { token: world.admin })).body.data
}

describe('reconciliation', () => {
  forEachService((under) => {
    const shared = calmJobWorld(under)

    test('every job ends with no callback at all, by read or by sweep, with the rows of the callback path', async () => {
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
      await world.sweepUntil(async () => {
        const [row] = await world.db.query<{ n: number }>(
          sql`select count(*) as n from deliveries where state = 'pending'`,
        )
        return row?.n === 0
      })

      for (const [n, [type]] of inputs.entries()) {
        const paths = { callback: called[n], read: read[n], sweep: swept[n] }
        const expected = essenceOf(await readJobRows(world.db, String(called[n]?.id)))
        for (const [path, job] of Object.entries(paths)) {
          const rows = await readJobRows(world.db, String(job?.id))
          assert.deepEqual(essenceOf(rows), expected, `${type} by ${path}`)
          assert.equal(rows.job.settled_by, type === 'graphless' ? null : path, `${type} by ${path}`)
          assert.equal(rows.deliveries.length, 2)
          assert.equal(rows.checks.length, rows.job.finished_at === null ? 1 : 0)
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

    test('an output deeper than we keep fails the job, from callback, read and sweep alike', async () => {
      const world = await shared()
      const title = JSON.parse(`${'['.repeat(98)}${']'.repeat(98)}`)
      const { id } = await world.start('report', { input: { title } })
      await world.pass(RUN_MS)
      const job = await world.stored(id)
      assert.deepEqual(job.error, { code: 'output_invalid', message: 'The output is nested deeper than 100 levels' })
      assert.equal(job.settled_by, 'callback')
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

    test('a run that never ends fails its job at the deadline, and is cancelled', async () => {
      const world = await shared()
      world.runtime.setFaults({ zombie: true })
      const { id } = await world.start('hasty')
      const [looks, stops] = [world.calls(GET_RUN), world.calls(CANCEL_RUN)]
      for (let second = 0; second < 19; second++) await world.pass(1_000)
      assert.equal((await world.stored(id)).status, 'generating')
      for (let second = 0; second < 4; second++) await world.pass(1_000)
      const job = await world.stored(id)
      assert.deepEqual(job.error, { code: 'deadline_exceeded', message: 'The run did not end in time' })
      assert.equal(job.settled_by, 'sweep')
      assert.equal(world.calls(CANCEL_RUN), stops + 1)
      assert.ok(world.calls(GET_RUN) - looks <= 5, `${world.calls(GET_RUN) - looks} looks`)
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
