import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { countStartAttempt, leaseJob } from '../../src/jobs/leases/lease-store.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { assertError } from '../support/assert-error.ts'
import { calmJobWorld, isOver, newUser } from '../support/calm-job-world.ts'
import { readJobRows } from '../support/job-rows.ts'
import { RUN_MS } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

describe('cancellation', () => {
  forEachService((under) => {
    const shared = calmJobWorld(under)

    test('a job cancelled while it waits for a worker gets no callback, and is cancelled at once', async () => {
      const world = await shared()
      world.runtime.setFaults({ pending_ms: 60_000 })
      const started = await world.start('report', { sub: newUser() })
      const due = world.runtime.stats.callbacks.due
      const answer = await world.cancel(started)
      assert.equal(answer.status, 200, answer.text)
      assert.equal(answer.body.status, 'cancelled')
      assert.equal(world.runtime.stats.callbacks.due, due)
      assertError(world.service, await world.cancel(started), {
        status: 409,
        code: 'conflict',
        message: 'The job is cancelled already',
      })
    })

    test('a job cancelled while it runs ends once, and the runtime cancels the run', async () => {
      const world = await shared()
      const started = await world.start('report', { sub: newUser() })
      await world.pass(100)
      assert.equal((await world.get(started.id)).status, 'generating')
      const answer = await world.cancel(started)
      assert.equal(answer.body.status, 'cancelled', answer.text)
      await world.quiet()
      const { job, usage, events } = await readJobRows(world.db, started.id)
      assert.equal(job.status, 'cancelled')
      assert.equal(usage.length, 1)
      assert.equal(events.filter(({ type }) => type === 'job.cancelled').length, 1)
      const run = world.runtime.recentRuns.find(({ threadId }) => threadId === started.thread_id)
      assert.equal(run?.status, 'interrupted')
    })

    test('a job cancelled while it awaits input ends at once without a call of the runtime', async () => {
      const world = await shared()
      const started = await world.start('pausing', { sub: newUser() })
      await world.pass(RUN_MS)
      const before = world.allCalls
      const answer = await world.cancel(started)
      assert.equal(answer.status, 200)
      assert.equal(answer.body.status, 'cancelled')
      assert.equal(answer.body.interrupts, null)
      assert.equal(world.allCalls, before)
      const resumed = await world.resume(started, { input: 1 })
      assertError(world.service, resumed, { status: 409, code: 'conflict' })
    })

    test('a job whose start did not reach the runtime is cancelled at once, and never runs', async () => {
      const world = await shared()
      world.runtime.setFaults({ start_failure: 1 })
      const job = await world.start('report', { sub: newUser() })
      const cancelled = await world.cancel(job)
      assert.deepEqual([cancelled.status, cancelled.body.status], [200, 'cancelled'])
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.pass(30_000)
      assert.ok(!world.runtime.recentRuns.some(({ metadata }) => metadata.job_id === job.id))
    })

    test('a job cancelled while a worker is about to start it never runs', async () => {
      const world = await shared()
      world.runtime.setFaults({ start_failure: 1 })
      const job = await world.start('report', { sub: newUser() })
      // The stored state of a job for whose start no slot is free.
      await world.db.query(sql`update job_checks set starts = 0 where job_id = ${job.id}`)
      const nowMs = world.clock.now()
      const leased = await leaseJob(world.db, job.id, { token: 'of a worker', node: 'node', nowMs, untilMs: nowMs + 1 })
      assert.equal(leased?.start_attempts, 0)
      const answer = await world.cancel(job)
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
        const answer = await world.cancel(started)
        assert.equal(answer.status, 202, answer.text)
        await world.clock.advance(RUN_MS)
        world.runtime.setFaults({ lookup_failure: 0 })
        await world.sweepUntil(async () => isOver(await world.stored(started.id)))
        const job = await world.stored(started.id)
        assert.equal(job.status, 'cancelled', type)
        assert.equal(job.interrupts, null)
      }
    })
  })
})
