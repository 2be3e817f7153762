import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { readJobRows } from '../support/job-rows.ts'
import { type JobWorld, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

describe('without a runtime', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under, { runtime: false })
    const adopt = async (world: JobWorld) => {
      const run = { thread_id: randomUUID(), run_id: randomUUID(), status: 'running' }
      const { body } = await world.callback('hasty', run)
      assert.equal(body.outcome, 'adopted')
      await world.quiet()
      return { run, id: body.job_id }
    }

    test('a run that was seen running and never ended fails its job at the deadline', async () => {
      const world = await shared()
      const { id } = await adopt(world)
      await world.pass(19_000)
      const waiting = await world.stored(id)
      assert.equal(waiting.status, 'generating')
      assert.equal(waiting.reconcile.last_error, 'no runtime is configured')
      await world.sweepUntil(async () => (await world.stored(id)).status !== 'generating')
      const job = await world.stored(id)
      assert.deepEqual([job.status, job.error?.code, job.settled_by], ['failed', 'deadline_exceeded', 'sweep'])
      assert.equal((await readJobRows(world.db, id)).usage.length, 1)
    })

    test('a job that is to be cancelled is cancelled, and a callback after it changes nothing', async () => {
      const world = await shared()
      const { id, run } = await adopt(world)
      await world.service.request('POST', `/jobs/${id}/cancel`, { token: world.admin })
      await world.pass(1_000)
      assert.equal((await world.stored(id)).status, 'cancelled')
      const late = await world.callback('hasty', { ...run, status: 'success', values: { report: 1 } })
      assert.equal(late.body.outcome, 'stale')
    })

    test('a callback in time still ends its job, and an unconfirmed callback is accepted at the deadline', async () => {
      const world = await shared()
      const { id, run } = await adopt(world)
      await world.callback('hasty', { ...run, status: 'success', values: { report: 1 } })
      assert.equal((await world.stored(id)).status, 'completed')

      const former = await startJobWorld(under, { db: world.db, clock: world.clock })
      former.runtime.setFaults({ lookup_failure: 1, zombie: true })
      const { id: left, thread_id } = await former.start('hasty')
      const { run_id } = await former.stored(left)
      await former.callback('hasty', { thread_id, run_id, status: 'interrupted' })
      await former.quiet()
      await former.service.close()
      await world.sweepUntil(async () => !/processing|generating/.test((await world.stored(left)).status))
      assert.equal((await world.stored(left)).status, 'cancelled')
    })
  })
})
