import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import { UnavailableError } from '../../src/core/errors.ts'
import { IdGenerator } from '../../src/core/ids.ts'
import { silentLog } from '../../src/core/log.ts'
import { silentMeter } from '../../src/core/metrics/meter.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import type { JobContext } from '../../src/jobs/job-context.ts'
import { type JobRow, newJob } from '../../src/jobs/job-row.ts'
import { findJob, insertJob } from '../../src/jobs/job-store.ts'
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

    test('when the pause of an open circuit breaker is over, a round checks one watched job, and all of them once that succeeds', async () => {
      const db = await engine.openDatabase()
      const clock = new ManualClock()
      const context = contextOn(db, clock)
      const ids: string[] = []
      for (let n = 0; n < 3; n++) ids.push((await createJob(context)).id)
      const checked: string[] = []
      const checkForStream = async (id: string) => void checked.push(id)
      const worker = { checkForStream } as unknown as JobWorker
      const breaker = new Breaker({ clock, threshold: 1, openMs: 3_000, maxOpenMs: 3_000 })
      breaker.failed()
      let rounds = 0
      const interests = () => {
        rounds += 1
        return { jobIds: new Set(ids), subjects: new Set<string>() }
      }
      const watch = startWatch(context, worker, breaker, interests)
      const nextRound = async () => {
        const [began, before] = [rounds, checked.length]
        while (rounds === began) await clock.advance(100)
        return { more: (count: number) => until(() => checked.length === before + count) }
      }
      await nextRound()
      assert.equal(breaker.state, 'open')
      await (await nextRound()).more(1)
      assert.equal(breaker.state, 'probing')
      await (await nextRound()).more(1)
      breaker.succeeded()
      await (await nextRound()).more(3)
      await watch.stop()
      assert.equal(checked.length, 5)
    })

    for (const by of ['job', 'owner'] as const) {
      test(`the one watched job that a round checks then is not one that waits for a place or its turn (watched by ${by})`, async () => {
        const db = await engine.openDatabase()
        const clock = new ManualClock()
        const context = contextOn(db, clock)
        const [running, queued, waiting] = [
          await createJob(context),
          await createJob(context, { run_id: null }),
          await createJob(context, { run_id: null }),
        ]
        await db.query(sql`update job_checks set last_check_at = 1 where job_id = ${running.id}`)
        await db.query(sql`update job_checks set queued_at = 1 where job_id = ${queued.id}`)
        await db.query(sql`update job_checks set waits_on = ${waiting.thread_id} where job_id = ${waiting.id}`)
        const checked: string[] = []
        const checkForStream = async (id: string) => void checked.push(id)
        const breaker = { state: 'probing' } as Breaker
        const jobIds = by === 'job' ? [running, queued, waiting].map(({ id }) => id) : []
        const interests = () => ({ jobIds: new Set(jobIds), subjects: new Set(by === 'owner' ? ['ada'] : []) })
        const watch = startWatch(context, { checkForStream } as unknown as JobWorker, breaker, interests)
        await clock.advance(2_000)
        await until(() => checked.length > 0)
        await watch.stop()
        assert.deepEqual(checked, [running.id])
      })
    }

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

    /** A job whose run is missing at the runtime, which was asked once. The runtime answers after `latency.ms`. */
    async function lostJob(): Promise<{
      db: Database
      clock: ManualClock
      job: JobRow
      worker: JobWorker
      latency: { ms: number }
    }> {
      const db = await engine.openDatabase()
      const clock = new ManualClock()
      const latency = { ms: 0 }
      const fetchRun = async () => {
        await clock.advance(latency.ms)
        return null
      }
      const context = { ...contextOn(db, clock), runtime: { fetchRun } as unknown as RuntimeClient }
      const node = { id: 'node', isAlive: true, holdsLeaseOf: () => true }
      const worker = new JobWorker(context, { node, runtimeTimeoutMs: 60_000, slots: 2 })
      const job = await createJob(context)
      await worker.check(job.id)
      return { db, clock, job, worker, latency }
    }

    test('a check that asked too early to confirm its evidence is repeated at once, however late its answer came', async () => {
      const { db, clock, job, worker, latency } = await lostJob()
      await clock.advance(9_990)
      latency.ms = 20
      await worker.check(job.id)
      assert.equal((await findJob(db, job.id))?.status, 'processing')
      latency.ms = 0
      assert.equal(await worker.takeDue(10), 1)
      await worker.idle()
      assert.equal((await findJob(db, job.id))?.error_code, 'run_lost')
      await worker.close()
    })

    test('a run that was missing twice in a moment does not end its job as its callback says, however late the second answer is handled', async () => {
      const { db, clock, job, worker, latency } = await lostJob()
      const { run_id, thread_id } = job
      const body = JSON.stringify({ run_id, thread_id, status: 'interrupted' })
      await db.query(sql`
        insert into callbacks (id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body)
        values ('cb', '/', 'agent', ${job.id}, ${thread_id}, ${run_id}, 'interrupted', 'deferred', ${clock.now()}, ${body})`)
      await clock.advance(2_000)
      // The process is suspended while it waits for the answer.
      latency.ms = 36_000
      await worker.check(job.id)
      assert.equal((await findJob(db, job.id))?.status, 'processing')
      latency.ms = 0
      await worker.takeDue(10)
      await worker.idle()
      assert.equal((await findJob(db, job.id))?.status, 'cancelled', 'the runtime was asked again')
      await worker.close()
    })

    test('a check that fails because the database does gives back its lease, so that the job is checked again within seconds', async () => {
      const db = await engine.openDatabase()
      const clock = new ManualClock()
      let failures = 0
      const failing = new Proxy(db, {
        get: (target, name: keyof Database) => {
          const member: unknown = target[name]
          if (typeof member !== 'function') return member
          return (...args: unknown[]) => {
            if (failures === 0) return Reflect.apply(member, target, args)
            failures -= 1
            return Promise.reject(new UnavailableError('The database is not available'))
          }
        },
      })
      // The result of the check cannot be recorded, nor can its lease be given back at once.
      let isFirst = true
      const fetchRun = async () => {
        if (isFirst) failures = 12
        isFirst = false
        return null
      }
      const context = { ...contextOn(failing, clock), runtime: { fetchRun } as unknown as RuntimeClient }
      const node = { id: 'node', isAlive: true, holdsLeaseOf: () => true }
      const worker = new JobWorker(context, { node, runtimeTimeoutMs: 3_000 })
      const job = await createJob(context)
      await assert.rejects(worker.check(job.id), UnavailableError)
      let isIdle = false
      const idle = worker.idle().then(() => {
        isIdle = true
      })
      while (!isIdle) {
        await Promise.race([clock.untilSleeping(), idle])
        await clock.advance(1_000)
      }
      assert.equal((await findJob(db, job.id))?.lease_token, null)
      await clock.advance(5_000)
      assert.equal(await worker.takeDue(10), 1)
      await worker.idle()
      assert.equal(await countChecks(db, job.id), 1)
      await worker.close()
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
