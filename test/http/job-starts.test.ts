import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { calmJobWorld, heal, isOver } from '../support/calm-job-world.ts'
import { RUN_MS, type ShownJob } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

describe('the start of a job', () => {
  forEachService((under) => {
    const shared = calmJobWorld(under)

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

    test('a started job changes at the time when the runtime accepted the run', async () => {
      const world = await shared()
      world.runtime.setFaults({ start_failure: 1 })
      const { id, created_at } = await world.start('report')
      world.runtime.setFaults({ start_failure: 0 })
      await world.sweepUntil(async () => (await world.stored(id)).run_id !== null, 100)
      const { status, started_at, updated_at } = await world.stored(id)
      assert.equal(status, 'processing')
      assert.ok(String(started_at) > created_at)
      assert.equal(updated_at, started_at)
    })

    test('a job started while the runtime is down is accepted, and started once when the runtime is back', async () => {
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
  })
})
