import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { IdGenerator } from '../../src/core/ids.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database, Queryable } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import { appendEvents, readEvents } from '../../src/events/event-store.ts'
import { type JobStatus, UNFINISHED_STATUSES } from '../../src/jobs/job.ts'
import { type JobRow, newJob } from '../../src/jobs/job-row.ts'
import { changeJobs, findJob, insertJob } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { deleteEndedJobs } from '../../src/jobs/retention/delete-jobs.ts'
import {
  countRuns,
  countUnfinished,
  findUnfinished,
  findUnfinishedOn,
  IS_UNFINISHED,
} from '../../src/jobs/uncommon-jobs.ts'
import { forEachEngine } from '../support/engines.ts'
import { explaining } from '../support/explaining.ts'
import { ManualClock } from '../support/manual-clock.ts'

const TYPE = BUILT_IN_JOB_TYPES.get('agent') as JobType

function setUp(db: Database) {
  const clock = new ManualClock()
  const ids = new IdGenerator(clock, systemRandom)
  const addJob = async (fields: Partial<JobRow> = {}): Promise<string> => {
    const id = ids.next('job')
    const given = { id, input: '{}', project_id: null, created_by: 'ada', thread_id: `t-${id}`, run_id: null }
    await insertJob(db, { ...newJob(TYPE, given, clock.now()), ...fields })
    return id
  }
  const change = (id: string, fields: Partial<JobRow>) => db.transaction((tx) => changeJobs(tx, [{ ...fields, id }]))
  const rowOf = async (id: string) => (await db.query(sql`select * from uncommon_jobs where id = ${id}`))[0]
  return { clock, ids, addJob, change, rowOf }
}

test('the condition for unfinished jobs names every unfinished status', () => {
  const named = Array.from(IS_UNFINISHED.text.matchAll(/'(\w+)'/g), ([, status]) => status)
  assert.deepEqual(named.sort(), [...UNFINISHED_STATUSES].sort())
})

describe('the jobs that a callback did not simply complete', () => {
  forEachEngine((engine) => {
    test('an uncommon job has a row from its creation until a callback completes it', async () => {
      const db = await engine.openDatabase()
      const { addJob, change, rowOf, clock } = setUp(db)
      const id = await addJob()
      const row = {
        id,
        owner: 'ada',
        state: 'processing',
        failure: null,
        missed_by: null,
        unfit: null,
        since: clock.now(),
      }
      assert.deepEqual(await rowOf(id), row)
      await change(id, { status: 'generating' })
      assert.deepEqual(await rowOf(id), { ...row, state: 'generating' })
      await change(id, { created_by: 'bob' })
      assert.deepEqual(await rowOf(id), { ...row, state: 'generating', owner: 'bob' })
      await change(id, { status: 'completed', settled_by: 'callback', finished_at: 1 })
      assert.equal(await rowOf(id), undefined)
    })

    test('an uncommon job keeps its row when it fails, and when its callback was missed', async () => {
      const db = await engine.openDatabase()
      const { addJob, change, rowOf } = setUp(db)
      const [failed, missed] = [await addJob(), await addJob()]
      await change(failed, { status: 'failed', error_code: 'run_failed', settled_by: 'callback', finished_at: 1 })
      await change(missed, { status: 'completed', settled_by: 'sweep', finished_at: 1 })
      const row = { owner: 'ada', failure: null, missed_by: null, unfit: null, since: 1 }
      assert.deepEqual(await rowOf(failed), { ...row, id: failed, state: 'failed', failure: 'run_failed' })
      assert.deepEqual(await rowOf(missed), { ...row, id: missed, state: 'completed', missed_by: 'sweep' })
      await deleteEndedJobs(db, { ids: [failed, missed], atMs: 1 })
      assert.deepEqual([await rowOf(failed), await rowOf(missed)], [undefined, undefined])
    })

    test('uncommon jobs are counted for the metrics and for the usage limit', async () => {
      const db = await engine.openDatabase()
      const { addJob, clock } = setUp(db)
      const oldestMs = clock.now()
      await addJob({ status: 'generating' })
      await clock.advance(5)
      for (const status of ['generating', 'awaiting_input', 'failed'] satisfies JobStatus[]) await addJob({ status })
      await addJob({ status: 'completed', created_by: 'ada' })
      await addJob({ created_by: 'bob' })
      assert.equal(await countUnfinished(db, 'ada'), 3)
      const ofBob = { createdBy: 'bob', period: '2026-01', counted: 'accepted' } as const
      assert.deepEqual(await countRuns(db, ofBob), { runs: 1, tokens: 0 })
      const found = new Map((await findUnfinished(db, clock.now())).map(({ status, ...rest }) => [status, rest]))
      assert.deepEqual(found.get('generating'), { jobs: 2, oldest_at: oldestMs })
      assert.equal(found.get('awaiting_input')?.jobs, 1)
      assert.equal(found.get('processing')?.jobs, 1)
    })

    test('however many jobs wait for their run_at, the oldest other job is found, by one entry of an index', async () => {
      const db = await engine.openDatabase({ waitsLong: true })
      const { addJob, clock } = setUp(db)
      const nowMs = clock.now()
      const oldestOf = async (on: Queryable = db) =>
        (await findUnfinished(on, nowMs)).find(({ status }) => status === 'processing')?.oldest_at
      await db.query(sql`
        insert into jobs (id, type, status, created_by, thread_id, run_seq, check_attempts, deadline_at, created_at,
          updated_at, run_at)
        with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < 1500)
        select 'job_' || n, 'agent', 'processing', 'ada', 'thread-' || n, 1, 0, 1, ${nowMs - 9_000}, 1,
          cast(${nowMs} as bigint) + n
        from numbers`)
      assert.equal(await oldestOf(), null)
      const began = { created_at: nowMs - 9_000, run_at: nowMs - 2_000 }
      await addJob(began)
      await addJob({ created_at: nowMs - 5_000 })
      if (db.engine === 'postgres') await db.query(sql`analyze uncommon_jobs`)
      const plans: string[] = []
      assert.equal(await oldestOf(explaining(db, plans)), nowMs - 5_000)
      assert.match(plans.join(), /uncommon_jobs_by_age/)
    })

    test('an unfinished job of a thread is found without reading the jobs of the thread', async () => {
      const db = await engine.openDatabase()
      const { addJob } = setUp(db)
      const ended = ['completed', 'failed', 'cancelled'] satisfies JobStatus[]
      for (const status of ended) await addJob({ thread_id: 'ended', status, finished_at: 1 })
      for (const status of ['processing', 'generating', 'awaiting_input'] satisfies JobStatus[]) {
        await addJob({ thread_id: status, status: 'completed', finished_at: 1 })
        await addJob({ thread_id: status, status })
        assert.equal((await findUnfinishedOn(db, status)).length, 1)
      }
      const plans: string[] = []
      assert.deepEqual(await findUnfinishedOn(explaining(db, plans), 'ended'), [])
      if (db.engine === 'sqlite') assert.match(plans.join(), /jobs USING COVERING INDEX jobs_by_conversation/)
    })

    test('jobs with different changes in one write keep the columns that did not change', async () => {
      const db = await engine.openDatabase()
      const { addJob } = setUp(db)
      const done = await addJob({ status: 'completed', output: '{"kept":1}', finished_at: 1 })
      const open = await addJob()
      await db.transaction((tx) =>
        changeJobs(tx, [
          { id: done, trace_id: 'late' },
          { id: open, status: 'completed', output: '{"new":1}' },
        ]),
      )
      const [first, second] = [await findJob(db, done), await findJob(db, open)]
      assert.deepEqual([first?.trace_id, first?.output], ['late', '{"kept":1}'])
      assert.deepEqual([second?.trace_id, second?.output], [null, '{"new":1}'])
    })

    test('the events of a job are read from the index of causes, however long the log is', async () => {
      const db = await engine.openDatabase({ waitsLong: true })
      const { addJob } = setUp(db)
      const id = await addJob()
      await db.query(sql`
        insert into events (subject, job_id, type, cause, data, created_at)
        with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < 20000)
        select 'bob', 'job_' || n, 'job.updated', 'job_' || n || ':1:updated', '{}', 1 from numbers`)
      const event = { subject: 'ada', job_id: id, type: 'job.updated', data: '{}', created_at: 1 } as const
      await db.transaction((tx) => appendEvents(tx, [{ ...event, cause: `${id}:1:updated` }]))
      if (db.engine === 'postgres') await db.query(sql`analyze`)
      const plans: string[] = []
      const found = await readEvents(explaining(db, plans), { after: 0, upTo: 1e12, filter: { jobId: id }, limit: 10 })
      assert.deepEqual(
        found.map(({ job_id }) => job_id),
        [id],
      )
      assert.match(plans.join(), /events_cause_key|sqlite_autoindex_events_1/)
      await assert.rejects(
        db.transaction((tx) => appendEvents(tx, [{ ...event, cause: 'another' }])),
        /does not begin with the id of its job/,
      )
    })
  })
})
