import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { IdGenerator } from '../../src/core/ids.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { sql } from '../../src/db/sql.ts'
import { type JobRow, newJob } from '../../src/jobs/job-row.ts'
import { findJob, insertJob, lockJobs, updateJobs } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { settleJobs } from '../../src/jobs/settlement/settle.ts'
import type { JobUpdate, Settled } from '../../src/jobs/settlement/settlement.ts'
import { countStartAttempt, leaseDueJobs, leaseJob, releaseLease } from '../../src/jobs/worker/lease-store.ts'
import { hasPushTurnedOff } from '../../src/users/user-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'

const NOW = 1_000_000
const ids = new IdGenerator(new ManualClock(), systemRandom)
const AGENT = BUILT_IN_JOB_TYPES.get('agent') as JobType
const leaseAt = (nowMs: number) => ({ token: randomUUID(), nowMs, untilMs: nowMs + 1_000 })

async function createJob(db: Database, fields: Partial<JobRow> = {}): Promise<JobRow> {
  const given = { input: null, project_id: null, created_by: 'ada', thread_id: randomUUID(), run_id: randomUUID() }
  const job = { ...newJob(AGENT, { id: ids.next('job'), ...given }, NOW), ...fields }
  await insertJob(db, job)
  return job
}

async function leased(db: Database, fields: Partial<JobRow> = {}): Promise<JobRow> {
  const { id } = await createJob(db, fields)
  const job = await leaseJob(db, id, leaseAt(NOW))
  assert.ok(job)
  return job
}

/** What came of a look that began with this job, a second after it was leased. */
function release(db: Database, job: JobRow, error: string | null = null): Promise<boolean> {
  const token = job.lease_token ?? ''
  const record = { id: job.id, token, atMs: NOW + 1_000, nextMs: NOW + 9_000, error, leased: job }
  return db.transaction((tx) => releaseLease(tx, record))
}

async function settleAt(db: Database, atMs: number, update: JobUpdate): Promise<Settled | undefined> {
  const context = { db, clock: new ManualClock(atMs), ids, types: BUILT_IN_JOB_TYPES, pushOptOut: hasPushTurnedOff }
  const [settled] = await settleJobs(context, (_tx, settlement) => settlement.settle([update]))
  return settled
}

describe('leases', () => {
  forEachEngine((engine) => {
    let made: Promise<Database[]> | undefined
    /** Two nodes on one database. */
    const nodes = () => {
      made ??= (async () => {
        const store = await engine.createStore()
        const [one, two] = [await store.connect(), await store.connect()]
        await migrate(one)
        return [one, two]
      })()
      return made as Promise<[Database, Database]>
    }

    test('of many who want a job at once one gets it, and the next when its time is up', async () => {
      const [one, two] = await nodes()
      const { id } = await createJob(one)
      const wants = Array.from({ length: 20 }, (_, n) => leaseJob(n % 2 ? one : two, id, leaseAt(NOW)))
      const won = (await Promise.all(wants)).filter((job) => job !== undefined)
      assert.equal(won.length, 1)
      assert.equal(await leaseJob(one, id, leaseAt(NOW + 999)), undefined)
      assert.notEqual((await leaseJob(two, id, leaseAt(NOW + 1_000)))?.lease_token, won[0]?.lease_token)
    })

    test('only of a job that may be stuck', async () => {
      const [db] = await nodes()
      for (const status of ['awaiting_input', 'completed', 'failed', 'cancelled'] as const) {
        const { id } = await createJob(db, { status, next_check_at: null })
        assert.equal(await leaseJob(db, id, leaseAt(NOW)), undefined)
      }
    })

    test('of due jobs are given once, whoever asks on however many nodes, the longest due first', async () => {
      const [one, two] = await nodes()
      await one.query(sql`update jobs set next_check_at = null`)
      const due: string[] = []
      for (let n = 0; n < 60; n++) due.push((await createJob(one, { next_check_at: NOW - 1_000 + n })).id)
      await createJob(one, { next_check_at: NOW + 1 })
      const first = await leaseDueJobs(one, 10, leaseAt(NOW))
      assert.deepEqual(first.map(({ id }) => id).sort(), due.slice(0, 10))
      const takes = Array.from({ length: 12 }, (_, n) => leaseDueJobs(n % 2 ? one : two, 5, leaseAt(NOW)))
      const taken = (await Promise.all(takes)).flat()
      assert.ok((await Promise.all(takes)).every((batch) => batch.length <= 5))
      assert.equal(new Set(taken.map(({ id }) => id)).size, taken.length)
      const rest = await leaseDueJobs(one, 100, leaseAt(NOW))
      assert.deepEqual([...taken, ...rest].map(({ id }) => id).sort(), due.slice(10))
      assert.deepEqual(await leaseDueJobs(two, 100, leaseAt(NOW)), [])
    })

    test('released, they leave when the next look is due and what went wrong', async () => {
      const [db] = await nodes()
      const job = await leased(db)
      assert.equal(await release(db, job, 'the runtime answered 503'), true)
      const row = await findJob(db, job.id)
      assert.deepEqual(
        [row?.lease_token, row?.lease_until, row?.checked_at, row?.next_check_at, row?.check_attempts, row?.last_error],
        [null, null, NOW + 1_000, NOW + 9_000, 1, 'the runtime answered 503'],
      )
    })

    test('lost meanwhile, they write nothing', async () => {
      const [db] = await nodes()
      const job = await leased(db)
      const other = await leaseJob(db, job.id, leaseAt(NOW + 1_000))
      assert.equal(await countStartAttempt(db, { id: job.id, token: job.lease_token ?? '' }), false)
      assert.equal(await release(db, job, 'too late'), false)
      assert.deepEqual(await findJob(db, job.id), other)
      assert.equal(await countStartAttempt(db, { id: job.id, token: other?.lease_token ?? '' }), true)
    })

    test('a look that was asked for while another was under way comes right after it', async () => {
      const [db] = await nodes()
      const deferred = await leased(db)
      const verdict = { kind: 'unclear', reason: 'done or paused?' } as const
      const update = { jobId: deferred.id, runId: deferred.run_id, verdict, via: 'callback', traces: null } as const
      await settleAt(db, NOW + 500, { ...update, unverified: true })
      await release(db, deferred)
      assert.equal((await findJob(db, deferred.id))?.next_check_at, NOW + 1_000)

      const cancelled = await leased(db)
      await db.transaction(async (tx) => {
        const [job] = await lockJobs(tx, [cancelled.id])
        assert.ok(job)
        await updateJobs(tx, [{ ...job, cancel_requested_at: NOW + 500 }])
      })
      await release(db, cancelled)
      assert.equal((await findJob(db, cancelled.id))?.next_check_at, NOW + 1_000)
    })

    test('a look of its own that was unclear waits its turn', async () => {
      const [db] = await nodes()
      const job = await leased(db)
      const verdict = { kind: 'unclear', reason: 'unknown status' } as const
      const update = { jobId: job.id, runId: job.run_id, verdict, via: 'sweep', traces: null } as const
      await settleAt(db, NOW + 1_000, update)
      await release(db, job)
      assert.equal((await findJob(db, job.id))?.next_check_at, NOW + 9_000)
    })

    test('a job that ended while it was held is due no more', async () => {
      const [db] = await nodes()
      const job = await leased(db)
      const verdict = { kind: 'failed', code: 'run_failed', message: 'kaboom' } as const
      const update = { jobId: job.id, runId: job.run_id, verdict, via: 'callback', traces: null } as const
      await settleAt(db, NOW, update)
      await release(db, job, 'the runtime answered 503')
      const row = await findJob(db, job.id)
      assert.deepEqual([row?.status, row?.next_check_at, row?.last_error], ['failed', null, null])
    })

    test('what an old look says of an earlier run changes nothing of the run that followed it', async () => {
      const [db] = await nodes()
      const job = await createJob(db, { run_seq: 2, run_id: null })
      const verdict = { kind: 'completed', output: JsonText.of(1), tokens: { input: 0, output: 0, total: 0 } } as const
      const update = { jobId: job.id, runId: randomUUID(), runSeq: 1, verdict, via: 'read', traces: null } as const
      const settled = await settleAt(db, NOW, update)
      assert.equal(settled?.outcome, 'stale')
      assert.deepEqual(await findJob(db, job.id), job)
    })
  })
})
