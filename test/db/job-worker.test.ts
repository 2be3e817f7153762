import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import { IdGenerator } from '../../src/core/ids.ts'
import { silentLog } from '../../src/core/log.ts'
import { silentMeter } from '../../src/core/metrics/meter.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import type { JobContext } from '../../src/jobs/job-context.ts'
import { type JobRow, newJob } from '../../src/jobs/job-row.ts'
import { insertJob } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { JobWorker } from '../../src/jobs/worker/job-worker.ts'
import { startWatch } from '../../src/jobs/worker/watch.ts'
import type { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import { findRefusal } from '../../src/users/user-state-store.ts'
import { hasPushTurnedOff } from '../../src/users/user-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { until } from '../support/until.ts'

async function countChecks(db: Database, jobId: string): Promise<number | undefined> {
  const [row] = await db.query<{ checks: number }>(sql`select checks from job_checks where job_id = ${jobId}`)
  return row?.checks
}

function contextOn(db: Database, clock: ManualClock): JobContext {
  return {
    db,
    clock,
    ids: new IdGenerator(clock, systemRandom),
    random: systemRandom,
    log: silentLog,
    meter: silentMeter,
    types: BUILT_IN_JOB_TYPES,
    pushOptOut: hasPushTurnedOff,
    findRefusal,
    usageLimitRuns: null,
    runtime: null,
    identify: null,
    callbackUrl: () => null,
  }
}

async function createJob(
  { db, clock, ids }: JobContext,
  { run_id = randomUUID() as string | null } = {},
): Promise<JobRow> {
  const given = { input: '{}', project_id: null, created_by: 'ada', thread_id: randomUUID(), run_id }
  const job = newJob(BUILT_IN_JOB_TYPES.get('agent') as JobType, { id: ids.next('job'), ...given }, clock.now())
  await insertJob(db, job)
  return job
}

describe('the job worker', () => {
  forEachEngine((engine) => {
    test('the job worker checks every watched job in a round, however many there are', async () => {
      const db = await engine.openDatabase()
      const clock = new ManualClock()
      const context = contextOn(db, clock)
      const worker = new JobWorker(context, {
        node: { id: 'node', isAlive: true, holdsLeaseOf: () => true },
        runtimeTimeoutMs: 1_000,
        slots: 2,
      })
      const ids: string[] = []
      for (let n = 0; n < 7; n++) ids.push((await createJob(context)).id)
      const breaker = new Breaker({ clock, threshold: 5, openMs: 1_000, maxOpenMs: 1_000 })
      const interests = { jobIds: new Set(ids), subjects: new Set<string>() }
      const watch = startWatch(context, worker, breaker, () => interests)
      await clock.advance(2_000)
      await until(async () => (await Promise.all(ids.map((id) => countChecks(db, id)))).every((checks) => checks === 1))
      await watch.stop()
      await worker.close()
    })

    test('the start of a job that a client reads takes a slot; while none is free, only checks are leased', async () => {
      const db = await engine.openDatabase()
      const clock = new ManualClock()
      const context = contextOn(db, clock)
      const node = { id: 'node', isAlive: true, holdsLeaseOf: () => true }
      let starts = 0
      // A start that never ends.
      const runtime = { ensureThread: () => new Promise(() => starts++) } as unknown as RuntimeClient
      const worker = new JobWorker({ ...context, runtime }, { node, runtimeTimeoutMs: 1_000, slots: 2 })
      const unstarted: JobRow[] = []
      for (let n = 0; n < 4; n++) unstarted.push(await createJob(context, { run_id: null }))
      for (const { id } of unstarted) void worker.check(id)
      await until(() => starts === 2)
      const postponed = sql`select count(*) as n from job_checks where due_at > ${clock.now()} and lease_id is null`
      await until(async () => (await db.query<{ n: number }>(postponed))[0]?.n === 2)
      await clock.advance(60_000)
      assert.equal(await worker.takeDue(10), 0)
      assert.equal(starts, 2)
    })

    test('the job worker leases nothing while the heartbeat of its node is overdue, because other nodes would take it at once', async () => {
      const db = await engine.openDatabase()
      const clock = new ManualClock()
      const context = contextOn(db, clock)
      const node = { id: 'node', isAlive: false, holdsLeaseOf: () => true }
      const worker = new JobWorker(context, { node, runtimeTimeoutMs: 1_000, slots: 3 })
      const job = await createJob(context)
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
