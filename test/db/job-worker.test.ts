import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { IdGenerator } from '../../src/core/ids.ts'
import { silentLog } from '../../src/core/log.ts'
import { silentMeter } from '../../src/core/metrics/meter.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { sql } from '../../src/db/sql.ts'
import type { JobContext } from '../../src/jobs/job-context.ts'
import { newJob } from '../../src/jobs/job-row.ts'
import { insertJob } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { JobWorker } from '../../src/jobs/worker/job-worker.ts'
import { hasPushTurnedOff } from '../../src/users/user-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'

async function countChecks(db: Database, jobId: string): Promise<number | undefined> {
  const [row] = await db.query<{ checks: number }>(sql`select checks from job_checks where job_id = ${jobId}`)
  return row?.checks
}

describe('the job worker', () => {
  forEachEngine((engine) => {
    test('leases nothing while the heartbeat of its node is overdue, because other nodes would take it at once', async () => {
      const db = await engine.openDatabase()
      await migrate(db)
      const clock = new ManualClock()
      const ids = new IdGenerator(clock, systemRandom)
      const context: JobContext = {
        db,
        clock,
        ids,
        random: systemRandom,
        log: silentLog,
        meter: silentMeter,
        types: BUILT_IN_JOB_TYPES,
        pushOptOut: hasPushTurnedOff,
        runtime: null,
        callbackUrl: () => null,
      }
      const node = { id: 'node', isAlive: false }
      const worker = new JobWorker(context, { node, runtimeTimeoutMs: 1_000, slots: 3 })
      const given = { input: '{}', project_id: null, created_by: 'ada', thread_id: randomUUID(), run_id: randomUUID() }
      const job = newJob(BUILT_IN_JOB_TYPES.get('agent') as JobType, { id: ids.next('job'), ...given }, clock.now())
      await insertJob(db, job)
      await clock.advance(60_000)

      // Without a free slot, a new job is stored without a lease.
      assert.equal(worker.freeSlots, 0)
      await worker.check(job.id)
      worker.checkSoon(job.id, 'callback')
      assert.equal(await worker.takeDue(10), 0)
      await worker.idle()
      assert.equal(await countChecks(db, job.id), 0)

      node.isAlive = true
      assert.equal(worker.freeSlots, 3)
      // Two callbacks of one job that arrive together cause one check.
      worker.checkSoon(job.id, 'callback')
      worker.checkSoon(job.id, 'callback')
      await worker.idle()
      assert.equal(await countChecks(db, job.id), 1)
      await worker.check(job.id)
      assert.equal(await countChecks(db, job.id), 2)
      await worker.close()
    })
  })
})
