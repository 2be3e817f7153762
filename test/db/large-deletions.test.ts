import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { IdGenerator } from '../../src/core/ids.ts'
import { silentLog } from '../../src/core/log.ts'
import { silentMeter } from '../../src/core/metrics/meter.ts'
import { systemRandom } from '../../src/core/random.ts'
import { takeBatch } from '../../src/db/bounded-page.ts'
import type { Queryable } from '../../src/db/database.ts'
import { type Sql, sql } from '../../src/db/sql.ts'
import { deleteAnswersFor, deleteExpiredAnswers, findAnswer, storeAnswer } from '../../src/http/idempotency-store.ts'
import { insertCallbacks } from '../../src/jobs/callback-store.ts'
import { newJob } from '../../src/jobs/job-row.ts'
import { changeJobs, insertJob } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { deleteEndedJobs, trimJobs } from '../../src/jobs/retention/delete-jobs.ts'
import { eraseSomeJobs } from '../../src/jobs/retention/erase-jobs.ts'
import { trimHistory } from '../../src/jobs/retention/trim-history.ts'
import { appendTimeline } from '../../src/jobs/settlement/timeline-store.ts'
import { type EngineUnderTest, forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { WatchedDatabase } from '../support/watched-database.ts'

const TYPE = BUILT_IN_JOB_TYPES.get('agent') as JobType
const MEGABYTE = 1024 * 1024
/** The third alone is larger than a batch. */
const DOCUMENTS = [3, 3, 9, 3, 3, 0, 0].map((megabytes) => 'x'.repeat(megabytes * MEGABYTE + 10))
/** The first two, the third, the rest. */
const BATCHES = 3

async function setUp(engine: EngineUnderTest) {
  const watched = new WatchedDatabase(await engine.openDatabase())
  const { db } = watched
  const clock = new ManualClock()
  const past = new ManualClock()
  const ids = new IdGenerator(past, systemRandom)

  const addJob = async (fields: { output?: string; isUnfinished?: boolean } = {}): Promise<string> => {
    await past.advance(1)
    const id = ids.next('job')
    const given = { id, input: '{}', project_id: null, created_by: 'ada', thread_id: `t-${id}`, run_id: null }
    await insertJob(db, newJob(TYPE, given, past.now()))
    const end = { id, status: 'completed', settled_by: 'callback', finished_at: past.now() } as const
    if (fields.isUnfinished !== true) {
      await db.transaction((tx) => changeJobs(tx, [{ ...end, output: fields.output ?? '{}' }]))
    }
    return id
  }
  const addCallback = async (jobId: string, body: string): Promise<void> => {
    await past.advance(1)
    const fields = { path: '/', type: 'agent', thread_id: 't', run_id: 'r', status: 'success', transition: null }
    const id = ids.next('cbk')
    const callback = { ...fields, id, job_id: jobId, outcome: 'applied' as const, received_at: past.now(), body }
    await db.transaction((tx) => insertCallbacks(tx, [callback]))
  }
  const addAnswer = (key: string, body: string, expiresAtMs: number) =>
    storeAnswer(db, { principal: 'ada', key }, { ...ANSWER, body, expires_at: expiresAtMs })
  const count = async (from: Sql): Promise<number> => {
    const [row] = await db.query<{ rows: number }>(sql`select count(*) as rows from ${from}`)
    return row?.rows ?? 0
  }
  const context = { db, clock, log: silentLog, meter: silentMeter }
  const { signal } = new AbortController()
  /** Everything added so far is older than a day. */
  const passDays = () => clock.advance(past.now() - clock.now() + 2 * 86_400_000)
  return { watched, db, clock, addJob, addCallback, addAnswer, count, context, signal, passDays }
}

const ANSWER = { fingerprint: 'f', status: 201, location: '/v1/projects/prj_1' }
const KEY = { principal: 'ada', key: 'key-0' }

describe('a batch of a deletion', () => {
  const sizesOf = (sizes: number[], limit: number) => {
    const { rows, hasMore } = takeBatch(
      sizes.map((megabytes) => ({ bytes: megabytes * MEGABYTE })),
      limit,
    )
    return [rows.length, hasMore]
  }

  test('a batch ends before the row that would take it over 8 MB or over its limit, but has at least one row', () => {
    assert.deepEqual(sizesOf([], 5), [0, false])
    assert.deepEqual(sizesOf([9], 5), [1, false])
    assert.deepEqual(sizesOf([9, 1], 5), [1, true])
    assert.deepEqual(sizesOf([4, 4], 5), [2, false])
    assert.deepEqual(sizesOf([4, 4, 0.1], 5), [2, true])
    assert.deepEqual(sizesOf([0, 0, 0], 2), [2, true])
    assert.deepEqual(sizesOf([0, 0], 2), [2, false])
  })
})

describe('large documents are deleted in several batches, and in the end all are gone', () => {
  forEachEngine((engine) => {
    test('the callbacks of a deleted job', async () => {
      const { watched, db, addJob, addCallback, count } = await setUp(engine)
      const id = await addJob()
      for (const body of DOCUMENTS) await addCallback(id, body)
      assert.deepEqual(await deleteEndedJobs(db, { ids: [id], atMs: 1 }), [id])
      assert.equal(watched.count(/delete from callbacks/), BATCHES)
      assert.equal(watched.count(/delete from jobs/), 1)
      assert.deepEqual([await count(sql`callbacks`), await count(sql`jobs`)], [0, 0])
    })

    test('old jobs with large documents are deleted in several batches, except an unfinished one', async () => {
      const { watched, addJob, count, context, signal, passDays } = await setUp(engine)
      for (const output of DOCUMENTS) await addJob({ output })
      await addJob({ isUnfinished: true })
      await passDays()
      await trimJobs(context, { retentionDays: 1, signal })
      assert.equal(watched.count(/delete from jobs/), BATCHES)
      assert.equal(await count(sql`jobs`), 1)
    })

    test('old callbacks with large documents are deleted in several batches', async () => {
      const { watched, addJob, addCallback, count, context, signal, passDays } = await setUp(engine)
      const id = await addJob()
      for (const body of DOCUMENTS) await addCallback(id, body)
      await passDays()
      await trimHistory(context, { retentionDays: 1, signal })
      assert.equal(watched.count(/delete from callbacks/), BATCHES)
      assert.equal(await count(sql`callbacks`), 0)
    })

    test('the timeline of large jobs, whose end is behind their documents', async () => {
      const { watched, db, addJob, count, context, signal, passDays } = await setUp(engine)
      for (const [n, output] of DOCUMENTS.entries()) {
        const job_id = await addJob({ output })
        const entry = { id: `tml_${n}`, job_id, at: 1, kind: 'check' as const, via: null, detail: '{}' }
        await db.transaction((tx) => appendTimeline(tx, [entry]))
      }
      await passDays()
      await trimHistory(context, { retentionDays: 1, signal })
      assert.equal(watched.count(/from jobs where .* and finished_at < /), BATCHES)
      assert.equal(await count(sql`job_timeline`), 0)
    })

    test('the jobs and callback bodies of an erased user', async () => {
      const { watched, db, addJob, addCallback, count } = await setUp(engine)
      const id = await addJob()
      for (const body of DOCUMENTS) await addCallback(id, body)
      for (const output of DOCUMENTS) await addJob({ output })
      let erased = 0
      for (let found = -1; found !== 0; ) {
        const step = await db.transaction((tx) => eraseSomeJobs(tx, { owner: 'ada', atMs: 1 }))
        found = step.found
        erased += step.erased
      }
      assert.equal(erased, 1 + DOCUMENTS.length)
      assert.equal(watched.count(/update callbacks/), BATCHES)
      assert.equal(watched.count(/update jobs set created_by = null/), BATCHES)
      assert.equal(await count(sql`callbacks where body <> 'null'`), 0)
      assert.equal(await count(sql`jobs where output is not null or created_by is not null`), 0)
    })

    test('large kept answers are deleted in several batches, by their age and by their principal', async () => {
      const { watched, db, addAnswer, count } = await setUp(engine)
      for (const remove of [
        () => deleteExpiredAnswers(db, { nowMs: 5, limit: 100 }),
        () => deleteAnswersFor(db, 'ada', 100),
      ]) {
        for (const [n, body] of DOCUMENTS.entries()) await addAnswer(`key-${n}`, body, 5)
        watched.forget()
        while (await remove());
        assert.ok(watched.count(/delete from idempotency_keys/) >= BATCHES)
        assert.equal(await count(sql`idempotency_keys`), 0)
      }
    })

    test('an answer that replaces an expired one meanwhile stays', async () => {
      const { db, addAnswer } = await setUp(engine)
      await addAnswer(KEY.key, 'expired', 5)
      await addAnswer('key-1', 'expired', 5)
      const replacing: Queryable = {
        engine: db.engine,
        query: async (statement) => {
          if (/^\s*delete/.test(statement.text)) await addAnswer(KEY.key, 'new', 100)
          return db.query(statement)
        },
      }
      assert.equal(await deleteExpiredAnswers(replacing, { nowMs: 5, limit: 100 }), false)
      assert.equal((await findAnswer(db, KEY))?.body, 'new')
      assert.equal(await findAnswer(db, { principal: 'ada', key: 'key-1' }), undefined)
    })
  })
})
