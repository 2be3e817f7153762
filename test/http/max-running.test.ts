import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { type JobWorld, RUN_MS, START_RUN, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

const jobTypes = toJobTypes({
  scarce: { assistant_id: 'report', output_key: 'report', may_pause: false, deadline_seconds: 60, max_running: 2 },
  fair: { assistant_id: 'report', output_key: 'report', may_pause: false, max_running_per_owner: 2 },
  asking: { assistant_id: 'pause', output_key: 'report', max_running: 1 },
  single: { assistant_id: 'report', output_key: 'report', may_pause: false, deadline_seconds: 3_600, max_running: 1 },
})

async function statusesOf(world: JobWorld, ids: readonly string[]): Promise<string[]> {
  return Promise.all(ids.map(async (id) => (await world.stored(id)).status))
}

describe('a job type with max_running', () => {
  forEachService((under) => {
    test('a job type with max_running has no more active runs than that; its other jobs wait, and take a place when one is free', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const ids: string[] = []
      for (let n = 0; n < 5; n++) ids.push((await world.start('scarce', { sub: `user-${n % 2}` })).id)
      assert.equal(world.calls(START_RUN), 2)
      const waiting = await world.get(ids[4] ?? '')
      assert.equal(waiting.status, 'processing')
      assert.deepEqual([waiting.run_id, waiting.reconcile.attempts, waiting.reconcile.last_error], [null, 0, null])
      await world.pass(RUN_MS)
      // The end of a job starts the next one, without a round of the sweep.
      await world.sweepUntil(() => world.calls(START_RUN) >= 4, 10)
      assert.equal(world.calls(START_RUN), 4)
      await world.pass(RUN_MS)
      await world.sweepUntil(() => world.calls(START_RUN) === 5, 10)
      await world.pass(RUN_MS)
      await world.sweepUntil(async () => (await statusesOf(world, ids)).every((status) => status === 'completed'))
    })

    test('with max_running_per_owner, an owner has no more active runs than that, and other owners do not wait', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const ids: string[] = []
      for (let n = 0; n < 5; n++) ids.push((await world.start('fair', { sub: 'ada' })).id)
      assert.equal(world.calls(START_RUN), 2)
      ids.push((await world.start('fair', { sub: 'bob' })).id)
      assert.equal(world.calls(START_RUN), 3)
      await world.pass(RUN_MS)
      await world.sweepUntil(() => world.calls(START_RUN) === 5, 10)
      await world.pass(RUN_MS)
      await world.sweepUntil(async () => (await statusesOf(world, ids)).every((status) => status === 'completed'))
      assert.equal(world.calls(START_RUN), 6)
    })

    test('an answered job without a free place waits, also if another worker was checking its question', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const paused = await world.start('asking')
      await world.sweepUntil(async () => (await world.stored(paused.id)).status === 'awaiting_input', RUN_MS)
      world.runtime.setFaults({ ...NO_RUNTIME_FAULTS, zombie: true })
      await world.start('asking', { sub: 'bob' })
      assert.equal(world.calls(START_RUN), 2)
      await world.leaseElsewhere(paused.id)
      assert.equal((await world.resume(await world.stored(paused.id), { input: 'yes' })).status, 202)
      await world.pass(5_000)
      assert.equal(world.calls(START_RUN), 2)
      assert.deepEqual(
        [(await world.stored(paused.id)).status, (await world.stored(paused.id)).run_id],
        ['processing', null],
      )
    })

    test('a job that has waited long is checked as soon after its start as any other', async () => {
      const world = await startJobWorld(under, { jobTypes })
      world.runtime.setFaults({ drop_callbacks: 1 })
      const lasting = (ms: number) => ({ title: 'Done', sandbox: { duration_ms: ms } })
      const first = await world.start('single', { input: lasting(1_200_000) })
      const second = await world.start('single', { input: lasting(10_000) })
      await world.pass(1_000)
      await world.leap(1_210_000)
      assert.equal((await world.get(first.id)).status, 'completed')
      await world.sweepUntil(() => world.calls(START_RUN) === 2, 100)
      for (let passed = 0; passed < 40; passed++) await world.pass(1_000)
      assert.equal((await world.stored(second.id)).status, 'completed')
    })

    test('a waiting job can be cancelled, ends at its deadline, and never gets a run', async () => {
      const world = await startJobWorld(under, { jobTypes })
      world.runtime.setFaults({ ...NO_RUNTIME_FAULTS, zombie: true })
      const ids: string[] = []
      for (let n = 0; n < 4; n++) ids.push((await world.start('scarce')).id)
      const [, , cancelled = '', overdue = ''] = ids
      const answer = await world.request('POST', `/jobs/${cancelled}/cancel`, 'ada')
      assert.deepEqual([answer.status, answer.body.status], [200, 'cancelled'])
      await world.leap(60_000)
      await world.sweepUntil(async () => (await world.stored(overdue)).status === 'failed')
      const { error, run_id } = await world.stored(overdue)
      assert.deepEqual([error?.code, run_id], ['deadline_exceeded', null])
      assert.equal(world.calls(START_RUN), 2)
    })
  })
})
