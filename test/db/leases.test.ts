import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { IdGenerator } from '../../src/core/ids.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database, Queryable } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { rowsOf } from '../../src/db/rows.ts'
import { type Sql, sql } from '../../src/db/sql.ts'
import { INLINE_BYTES, type JobRow, newJob } from '../../src/jobs/job-row.ts'
import { findJob, insertJob, lockJob, updateJobs } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { TurnsByOwner } from '../../src/jobs/leases/lease-in-turn.ts'
import {
  countStartAttempt,
  type LeasedJob,
  leaseDueJobs,
  leaseJob,
  leaseJobs,
  releaseLeases,
} from '../../src/jobs/leases/lease-store.ts'
import { findPendingWork } from '../../src/jobs/leases/pending-work.ts'
import { givePlaces, releaseUnlimited, takesPlace } from '../../src/jobs/leases/places-store.ts'
import { settleJobs } from '../../src/jobs/settlement/settle.ts'
import type { JobUpdate, Settled } from '../../src/jobs/settlement/settlement.ts'
import { hasPushTurnedOff } from '../../src/users/user-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { explaining } from '../support/explaining.ts'
import { ManualClock } from '../support/manual-clock.ts'

const NOW = 1_000_000
const LEASE_MS = 1_000
const ids = new IdGenerator(new ManualClock(), systemRandom)
const AGENT = BUILT_IN_JOB_TYPES.get('agent') as JobType
const leaseAt = (nowMs: number, node = 'node') => ({ token: randomUUID(), node, nowMs, untilMs: nowMs + LEASE_MS })

async function createJob(db: Database, fields: Partial<JobRow> = {}): Promise<JobRow> {
  const given = { input: null, project_id: null, created_by: 'ada', thread_id: randomUUID(), run_id: randomUUID() }
  const job = { ...newJob(AGENT, { id: ids.next('job'), ...given }, NOW), ...fields }
  await insertJob(db, job)
  return job
}

async function leased(db: Database, fields: Partial<JobRow> = {}): Promise<LeasedJob> {
  const { id } = await createJob(db, fields)
  const job = await leaseJob(db, id, leaseAt(NOW))
  assert.ok(job)
  return job
}

/** The result of a check that began with this job, a second after it was leased. */
async function release(db: Database, job: LeasedJob, error: string | null = null): Promise<boolean> {
  const record = {
    job_id: job.id,
    token: job.lease_token ?? '',
    at: NOW + 1_000,
    next_at: NOW + 9_000,
    error,
    unseen_at: null,
    question_at: null,
    unsent: 0,
    leased_due_at: job.next_check_at ?? 0,
    leased_cancel_at: job.cancel_requested_at ?? 0,
  }
  return (await db.transaction((tx) => releaseLeases(tx, [record]))).length > 0
}

/** Jobs with a run, each due a millisecond after the one before. Returns their ids. */
async function createDueJobs(
  db: Database,
  { owner, count, dueAtMs }: { owner: string; count: number; dueAtMs: number },
): Promise<string[]> {
  const rows = Array.from({ length: count }, (_, n) => ({ id: ids.next('job'), owner, at: dueAtMs - count + n + 1 }))
  const given = rowsOf(db.engine, rows, { id: 'text', owner: 'text', at: 'bigint' })
  await db.query(sql`
    insert into jobs (id, type, status, created_by, thread_id, run_id, run_seq, check_attempts,
      deadline_at, created_at, updated_at)
    select id, 'agent', 'generating', owner, id, id, 1, 0, at + 3600000, at, at from ${given} as r where true`)
  await db.query(sql`
    insert into job_checks (job_id, owner, due_at, starts, checks) select id, owner, at, 1, 0 from ${given} as r where true`)
  return rows.map(({ id }) => id)
}

function countOwners(jobs: readonly LeasedJob[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { created_by } of jobs) counts[created_by ?? ''] = (counts[created_by ?? ''] ?? 0) + 1
  return counts
}

function setNode(db: Database, id: string, expiresAtMs: number): Promise<unknown> {
  return db.query(sql`
    insert into nodes (id, started_at, expires_at) values (${id}, 0, ${expiresAtMs})
    on conflict (id) do update set expires_at = excluded.expires_at`)
}

async function settleAt(db: Database, atMs: number, update: JobUpdate): Promise<Settled | undefined> {
  const clock = new ManualClock(atMs)
  const types = BUILT_IN_JOB_TYPES
  const context = { db, clock, random: systemRandom, ids, types, pushOptOut: hasPushTurnedOff, usageLimitRuns: null }
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
        const [one, two] = [await store.connect({ waitsLong: true }), await store.connect()]
        await migrate(one)
        await setNode(one, 'node', Number.MAX_SAFE_INTEGER)
        return [one, two]
      })()
      return made as Promise<[Database, Database]>
    }

    test('one of many concurrent workers gets the job, and the next one when the lease expires', async () => {
      const [one, two] = await nodes()
      const { id } = await createJob(one)
      const wants = Array.from({ length: 20 }, (_, n) => leaseJob(n % 2 ? one : two, id, leaseAt(NOW)))
      const won = (await Promise.all(wants)).filter((job) => job !== undefined)
      assert.equal(won.length, 1)
      assert.equal(await leaseJob(one, id, leaseAt(NOW + 999)), undefined)
      assert.notEqual((await leaseJob(two, id, leaseAt(NOW + 1_000)))?.lease_token, won[0]?.lease_token)
    })

    test('the leases of a crashed node are free when its heartbeat has expired, and held until then', async () => {
      const [one, two] = await nodes()
      const { id } = await createJob(one)
      await setNode(one, 'crashed', NOW + 10_000)
      const lease = { token: randomUUID(), node: 'crashed', nowMs: NOW, untilMs: NOW + 60_000 }
      assert.ok(await leaseJob(one, id, lease))
      assert.equal(await leaseJob(two, id, leaseAt(NOW + 9_999)), undefined)
      await setNode(one, 'crashed', NOW + 12_000)
      assert.equal(await leaseJob(two, id, leaseAt(NOW + 11_999)), undefined, 'a heartbeat keeps them')
      assert.ok(await leaseJob(two, id, leaseAt(NOW + 12_000)))
    })

    test('the leases of a node without a row are free at once', async () => {
      const [one, two] = await nodes()
      const { id } = await createJob(one)
      await leaseJob(one, id, { token: randomUUID(), node: 'stopped', nowMs: NOW, untilMs: NOW + 60_000 })
      assert.ok(await leaseJob(two, id, leaseAt(NOW)))
    })

    test('one job of an owner does not wait for ten thousand due jobs of another', async () => {
      const [db] = await nodes()
      await db.query(sql`delete from job_checks`)
      await createDueJobs(db, { owner: 'ada', count: 10_000, dueAtMs: NOW - 20_000 })
      const [single] = await createDueJobs(db, { owner: 'bob', count: 1, dueAtMs: NOW })
      const first = await new TurnsByOwner().lease(db, 50, leaseAt(NOW))
      assert.equal(first.length, 50)
      assert.ok(first.some(({ id }) => id === single))
    })

    test('due jobs are shared equally among their owners, and no owner is passed over', async () => {
      const [db] = await nodes()
      await db.query(sql`delete from job_checks`)
      const owners = ['ada', 'bob', 'carl', 'dora']
      for (const [n, owner] of owners.entries()) {
        await createDueJobs(db, { owner, count: 30, dueAtMs: NOW - 1_000 + n })
      }
      const turns = new TurnsByOwner()
      const shares = countOwners(await turns.lease(db, 40, leaseAt(NOW)))
      assert.deepEqual(shares, { ada: 10, bob: 10, carl: 10, dora: 10 })
      const pairs = [await turns.lease(db, 2, leaseAt(NOW)), await turns.lease(db, 2, leaseAt(NOW))]
      assert.deepEqual(countOwners(pairs.flat()), { ada: 1, bob: 1, carl: 1, dora: 1 })
      const rest = await turns.lease(db, 1_000, leaseAt(NOW))
      assert.equal(rest.length, 120 - 40 - 4, 'what fits is taken whole')
    })

    test('nodes that take due jobs in turn at the same time get different ones', async () => {
      const [one, two] = await nodes()
      await one.query(sql`delete from job_checks`)
      for (const owner of ['ada', 'bob', 'carl']) await createDueJobs(one, { owner, count: 40, dueAtMs: NOW })
      const takes = Array.from({ length: 10 }, (_, n) => new TurnsByOwner().lease(n % 2 ? one : two, 9, leaseAt(NOW)))
      const taken = (await Promise.all(takes)).flat().map(({ id }) => id)
      assert.equal(new Set(taken).size, taken.length)
      assert.ok(taken.length > 0)
    })

    test('places of a limited type are never given to more jobs than it allows, in turn by owner', async () => {
      const [one, two] = await nodes()
      await one.query(sql`delete from job_checks`)
      await createDueJobs(one, { owner: 'ada', count: 20, dueAtMs: NOW })
      await createDueJobs(one, { owner: 'bob', count: 2, dueAtMs: NOW + 5_000 })
      await one.query(sql`update job_checks set limited_type = 'agent', queued_at = due_at, due_at = ${NOW + 99_000}`)
      const type = { name: 'agent', maxRunning: 4, maxRunningPerOwner: null }
      const gives = Array.from({ length: 6 }, (_, n) =>
        givePlaces(n % 2 ? one : two, type, { nowMs: NOW, after: null }),
      )
      assert.ok((await Promise.all(gives)).some(({ areWanted }) => areWanted))
      await givePlaces(one, type, { nowMs: NOW, after: null })
      const active = await one.query<{ job_id: string; owner: string; due_at: number }>(
        sql`select job_id, owner, due_at from job_checks where queued_at is null`,
      )
      assert.equal(active.length, 4)
      assert.ok(active.every(({ due_at }) => due_at === NOW))
      assert.equal(active.filter(({ owner }) => owner === 'bob').length, 2)
      const waiting = await one.query<{ job_id: string }>(
        sql`select job_id from job_checks where queued_at is not null limit 1`,
      )
      assert.equal(await leaseJob(one, waiting[0]?.job_id ?? '', leaseAt(NOW)), undefined, 'it has no place yet')
      assert.ok(await leaseJob(one, waiting[0]?.job_id ?? '', leaseAt(NOW + 99_000)), 'its deadline is due')
      const agent = { ...AGENT, maxRunning: 4 }
      assert.equal(await one.transaction((tx) => takesPlace(tx, agent, 'ada')), false)
    })

    test('a locked job does not keep the others waiting for a limit that was removed, and is released later', async () => {
      const [one, two] = await nodes()
      await one.query(sql`delete from job_checks`)
      const [locked = '', free = ''] = await createDueJobs(one, { owner: 'ada', count: 2, dueAtMs: NOW })
      await one.query(sql`update job_checks set limited_type = 'agent', queued_at = due_at, due_at = ${NOW + 99_000}`)
      const queued = async () =>
        (await one.query<{ job_id: string }>(sql`select job_id from job_checks where queued_at is not null`)).map(
          ({ job_id }) => job_id,
        )
      if (one.engine === 'postgres') {
        await two.transaction(async (tx) => {
          await tx.query(sql`select id from jobs where id = ${locked} for update`)
          await tx.query(sql`select job_id from job_checks where job_id = ${locked} for update`)
          assert.equal(await releaseUnlimited(one, [], NOW), true)
          assert.deepEqual(await queued(), [locked])
        })
      }
      assert.equal(
        await releaseUnlimited(one, [{ name: 'agent', maxRunning: 4, maxRunningPerOwner: null }], NOW),
        false,
      )
      assert.deepEqual(await queued(), one.engine === 'postgres' ? [locked] : [free, locked].sort())
      assert.equal(await releaseUnlimited(one, [], NOW), false)
      assert.deepEqual(await queued(), [])
    })

    test('an owner never has more places of a type than it allows each owner, and the others do not wait for that', async () => {
      const [one, two] = await nodes()
      await one.query(sql`delete from job_checks`)
      for (const owner of ['ada', 'bob']) await createDueJobs(one, { owner, count: 5, dueAtMs: NOW })
      await one.query(sql`update job_checks set limited_type = 'agent', queued_at = due_at, due_at = ${NOW + 99_000}`)
      const takes = (maxRunning: number | null, owner: string) =>
        one.transaction((tx) => takesPlace(tx, { ...AGENT, maxRunning, maxRunningPerOwner: 2 }, owner))
      const activeOf = async () => {
        const rows = await one.query<{ owner: string; jobs: number }>(sql`
          select owner, count(*) as jobs from job_checks where queued_at is null group by owner order by owner`)
        return rows.map(({ owner, jobs }) => [owner, jobs])
      }
      const give = (maxRunning: number | null) => {
        const type = { name: 'agent', maxRunning, maxRunningPerOwner: 2 }
        const gives = [one, two, one, two].map((db) => givePlaces(db, type, { nowMs: NOW, after: null }))
        return Promise.all(gives)
      }
      await give(3)
      assert.equal(
        (await activeOf()).reduce((sum, [, jobs]) => sum + Number(jobs), 0),
        3,
        'both limits hold',
      )
      await give(null)
      assert.deepEqual(await activeOf(), [
        ['ada', 2],
        ['bob', 2],
      ])
      assert.equal(await takes(null, 'ada'), false)
      assert.equal(await takes(null, 'carl'), true)
      assert.equal(await takes(4, 'carl'), false, 'the type has no place')
      await one.query(sql`delete from job_checks where queued_at is not null`)
      assert.equal(await takes(5, 'carl'), true)
      assert.equal(await takes(5, 'ada'), false, 'the owner has no place')
    })

    test('many owners without a free place of their own do not hide a waiting job of another owner', async () => {
      const [db] = await nodes()
      const count = 2_500
      for (const [owner, maxRunning] of [['zoe', 9_999] as const, ['a', null] as const]) {
        await db.query(sql`delete from job_checks`)
        const active = await createDueJobs(db, { owner: 'm', count, dueAtMs: NOW })
        await createDueJobs(db, { owner: 'q', count, dueAtMs: NOW })
        await createDueJobs(db, { owner, count: 1, dueAtMs: NOW })
        await db.query(sql`update job_checks set limited_type = 'agent', due_at = ${NOW + 99_000}`)
        await db.query(sql`update job_checks set queued_at = ${NOW} where owner <> 'm'`)
        // Each of these owners has one active run and one job that waits.
        const pairs = active.map((id, n) => ({ id, owner: `m${n}` }))
        const queued = await db.query<{ job_id: string }>(sql`select job_id from job_checks where owner = 'q'`)
        pairs.push(...queued.map(({ job_id: id }, n) => ({ id, owner: `m${n}` })))
        await db.query(sql`
          update job_checks set owner = r.owner from ${rowsOf(db.engine, pairs, { id: 'text', owner: 'text' })} as r
          where job_id = r.id`)
        const type = { name: 'agent', maxRunning, maxRunningPerOwner: 1 }
        let after: string | null = 'b'
        let rounds = 0
        const isWaiting = sql`select 1 as one from job_checks where owner = ${owner} and queued_at is not null`
        while ((await db.query(isWaiting)).length > 0) {
          after = (await givePlaces(db, type, { nowMs: NOW, after })).last
          rounds++
        }
        assert.ok(rounds <= 2, `${rounds} rounds`)
        const given = await db.query(sql`select job_id from job_checks where queued_at is null and owner like 'm%'`)
        assert.equal(given.length, count)
      }
    })

    test('one statement finds what a round of the sweep has to do, from indexes alone', async () => {
      const [db] = await nodes()
      await db.query(sql`delete from job_checks`)
      const limitedTypes = ['agent', 'report']
      const find = (on: Queryable = db) => findPendingWork(on, { nowMs: NOW, calendarMs: NOW, limitedTypes })
      const nothing = {
        hasDelayed: false,
        hasTurns: false,
        hasDue: false,
        hasQuestions: false,
        queuedTypes: new Set(),
      }
      await createDueJobs(db, { owner: 'ada', count: 3_000, dueAtMs: NOW + 60_000 })
      if (db.engine === 'postgres') await db.query(sql`analyze job_checks`)
      const plans: string[] = []
      assert.deepEqual(await find(explaining(db, plans)), nothing)
      assert.equal(plans.length, 1)
      for (const index of ['due', 'waiting', 'delayed', 'questions', 'queued'])
        assert.match(plans[0] ?? '', RegExp(`job_checks_${index}`))
      assert.doesNotMatch(plans[0] ?? '', /Seq Scan on job_checks|SCAN job_checks(?! USING)/)
      const [one = '', two = '', three = '', four = ''] = await createDueJobs(db, {
        owner: 'bob',
        count: 4,
        dueAtMs: NOW + 9_000,
      })
      const change = async (id: string, columns: Sql) => {
        await db.query(sql`update job_checks set ${columns} where job_id = ${id}`)
        return find()
      }
      assert.deepEqual(await change(one, sql`waits_on = 'thread', not_before = ${NOW + 1}`), nothing)
      assert.deepEqual(await change(one, sql`not_before = ${NOW}`), { ...nothing, hasDelayed: true })
      assert.deepEqual(await change(one, sql`not_before = null`), { ...nothing, hasTurns: true })
      await db.query(sql`delete from job_checks where job_id = ${one}`)
      assert.deepEqual(await change(two, sql`due_at = ${NOW}`), { ...nothing, hasDue: true })
      assert.deepEqual(await change(two, sql`due_at = ${NOW + 1}, question_at = ${NOW}`), {
        ...nothing,
        hasQuestions: true,
      })
      await db.query(sql`delete from job_checks where job_id = ${two}`)
      const queued = { ...nothing, queuedTypes: new Set(['report']) }
      assert.deepEqual(await change(three, sql`limited_type = 'report', queued_at = ${NOW}`), queued)
      assert.deepEqual(await change(four, sql`limited_type = 'unlimited', queued_at = ${NOW}`), queued)
    })

    test('questions are leased from an index of their own, however many other jobs are due', async () => {
      const [db] = await nodes()
      await db.query(sql`delete from job_checks`)
      await createDueJobs(db, { owner: 'ada', count: 3_000, dueAtMs: NOW })
      const [late = '', later = ''] = await createDueJobs(db, { owner: 'bob', count: 2, dueAtMs: NOW })
      await db.query(sql`update job_checks set question_at = ${NOW} where job_id = ${late}`)
      await db.query(sql`update job_checks set question_at = ${NOW + 1} where job_id = ${later}`)
      if (db.engine === 'postgres') await db.query(sql`analyze job_checks`)
      const plans: string[] = []
      const lease = { ...leaseAt(NOW), only: 'questions' } as const
      const taken = await leaseDueJobs(explaining(db, plans), 100, lease)
      assert.deepEqual(
        taken.map(({ id }) => id),
        [late],
      )
      assert.match(plans[0] ?? '', /job_checks_questions/)
      assert.doesNotMatch(plans[0] ?? '', /Seq Scan on job_checks|SCAN job_checks(?! USING)|job_checks_due/)
      assert.deepEqual(await new TurnsByOwner().lease(db, 100, lease), [])
    })

    test('places that become free one at a time are given in turn by owner', async () => {
      const [db] = await nodes()
      await db.query(sql`delete from job_checks`)
      for (const owner of ['ada', 'bob', 'carl']) await createDueJobs(db, { owner, count: 5, dueAtMs: NOW })
      await db.query(sql`update job_checks set limited_type = 'agent', queued_at = due_at, due_at = ${NOW + 99_000}`)
      const type = { name: 'agent', maxRunning: 1, maxRunningPerOwner: null }
      const turns: string[] = []
      let after: string | null = null
      for (let n = 0; n < 6; n++) {
        after = (await givePlaces(db, type, { nowMs: NOW, after })).last
        const [active] = await db.query<{ owner: string }>(sql`
          delete from job_checks where queued_at is null returning owner`)
        assert.ok(active)
        turns.push(active.owner)
      }
      assert.deepEqual(turns, ['ada', 'bob', 'carl', 'ada', 'bob', 'carl'])
    })

    test('a due job does not wait for those of another owner, among many owners without a due job', async () => {
      const [db] = await nodes()
      await db.query(sql`delete from job_checks`)
      await createDueJobs(db, { owner: 'ada', count: 100, dueAtMs: NOW - 20_000 })
      await createDueJobs(db, { owner: 'm', count: 900, dueAtMs: NOW + 60_000 })
      await db.query(sql`update job_checks set owner = job_id where owner = 'm'`)
      const [single] = await createDueJobs(db, { owner: 'zoe', count: 1, dueAtMs: NOW })
      const first = await new TurnsByOwner().lease(db, 50, leaseAt(NOW))
      assert.ok(first.some(({ id }) => id === single))
    })

    test('a lease and a check do not write the row of the job', async () => {
      const [db] = await nodes()
      const job = await leased(db, { run_id: null })
      const row = () => db.query(sql`select * from jobs where id = ${job.id}`)
      const before = await row()
      assert.equal(await countStartAttempt(db, { id: job.id, token: job.lease_token ?? '', nowMs: NOW }), true)
      assert.equal(await release(db, job, 'the runtime answered 503'), true)
      assert.deepEqual(await row(), before)
    })

    test('only an unfinished job is leased', async () => {
      const [db] = await nodes()
      for (const status of ['completed', 'failed', 'cancelled'] as const) {
        const { id } = await createJob(db, { status, next_check_at: null })
        assert.equal(await leaseJob(db, id, leaseAt(NOW)), undefined)
      }
      const { id } = await createJob(db, { status: 'awaiting_input' })
      assert.equal((await leaseJob(db, id, leaseAt(NOW)))?.id, id)
    })

    test('a job that any node checked after the given time is not leased', async () => {
      const [db] = await nodes()
      const { id } = await createJob(db, { status: 'awaiting_input', checked_at: NOW - 10 })
      assert.equal(await leaseJob(db, id, leaseAt(NOW), NOW - 11), undefined)
      assert.equal((await leaseJob(db, id, leaseAt(NOW), NOW - 10))?.id, id)
    })

    test('a lease of several jobs leaves out those that another worker holds or that wait for a place', async () => {
      const [one, two] = await nodes()
      const free = [await createJob(one), await createJob(one)].map(({ id }) => id)
      const held = await leased(one)
      const { id: queued } = await createJob(one, { next_check_at: NOW + 1 })
      await one.query(sql`update job_checks set queued_at = ${NOW} where job_id = ${queued}`)
      const wanted = [...free, ...free, held.id, queued, 'job_unknown']
      const taken = await leaseJobs(one, wanted, leaseAt(NOW))
      assert.deepEqual(taken.map(({ id }) => id).sort(), free.toSorted())
      assert.deepEqual(await leaseJobs(two, wanted, leaseAt(NOW)), [])
    })

    test('due jobs are each leased to one worker, on any number of nodes, the longest due first', async () => {
      const [one, two] = await nodes()
      await one.query(sql`delete from job_checks`)
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

    test('released leases record the time of the next check and the error', async () => {
      const [db] = await nodes()
      const job = await leased(db)
      assert.equal(await release(db, job, 'the runtime answered 503'), true)
      const row = await findJob(db, job.id)
      assert.deepEqual(
        [row?.lease_token, row?.lease_until, row?.checked_at, row?.next_check_at, row?.check_attempts, row?.last_error],
        [null, null, NOW + 1_000, NOW + 9_000, 1, 'the runtime answered 503'],
      )
    })

    test('lost leases write nothing', async () => {
      const [db] = await nodes()
      const job = await leased(db, { run_id: null })
      const other = await leaseJob(db, job.id, leaseAt(NOW + 1_000))
      const held = await findJob(db, job.id)
      assert.equal(held?.lease_token, other?.lease_token)
      const attempt = { id: job.id, nowMs: NOW + 1_000 }
      assert.equal(await countStartAttempt(db, { ...attempt, token: job.lease_token ?? '' }), false)
      assert.equal(await release(db, job, 'too late'), false)
      assert.deepEqual(await findJob(db, job.id), held)
      assert.equal(await countStartAttempt(db, { ...attempt, token: other?.lease_token ?? '' }), true)
    })

    test('a job that was cancelled or ended since it was leased is not started', async () => {
      const [db] = await nodes()
      const attempt = ({ id, lease_token }: LeasedJob) => ({ id, token: lease_token ?? '', nowMs: NOW + 500 })
      const cancelled = await leased(db, { run_id: null })
      await db.transaction(async (tx) => {
        const job = await lockJob(tx, cancelled.id, INLINE_BYTES)
        assert.ok(job)
        await updateJobs(tx, [{ ...job, cancel_requested_at: NOW + 400 }])
      })
      assert.equal(await countStartAttempt(db, attempt(cancelled)), false)

      const ended = await leased(db, { run_id: null })
      const update = { jobId: ended.id, runId: null, verdict: { kind: 'cancelled' }, via: null, traces: null } as const
      await settleAt(db, NOW + 400, update)
      assert.equal(await countStartAttempt(db, attempt(ended)), false)
    })

    test('a check that is requested during another check follows it at once', async () => {
      const [db] = await nodes()
      const deferred = await leased(db)
      const verdict = { kind: 'unclear', reason: 'done or paused?' } as const
      const update = { jobId: deferred.id, runId: deferred.run_id, verdict, via: 'callback', traces: null } as const
      await settleAt(db, NOW + 500, { ...update, unverified: true })
      await release(db, deferred)
      assert.equal((await findJob(db, deferred.id))?.next_check_at, NOW + 1_000)

      const cancelled = await leased(db)
      await db.transaction(async (tx) => {
        const job = await lockJob(tx, cancelled.id, INLINE_BYTES)
        assert.ok(job)
        await updateJobs(tx, [{ ...job, cancel_requested_at: NOW + 500 }])
      })
      await release(db, cancelled)
      assert.equal((await findJob(db, cancelled.id))?.next_check_at, NOW + 1_000)
    })

    test('a job waits for the backoff after an unclear check of its own', async () => {
      const [db] = await nodes()
      const job = await leased(db)
      const verdict = { kind: 'unclear', reason: 'unknown status' } as const
      const update = { jobId: job.id, runId: job.run_id, verdict, via: 'sweep', traces: null } as const
      await settleAt(db, NOW + 1_000, update)
      await release(db, job)
      assert.equal((await findJob(db, job.id))?.next_check_at, NOW + 9_000)
    })

    test('a job that ended during a check is not due again', async () => {
      const [db] = await nodes()
      const job = await leased(db)
      const verdict = { kind: 'failed', code: 'run_failed', message: 'kaboom' } as const
      const update = { jobId: job.id, runId: job.run_id, verdict, via: 'callback', traces: null } as const
      await settleAt(db, NOW, update)
      await release(db, job, 'the runtime answered 503')
      const row = await findJob(db, job.id)
      assert.deepEqual([row?.status, row?.next_check_at, row?.last_error], ['failed', null, null])
    })

    test('the result of an old check of an earlier run does not change the next run', async () => {
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
