import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { silentMeter } from '../../src/core/metrics/meter.ts'
import type { Database, Row } from '../../src/db/database.ts'
import { meteredDatabase } from '../../src/db/metered-database.ts'
import { rowsOf as valuesOf } from '../../src/db/rows.ts'
import { type Sql, sql } from '../../src/db/sql.ts'
import { appendTimeline } from '../../src/jobs/settlement/timeline-store.ts'
import { assertError } from '../support/assert-error.ts'
import { addDevice } from '../support/job-rows.ts'
import { type JobWorld, RUN_MS, type ShownJob, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { forEachService } from '../support/service.ts'

const DAY_MS = 86_400_000
const HOUSEKEEPING_MS = 600_000

/** How many rows name the job, in every table that holds anything of a job. */
async function rowsOf(db: Database, id: string): Promise<Record<string, number>> {
  const [row] = await db.query<Record<string, number>>(sql`select
    (select count(*) from jobs where id = ${id}) as jobs,
    (select count(*) from job_runs where job_id = ${id}) as runs,
    (select count(*) from callbacks where job_id = ${id}) as callbacks,
    (select count(*) from job_timeline where job_id = ${id}) as timeline,
    (select count(*) from events where job_id = ${id}) as events,
    (select count(*) from notifications where job_id = ${id}) as notifications,
    (select count(*) from deliveries) as deliveries,
    (select count(*) from idempotency_keys where location = ${`/jobs/${id}`}) as answers`)
  return row ?? {}
}

const NOTHING = {
  jobs: 0,
  runs: 0,
  callbacks: 0,
  timeline: 0,
  events: 0,
  notifications: 0,
  deliveries: 0,
  answers: 0,
}

/** A job that ended by its callback, and has at least one row of everything. */
async function ended(world: JobWorld, sub: string): Promise<ShownJob> {
  await addDevice(world.db, sub)
  const headers = { 'idempotency-key': `of-${sub}` }
  const body = { type: 'report', input: { n: 1 } }
  const { body: started } = await world.request('POST', '/jobs', sub, { body, headers })
  await world.quiet()
  await world.sweepUntil(async () => (await world.stored(started.id)).status === 'completed', RUN_MS)
  await world.sweepUntil(async () => (await rowsOf(world.db, started.id)).deliveries === 1)
  const rows = await rowsOf(world.db, started.id)
  for (const [table, count] of Object.entries(rows)) assert.ok(count > 0, table)
  return world.get(started.id)
}

describe('deleting a job', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)

    test('a deleted job leaves no record except the usage numbers', async () => {
      const world = await startJobWorld(under, { pushSender: new ScriptedSender() })
      const job = await ended(world, 'ada')
      const usage = (await world.request('GET', '/v1/usage', 'ada')).body
      const deleted = await world.request('DELETE', `/jobs/${job.id}`, 'ada')
      assert.deepEqual([deleted.status, deleted.text], [204, ''])
      assert.deepEqual(await rowsOf(world.db, job.id), NOTHING)
      assert.deepEqual((await world.request('GET', '/v1/usage', 'ada')).body, usage)
      for (const [method, path] of [
        ['GET', `/jobs/${job.id}`],
        ['GET', `/jobs/${job.id}/timeline`],
        ['DELETE', `/jobs/${job.id}`],
      ] as const) {
        const gone = await world.request(method, path, 'ada')
        assertError(world.service, gone, { status: 404, code: 'not_found', message: 'No such job' })
      }
    })

    test('its webhook deliveries are deleted with it, and those of other jobs stay', async () => {
      const world = await startJobWorld(under)
      const token = world.service.tokenFor({ sub: 'root', scopes: ['admin:*'] })
      const events = ['job.created', 'job.completed']
      // No name server has this name, so each delivery waits for its next attempt.
      const body = { url: 'https://receiver.invalid/', events }
      assert.equal((await world.service.request('POST', '/v1/webhook-endpoints', { token, body })).status, 201)
      const start = async () =>
        (await world.request('POST', '/jobs', 'ada', { body: { type: 'report', input: {} } })).body.id
      const [job, other] = [await start(), await start()]
      await world.quiet()
      for (const id of [job, other]) {
        await world.sweepUntil(async () => (await world.stored(id)).status === 'completed', RUN_MS)
      }
      const left = () =>
        world.db.query<{ job_id: string | null; deliveries: number }>(sql`
          select e.job_id, count(*) as deliveries from webhook_deliveries d left join events e on e.seq = d.event_seq
          group by e.job_id order by e.job_id`)
      const ofBoth = [job, other].map((job_id) => ({ job_id, deliveries: 2 }))
      await world.sweepUntil(
        async () => (await left()).length === 2 && (await left()).every((one) => one.deliveries === 2),
      )
      assert.deepEqual(await left(), ofBoth)
      assert.equal((await world.request('DELETE', `/jobs/${job}`, 'ada')).status, 204)
      assert.deepEqual(await left(), ofBoth.slice(1))
    })

    if (under.engine.name === 'postgres') {
      test('a job can be deleted while PostgreSQL publishes all tables to a logical replica', async () => {
        const world = await startJobWorld(under, { pushSender: new ScriptedSender() })
        await world.db.query(sql`create publication everything for all tables`)
        const job = await ended(world, 'ada')
        const deleted = await world.request('DELETE', `/jobs/${job.id}`, 'ada')
        assert.deepEqual([deleted.status, deleted.text], [204, ''])
        assert.deepEqual(await rowsOf(world.db, job.id), NOTHING)
      })
    }

    test('a late callback does not create it again: by its run, its thread, its job id or the token of its URL', async () => {
      const world = await startJobWorld(under, { pushSender: new ScriptedSender() })
      const job = await ended(world, 'ada')
      await world.request('DELETE', `/jobs/${job.id}`, 'ada')
      const { id, thread_id, run_id } = job
      const late = { thread_id, run_id, status: 'success', values: { report: { n: 2 } } }
      const token = world.service.services.callbackAuthenticity.tokenFor(id) ?? ''
      const query = { job_id: id, token }
      const unknownRun = { ...late, run_id: '5f0c6d5e-0000-4000-8000-000000000000' }
      for (const [payload, options] of [
        [late, {}],
        [late, { query, headers: {} }],
        [unknownRun, { query, headers: {} }],
        [{ ...unknownRun, metadata: { job_id: id } }, {}],
        [unknownRun, {}],
      ] as const) {
        const answer = await world.callback('report', payload, options)
        assert.deepEqual(answer.body, { received: true, outcome: 'stale', job_id: id })
      }
      await world.quiet()
      assert.deepEqual(await rowsOf(world.db, id), NOTHING)
      const other = await world.callback('report', { ...unknownRun, thread_id: '5f0c6d5e-0000-4000-8000-000000000001' })
      assert.equal(other.body.outcome, 'adopted', 'a run of no deleted job is adopted as before')
    })

    test('the token of a job that was deleted long ago does not create it again', async () => {
      const world = await startJobWorld(under, { pushSender: new ScriptedSender() })
      const { id, thread_id } = await ended(world, 'ada')
      await world.request('DELETE', `/jobs/${id}`, 'ada')
      await world.db.query(sql`delete from job_tombstones`)
      await world.leap(31 * 24 * 3_600_000)
      const token = world.service.services.callbackAuthenticity.tokenFor(id) ?? ''
      const forged = { thread_id, run_id: '5f0c6d5e-0000-4000-8000-000000000003', status: 'error', error: 'forged' }
      const answer = await world.callback('report', forged, { query: { job_id: id, token }, headers: {} })
      assert.deepEqual(answer.body, { received: true, outcome: 'stale', job_id: id })
      assert.deepEqual(await rowsOf(world.db, id), NOTHING)
    })

    test('the token of a deleted job, or of another job, proves nothing about a run that names a third job', async () => {
      const world = await startJobWorld(under, { pushSender: new ScriptedSender() })
      const deleted = await ended(world, 'ada')
      await world.request('DELETE', `/jobs/${deleted.id}`, 'ada')
      world.runtime.setFaults({ drop_callbacks: 1, lose_start_answers: 1, zombie: true })
      const [starting, other] = [await world.start('report'), await world.start('report', { sub: 'bob' })]
      assert.equal((await world.stored(starting.id)).run_id, null)
      const run_id = '5f0c6d5e-0000-4000-8000-000000000002'
      const forged = { run_id, status: 'error', error: 'forged', metadata: { job_id: starting.id, run_seq: 1 } }
      for (const [id, thread_id] of [
        [deleted.id, starting.thread_id],
        [deleted.id, deleted.thread_id],
        [other.id, other.thread_id],
      ]) {
        const token = world.service.services.callbackAuthenticity.tokenFor(String(id)) ?? ''
        const query = { job_id: String(id), token }
        const answer = await world.callback('report', { ...forged, thread_id }, { query, headers: {} })
        assert.equal(answer.body.outcome, 'stale')
      }
      assert.deepEqual(await rowsOf(world.db, deleted.id), NOTHING)
      for (const { id } of [starting, other]) {
        const { status, run_id } = await world.stored(id)
        assert.deepEqual([status, run_id], ['processing', null])
      }
    })

    test('only a job that has ended can be deleted, by its owner and by admins', async () => {
      const world = await shared()
      const unfinished = await world.start('pausing', { sub: 'grace' })
      const refused = await world.request('DELETE', `/jobs/${unfinished.id}`, 'grace')
      const conflict = { status: 409, code: 'conflict', message: /only a job that has ended can be deleted$/ } as const
      assertError(world.service, refused, conflict)
      const notFound = { status: 404, code: 'not_found', message: 'No such job' } as const
      assertError(world.service, await world.request('DELETE', `/jobs/${unfinished.id}`, 'eve'), notFound)
      assertError(world.service, await world.request('DELETE', '/jobs/job_none', 'eve'), notFound)
      await world.db.query(sql`update jobs set status = 'failed', finished_at = 1 where id = ${unfinished.id}`)
      assertError(world.service, await world.request('DELETE', `/jobs/${unfinished.id}`, 'eve'), notFound)
      const byAdmin = await world.service.request('DELETE', `/jobs/${unfinished.id}`, { token: world.admin })
      assert.equal(byAdmin.status, 204)
    })

    test('a job with very much history is deleted in bounded transactions', async () => {
      const world = await shared()
      const { id } = await world.start('report', { sub: 'long' })
      await world.pass(RUN_MS)
      const entries = Array.from({ length: 1_201 }, (_, n) => n)
      await world.db.transaction((tx) =>
        appendTimeline(
          tx,
          entries.map((n) => ({
            id: `tml_long_${under.variant}_${n}`,
            job_id: id,
            at: n,
            kind: 'check',
            via: null,
            detail: '{}',
          })),
        ),
      )
      assert.equal((await world.request('DELETE', `/jobs/${id}`, 'long')).status, 204)
      const { deliveries: _ofOthers, ...rows } = await rowsOf(world.db, id)
      const { deliveries: _none, ...nothing } = NOTHING
      assert.deepEqual(rows, nothing)
    })

    test('an ended job is deleted by itself after JOB_RETENTION_DAYS, and an unfinished job never', async () => {
      const env = { JOB_RETENTION_DAYS: '2' }
      const world = await startJobWorld(under, { env, pushSender: new ScriptedSender() })
      const job = await ended(world, 'ada')
      const paused = await world.start('pausing')
      await world.sweepUntil(async () => (await world.stored(paused.id)).status === 'awaiting_input', RUN_MS)
      await world.leap(DAY_MS)
      await world.leap(HOUSEKEEPING_MS)
      assert.equal((await rowsOf(world.db, job.id)).jobs, 1, 'it is not time yet')
      await world.leap(DAY_MS)
      await world.leapUntil(async () => (await rowsOf(world.db, job.id)).jobs === 0, HOUSEKEEPING_MS)
      const { deliveries: _ofOthers, ...rows } = await rowsOf(world.db, job.id)
      const { deliveries: _none, ...nothing } = NOTHING
      assert.deepEqual(rows, nothing)
      assert.equal((await world.stored(paused.id)).status, 'awaiting_input')
      const tombstones = () => world.db.query(sql`select id from job_tombstones where job_id = ${job.id}`)
      assert.equal((await tombstones()).length, 3)
      await world.leap(31 * DAY_MS)
      await world.leapUntil(async () => (await tombstones()).length === 0, HOUSEKEEPING_MS)
    })

    test('the ids of deleted jobs are deleted later in batches, in smaller ones on SQLite', async () => {
      const stored = await under.engine.openDatabase()
      const batches: number[] = []
      const db: Database = {
        ...meteredDatabase(stored, silentMeter),
        query: async <R extends Row>(statement: Sql) => {
          const rows = await stored.query<R>(statement)
          if (/delete from job_tombstones/.test(statement.text) && rows.length > 0) batches.push(rows.length)
          return rows
        },
      }
      const ids = Array.from({ length: 1_200 }, (_, n) => ({ id: `job_${n}` }))
      await stored.query(sql`
        insert into job_tombstones (id, job_id, deleted_at)
        select r.id, r.id, 1 from ${valuesOf(stored.engine, ids, { id: 'text' })} as r where true`)
      const world = await startJobWorld(under, { db, runtime: false })
      const isEmpty = async () => (await stored.query(sql`select id from job_tombstones limit 1`)).length === 0
      await world.leapUntil(isEmpty, HOUSEKEEPING_MS)
      assert.deepEqual(batches, { sqlite: [500, 500, 200], postgres: [1_200] }[stored.engine])
    })
  })
})
