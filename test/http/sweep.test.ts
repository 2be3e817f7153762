import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { GET_RUN, startJobWorld } from '../support/job-world.ts'
import { onOneService } from '../support/service.ts'
import { WatchedDatabase } from '../support/watched-database.ts'

describe('the sweep', () => {
  onOneService((under) => {
    test('a round of the sweep with nothing to do is one statement', async () => {
      const database = new WatchedDatabase(await under.engine.openDatabase())
      const limited = { assistant_id: 'report', output_key: 'report', may_pause: false, max_running: 1 }
      const world = await startJobWorld(under, {
        db: database.db,
        jobTypes: toJobTypes({ limited, other: { ...limited, max_running_per_owner: 1 } }),
      })
      const { id } = await world.start('limited')
      await world.sweepUntil(async () => (await world.stored(id)).finished_at !== null)
      database.forget()
      for (let n = 0; n < 3; n++) await world.pass(1_000)
      assert.deepEqual([database.count(/job_checks/), database.count(/'delayed'/)], [3, 3])
    })

    test('the sweep checks less and less often', async () => {
      const world = await startJobWorld(under, { env: { RUNTIME_TIMEOUT_MS: '10000' } })
      world.runtime.setFaults({ zombie: true, drop_callbacks: 1 })
      const { id } = await world.start('report')
      await world.sweepUntil(async () => (await world.stored(id)).finished_at !== null, 5_000)
      assert.equal((await world.stored(id)).error?.code, 'deadline_exceeded')
      assert.ok(world.calls(GET_RUN) <= 12, `${world.calls(GET_RUN)} looks in ten minutes`)
    })

    test('the sweep fails a job of a type that is gone once its deadline has passed, and not before', async () => {
      const world = await startJobWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id } = await world.start('hasty')
      const types = toJobTypes({})
      const later = await startJobWorld(under, { db: world.db, clock: world.clock, jobTypes: types })
      const job = await later.get(id)
      assert.equal(job.reconcile.last_error, 'the job type is not configured any more')
      await world.service.close()
      await world.leap(23_000)
      assert.equal((await later.get(id)).error?.code, 'deadline_exceeded')
    })

    test('the sweep gives up on a runtime that cannot be asked for a day after the deadline', async () => {
      const world = await startJobWorld(under)
      const { id } = await world.start('hasty')
      world.runtime.setFaults({ lookup_failure: 1, zombie: true })
      await world.leap(3_600_000)
      assert.equal((await world.getInTime(id)).status, 'processing', 'it may still have ended well')
      await world.leap(24 * 3_600_000)
      assert.equal((await world.getInTime(id)).error?.code, 'deadline_exceeded')
    })
  })
})
