import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { GET_RUN, startJobWorld, TEST_JOB_TYPES, WEBHOOK_SECRET } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { forEachService } from '../support/service.ts'

const AHEAD_MS = 31 * 60_000

describe('a node whose clock is 31 minutes ahead', () => {
  forEachService((under) => {
    test('a node whose clock is 31 minutes ahead neither fails a live job nor takes a lease that another node holds', async () => {
      const world = await startJobWorld(under)
      const wrong = new ManualClock(world.clock.now() + AHEAD_MS)
      const node = await under.start({
        db: world.db,
        clock: wrong,
        databaseClock: world.clock,
        jobTypes: TEST_JOB_TYPES,
        env: { WEBHOOK_SECRET, RUNTIME_URL: world.runtime.url },
      })
      world.runtime.setFaults({ drop_callbacks: 1, zombie: true })
      const { id } = await world.start('report')
      const check = () => node.services.jobWorker.check(id)

      await check()
      const live = await world.stored(id)
      assert.equal(live.error, null, 'its deadline is ten minutes away')
      assert.equal(live.reconcile.checked_at, new Date(world.clock.now()).toISOString())

      const { id: nodeId } = world.service.services.node
      const untilMs = world.clock.now() + 20_000
      await world.db.query(sql`
        update job_checks set lease_id = 'held', lease_node = ${nodeId}, leased_until = ${untilMs} where job_id = ${id}`)
      const before = world.calls(GET_RUN)
      await check()
      assert.equal(world.calls(GET_RUN), before)

      await world.leap(600_000)
      await world.sweepUntil(async () => (await world.stored(id)).error?.code === 'deadline_exceeded')
    })
  })
})
