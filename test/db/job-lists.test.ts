import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { firstIdAt } from '../../src/core/ids.ts'
import type { BoundedPage } from '../../src/db/bounded-page.ts'
import { buildNextIndex } from '../../src/db/build-indexes.ts'
import { readTables } from '../../src/db/copy/catalog.ts'
import type { Database, Queryable, Row } from '../../src/db/database.ts'
import { rowsOf } from '../../src/db/rows.ts'
import { join, Sql, sql } from '../../src/db/sql.ts'
import { appendEvents, deleteEventsOf, trimEvents } from '../../src/events/event-store.ts'
import { type JobRow, type ListedJob, newJob } from '../../src/jobs/job-row.ts'
import { insertJob, insertJobRuns } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { groupFailures } from '../../src/jobs/lists/failure-store.ts'
import { jobIdPages } from '../../src/jobs/lists/id-pages.ts'
import type { JobFilter } from '../../src/jobs/lists/job-filter.ts'
import { countJobs, findJobPage } from '../../src/jobs/lists/list-store.ts'
import { eraseJobRows } from '../../src/jobs/retention/erase-store.ts'
import { fittingItems } from '../../src/operations/frozen-ids.ts'
import { forEachEngine } from '../support/engines.ts'
import { explaining } from '../support/explaining.ts'

const JOBS = 12_000
const START_MS = 1_700_000_000_000
const idOf = (n: number) => `${firstIdAt('job', START_MS + n)}${'0'.repeat(16)}`
const TYPE = BUILT_IN_JOB_TYPES.get('agent') as JobType

/** Every hundredth job failed, every thousandth has what is rare. Each owner has a hundred jobs in a row. */
function jobOf(n: number): JobRow {
  const given = {
    id: idOf(n),
    input: '{"in":1}',
    project_id: projectOf(n),
    created_by: `user-${Math.floor(n / 100) % 97}`,
    thread_id: `thread-${n}`,
    run_id: `run-${n}`,
  }
  const failed = n % 100 === 0
  return {
    ...newJob(TYPE, given, START_MS + n),
    type: n % 1_000 === 1 ? 'rare' : 'agent',
    status: failed ? 'failed' : 'completed',
    error_code: failed ? 'run_lost' : null,
    settled_by: n % 1_000 === 2 ? 'sweep' : n % 4_000 === 5 ? 'callback' : null,
    output_check: n % 1_000 === 6 ? 'failed' : null,
    trace_id: n % 1_000 === 3 ? `trace-${n}` : null,
    retry_of: n % 1_000 === 4 ? idOf(n - 1) : null,
    retried_as: n % 1_000 === 3 ? idOf(n + 1) : null,
    output: failed ? null : '{"out":1}',
    next_check_at: null,
    finished_at: START_MS + n + 1,
  }
}

/** A large project has most of the newer jobs, and a few older ones of `user-50`. */
function projectOf(n: number): string | null {
  if (n % 1_000 === 0) return 'prj_rare'
  return n > 5_100 || (n > 5_000 && n < 5_004) ? 'prj_large' : null
}

async function seed(db: Database): Promise<void> {
  await insertJob(db, jobOf(0))
  await insertLike(
    db,
    Array.from({ length: JOBS - 1 }, (_, n) => jobOf(n + 1)),
  )
  const runs = Array.from({ length: JOBS }, (_, n) => ({
    run_id: `run-${n}`,
    job_id: idOf(n),
    run_seq: 1,
    is_extra: 0,
    created_at: 0,
  }))
  await db.transaction((tx) => insertJobRuns(tx, runs))
  await addUnknownJobs(db)
  while ((await buildNextIndex(db)) !== 'done');
  if (db.engine === 'postgres') await db.query(sql`analyze`)
  else await db.transaction((tx) => tx.exec('analyze'))
}

/** Inserts ended jobs in one statement. They have the columns of the one job that is there already. */
async function insertLike(db: Database, jobs: readonly JobRow[]): Promise<void> {
  const columns = (await readTables(db)).find(({ name }) => name === 'jobs')?.columns ?? {}
  const list = join(
    Object.keys(columns).map((name) => new Sql([name], [])),
    ', ',
  )
  const [model] = await db.query<Row>(sql`select ${list} from jobs`)
  const rows = jobs.map((job) => ({ ...model, ...job }))
  await db.query(
    sql`insert into jobs (${list}) select ${list} from ${rowsOf(db.engine, rows, columns)} as r where true`,
  )
}

/** Adds so many index rows that reading all of them is not the cheapest plan. They have no jobs, so no list shows them. */
async function addUnknownJobs(db: Database): Promise<void> {
  await db.query(sql`
    insert into uncommon_jobs (id, owner, state, failure, missed_by, unfit, since)
    with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < 20000)
    select 'unknown-' || n, 'user-' || n, 'unknown', 'unknown', 'unknown', 'unknown', n from numbers`)
}

const HOUR_MS = 3_600_000
const END_MS = START_MS + 30 * 24 * HOUR_MS
const oldIdOf = (n: number) => `job_old${String(n).padStart(6, '0')}`

/** Jobs that ended long before `END_MS`. Their events were trimmed, or not: no query may need them. */
async function addOldJobs(db: Database, count: number, status: 'completed' | 'failed' = 'completed'): Promise<void> {
  const code = status === 'failed' ? 'run_lost' : null
  await db.query(sql`
    insert into jobs (id, type, status, error_code, thread_id, run_seq, check_attempts, deadline_at, created_at,
      updated_at, finished_at)
    with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < ${count})
    select 'job_old' || substr(cast(1000000 + n as text), 2), 'agent', ${status}, cast(${code} as text),
      'thread-' || n, 1, 0, 1, 1, 1, cast(${START_MS} as bigint) from numbers`)
  if (db.engine === 'postgres') await db.query(sql`analyze`)
  else await db.transaction((tx) => tx.exec('analyze'))
}

/** The last of several jobs failed, and the one before was noticed by the sweep. */
async function endLately(db: Database, { ids, atMs }: { ids: readonly string[]; atMs: number }): Promise<void> {
  await db.transaction(async (tx) => {
    const ends = ids.map((id, n) => {
      const failed = ids.length > 1 && n === ids.length - 1
      return { id, status: failed ? ('failed' as const) : ('completed' as const), failed, swept: n === ids.length - 2 }
    })
    for (const { id, status, failed, swept } of ends) {
      await tx.query(sql`
        update jobs set status = ${status}, error_code = ${failed ? 'run_lost' : null},
          settled_by = ${swept ? 'sweep' : 'callback'}, finished_at = ${atMs} where id = ${id}`)
    }
    await appendEvents(
      tx,
      ends.map(({ id, status }) => {
        const type = `job.${status}` as const
        return { subject: null, job_id: id, type, cause: `${id}:end`, data: '{}', created_at: atMs }
      }),
    )
  })
}

/** A page with the numbers of its jobs and of the last row read, instead of ids. */
function summed({ rows, hasMore, lastRead }: BoundedPage<ListedJob>) {
  const numberOf = (id: string) => Array.from({ length: JOBS }, (_, n) => n).find((n) => idOf(n) === id)
  return { found: rows.map(({ id }) => numberOf(id)), lastRead: lastRead ? numberOf(lastRead[0]) : null, hasMore }
}

const PRIMARY_KEY = { sqlite: 'sqlite_autoindex_jobs_1', postgres: 'jobs_pkey' }

const FILTERS: { filter: JobFilter; index: string | typeof PRIMARY_KEY; found: number }[] = [
  { filter: {}, index: PRIMARY_KEY, found: 20 },
  { filter: { createdAfterMs: START_MS + 10, createdBeforeMs: START_MS + 15 }, index: PRIMARY_KEY, found: 4 },
  { filter: { createdBy: 'user-3' }, index: 'jobs_by_owner', found: 20 },
  { filter: { status: 'failed' }, index: 'uncommon_jobs_by_status', found: 20 },
  { filter: { createdBy: 'user-3', status: 'failed' }, index: 'uncommon_jobs_by_owner', found: 2 },
  { filter: { createdBy: 'user-3', errorCode: 'run_lost' }, index: 'uncommon_jobs_by_owner', found: 2 },
  { filter: { type: 'rare' }, index: 'jobs_by_type', found: 12 },
  { filter: { projectId: 'prj_rare' }, index: 'jobs_by_project', found: 12 },
  { filter: { createdBy: 'user-50', projectId: 'prj_large' }, index: 'jobs_by_owner_and_project', found: 3 },
  { filter: { errorCode: 'run_lost' }, index: 'uncommon_jobs_by_error', found: 20 },
  { filter: { settledBy: 'sweep' }, index: 'uncommon_jobs_by_missed_callback', found: 12 },
  { filter: { outputCheck: 'failed' }, index: 'uncommon_jobs_by_output_check', found: 12 },
  { filter: { threadId: 'thread-77' }, index: 'jobs_by_conversation', found: 1 },
  { filter: { traceId: 'trace-1003' }, index: 'jobs_by_trace', found: 1 },
  { filter: { retryOf: idOf(1_003) }, index: 'jobs_by_retry', found: 1 },
  { filter: { retried: true }, index: 'jobs_retried', found: 12 },
  { filter: { retried: false, status: 'failed' }, index: 'uncommon_jobs_by_status', found: 20 },
  {
    filter: { runId: 'run-4711' },
    index: { sqlite: 'sqlite_autoindex_job_runs_1', postgres: 'job_runs_pkey' },
    found: 1,
  },
]

describe('a list of jobs', () => {
  forEachEngine((engine) => {
    let db: Database
    before(async () => {
      db = await engine.openDatabase({ waitsLong: true })
      await seed(db)
    })
    const list = (filter: JobFilter, after?: string, on: Queryable = db) =>
      findJobPage(on, { filter, summary: false }, { limit: 20, after: after === undefined ? null : [after] })

    for (const { filter, index, found } of FILTERS) {
      test(`a list of jobs reads an index for ${Object.keys(filter).join(' and ') || 'no filter'}`, async () => {
        const plans: string[] = []
        const { rows } = await list(filter, undefined, explaining(db, plans))
        assert.equal(rows.length, found)
        const name = typeof index === 'string' ? index : index[engine.name]
        assert.match(plans[0] ?? '', new RegExp(`\\b${name}\\b`))
        assert.doesNotMatch(plans[0] ?? '', /Seq Scan on jobs|SCAN jobs(?! USING)|TEMP B-TREE FOR ORDER BY/)
      })
    }

    test('a filter that few jobs match ends after 5,000 rows, and the next page goes on after the last row read', async () => {
      // No index holds the jobs that a callback settled, so the newest jobs are read.
      const filter = { settledBy: 'callback' }
      const first = await list(filter)
      assert.deepEqual(summed(first), { found: [8_005], lastRead: 7_000, hasMore: true })
      const second = await list(filter, first.lastRead?.[0])
      assert.deepEqual(summed(second), { found: [4_005], lastRead: 2_000, hasMore: true })
      const third = await list(filter, second.lastRead?.[0])
      assert.deepEqual(summed(third), { found: [5], lastRead: null, hasMore: false })
      const none = await list({ settledBy: 'callback', status: 'completed', type: 'rare' })
      assert.deepEqual(summed(none), { found: [], lastRead: null, hasMore: false })
      const nothingYet = await list({ settledBy: 'callback', createdBeforeMs: START_MS + 8_000, status: 'failed' })
      assert.deepEqual(summed(nothingYet), { found: [], lastRead: null, hasMore: false })
    })

    test('the first page has the few jobs of a user in a large project, also when they are old', async () => {
      const page = await list({ createdBy: 'user-50', projectId: 'prj_large' })
      assert.deepEqual(summed(page), { found: [5_003, 5_002, 5_001], lastRead: null, hasMore: false })
    })

    test('filters can be combined, and a page that is full goes on after its last job', async () => {
      const filter = { status: 'completed', createdBy: 'user-3', type: 'agent' }
      const first = await list(filter)
      assert.equal(first.rows.length, 20)
      assert.deepEqual([first.hasMore, first.lastRead], [true, undefined])
      const second = await list(filter, first.rows.at(-1)?.id)
      assert.equal(new Set([...first.rows, ...second.rows].map(({ id }) => id)).size, 40)
      for (const { status, created_by } of second.rows) assert.deepEqual([status, created_by], ['completed', 'user-3'])
    })

    test('a summary does not read input and output', async () => {
      const read: string[] = []
      const watched: Queryable = {
        engine: db.engine,
        query: (statement) => {
          read.push(statement.text)
          return db.query(statement)
        },
      }
      const page = await findJobPage(watched, { filter: {}, summary: true }, { limit: 2, after: null })
      assert.deepEqual(
        page.rows.map(({ input, output }) => [input, output]),
        [
          [null, null],
          [null, null],
        ],
      )
      assert.doesNotMatch(read.join('\n'), /\b(?:input|output|resume_input)\b/)
    })

    test('counts are exact up to a bound, and a lower bound above', async () => {
      const own = await countJobs(db, { createdBy: 'user-3' })
      assert.deepEqual(own.atLeast, [])
      assert.deepEqual([own.counts.failed, own.counts.completed, own.counts.processing], [2, 198, 0])
      const all = await countJobs(db, {})
      assert.deepEqual(all.atLeast, ['completed'])
      assert.equal(all.counts.failed, 120)
      assert.equal(all.counts.completed, 5_000)
      const plans: string[] = []
      await countJobs(explaining(db, plans), { createdBy: 'user-3' })
      assert.match(plans.join('\n'), /uncommon_jobs_by_owner\b/)
      assert.match(plans.join('\n'), /jobs_by_owner\b/)
      for (const plan of plans) assert.doesNotMatch(plan, /Seq Scan on jobs|SCAN jobs(?! USING)/)
    })

    test('counts are of the jobs that the list with the same filters has', async () => {
      const filters: JobFilter[] = [
        { type: 'rare' },
        { settledBy: 'sweep' },
        { errorCode: 'run_lost' },
        { projectId: 'prj_rare' },
        { createdBy: 'user-3', type: 'agent' },
        { createdAfterMs: START_MS + 11_000 },
        { finishedAfterMs: START_MS + 11_900, finishedBeforeMs: START_MS + 11_950 },
      ]
      for (const filter of filters) {
        const { counts, atLeast } = await countJobs(db, filter)
        assert.deepEqual(atLeast, [], JSON.stringify(filter))
        for (const status of ['completed', 'failed', 'processing'] as const) {
          const page = await findJobPage(
            db,
            { filter: { ...filter, status }, summary: true },
            { limit: 2_000, after: null },
          )
          assert.equal(counts[status], page.rows.length, `${status} of ${JSON.stringify(filter)}`)
        }
      }
      const lowerBound = await countJobs(db, { settledBy: 'callback', type: 'agent' })
      assert.deepEqual([lowerBound.counts.completed, lowerBound.atLeast], [3, []])
    })

    test('a count of the jobs that ended after a time is exact among more jobs than counting reads', async () => {
      const own = await engine.openDatabase({ waitsLong: true })
      const lately = { finishedAfterMs: END_MS - HOUR_MS }
      await addOldJobs(own, 21_000)
      const count = async (filter: JobFilter = {}) => {
        const { counts, atLeast } = await countJobs(own, { ...lately, ...filter })
        return [counts.completed, counts.failed, atLeast]
      }
      assert.deepEqual(await count(), [0, 0, []], 'in a quiet hour')
      // Old jobs, so that they are not among the newest.
      const ids = [1, 2, 3, 20_000].map(oldIdOf)
      await endLately(own, { ids, atMs: END_MS })
      assert.deepEqual(await count(), [3, 1, []])
      assert.deepEqual(await count({ settledBy: 'sweep' }), [1, 0, []])
      assert.deepEqual(await count({ type: 'other' }), [0, 0, []])
      const plans: string[] = []
      for (const [status, found] of [
        ['completed', [3, 2, 1]],
        ['failed', [20_000]],
      ] as const) {
        const filter = { ...lately, status }
        const page = await findJobPage(explaining(own, plans), { filter, summary: true }, { limit: 20, after: null })
        assert.deepEqual([page.rows.map(({ id }) => id), page.hasMore], [found.map(oldIdOf), false])
      }
      for (const status of ['completed', 'failed'] as const) {
        const pages = await Array.fromAsync(jobIdPages(explaining(own, plans), { ...lately, status }))
        assert.deepEqual(
          pages.map((page) => page.map(({ id }) => id)),
          [(status === 'completed' ? [3, 2, 1] : [20_000]).map(oldIdOf)],
          'the jobs of a bulk operation, in one page',
        )
      }
      assert.match(plans.join('\n'), /\bjobs_erased\b/)
      assert.doesNotMatch(plans.join('\n'), /Seq Scan on jobs|SCAN jobs\b(?! USING)/)
      await own.transaction((tx) => eraseJobRows(tx, ids.slice(0, 1), END_MS + 1))
      await own.transaction((tx) => deleteEventsOf(tx, ids.slice(0, 1), 10))
      assert.deepEqual(await count(), [3, 1, []], 'the erasure of a user deletes events, and the jobs stay')
    })

    test('a count of the jobs that ended after a time is a lower bound if the log of events begins later', async () => {
      const own = await engine.openDatabase({ waitsLong: true })
      await addOldJobs(own, 21_000)
      await endLately(own, { ids: [oldIdOf(20_500)], atMs: END_MS - HOUR_MS })
      await endLately(own, { ids: [oldIdOf(20_501)], atMs: END_MS })
      const count = async (finishedAfterMs: number) => {
        const { counts, atLeast } = await countJobs(own, { finishedAfterMs })
        return [counts.completed, atLeast]
      }
      assert.deepEqual(await count(END_MS - 2 * HOUR_MS), [2, []])
      await trimEvents(own, { beforeMs: END_MS - 1, limit: 10 })
      assert.deepEqual(await count(END_MS - 2 * HOUR_MS), [2, ['completed']])
      const items = fittingItems({ action: 'retry', filter: { status: 'completed', finishedAfterMs: START_MS - 1 } })
      // All 21,000 jobs fit: they are not all read.
      await assert.rejects(items.freeze(own), /body\/filter fits more than 10000 jobs/)
    })

    test('a failure of an old job is counted, however many newer jobs failed before', async () => {
      const own = await engine.openDatabase({ waitsLong: true })
      await addOldJobs(own, 6_000, 'failed')
      await own.query(sql`update jobs set status = 'completed', error_code = null where id = ${oldIdOf(1)}`)
      await own.query(sql`
        update jobs set status = 'failed', error_code = 'run_lost', finished_at = ${END_MS} where id = ${oldIdOf(1)}`)
      const plans: string[] = []
      const span = { sinceMs: END_MS - HOUR_MS, nowMs: END_MS + 1 }
      const { groups, isCut } = await groupFailures(explaining(own, plans), span)
      assert.deepEqual([groups.map(({ count, before }) => [count, before]), isCut], [[[1, 0]], false])
      assert.match(plans[0] ?? '', /uncommon_jobs_by_age/)
    })

    test('the number of completed jobs does not fall when newer jobs begin', async () => {
      await db
        .transaction(async (tx) => {
          const newer = Array.from({ length: 50 }, (_, n) => ({ ...jobOf(JOBS + n), status: 'processing' as const }))
          for (const job of newer) await insertJob(tx, job)
          const { counts, atLeast } = await countJobs(tx, {})
          assert.deepEqual([counts.processing, counts.completed, atLeast], [50, 5_000, ['completed']])
          throw new Error('undone')
        })
        .catch((error: Error) => assert.equal(error.message, 'undone', error.stack))
    })
  })
})
