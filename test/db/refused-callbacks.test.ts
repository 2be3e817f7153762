import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { firstIdAt } from '../../src/core/ids.ts'
import { sql } from '../../src/db/sql.ts'
import {
  addRefused,
  findRefusedPage,
  type RefusedCallbackRow,
  trimRefused,
} from '../../src/jobs/callbacks/refused-callback-store.ts'
import { newJob } from '../../src/jobs/job-row.ts'
import { insertJob } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { forEachEngine } from '../support/engines.ts'

const MINUTE_MS = 60_000
const JOB = 'job_00000000000000000000000001'

function rowOf(minute: number, name: string, job_id: string | null = null): RefusedCallbackRow {
  const at = minute * MINUTE_MS
  const id = `${firstIdAt('rcb', at)}${name}`
  return {
    id,
    reason: 'wrong_token',
    path: '/webhooks/agent',
    address: name,
    job_id,
    count: 2,
    first_at: at,
    last_at: at,
  }
}

describe('the stored refusals of callbacks', () => {
  forEachEngine((engine) => {
    test('refusals of one kind share a row, and only jobs that exist are named', async () => {
      const db = await engine.openDatabase()
      const given = { id: JOB, input: '{}', project_id: null, created_by: 'ada', thread_id: 't', run_id: null }
      await insertJob(db, newJob(BUILT_IN_JOB_TYPES.get('agent') as JobType, given, 0))
      await addRefused(db, [rowOf(1, 'a', JOB), rowOf(1, 'b', 'job_of_another_service')])
      await addRefused(db, [{ ...rowOf(1, 'a'), last_at: 70_000 }])
      const page = await findRefusedPage(db, { limit: 10, after: null })
      assert.deepEqual(
        page.map(({ address, job_id, count, first_at, last_at }) => [address, job_id, count, first_at, last_at]),
        [
          ['b', null, 2, 60_000, 60_000],
          ['a', JOB, 4, 60_000, 70_000],
        ],
      )
    })

    test('strangers cannot fill the table, nor push out the refusals of known jobs', async () => {
      const db = await engine.openDatabase()
      const given = { id: JOB, input: '{}', project_id: null, created_by: 'ada', thread_id: 't', run_id: null }
      await insertJob(db, newJob(BUILT_IN_JOB_TYPES.get('agent') as JobType, given, 0))
      await addRefused(db, [rowOf(1, 'runtime', JOB)])
      for (let minute = 2; minute < 14; minute++) {
        await addRefused(
          db,
          Array.from({ length: 100 }, (_, n) => rowOf(minute, `stranger-${n}`)),
        )
      }
      const [stored] = await db.query<{ rows: number; oldest: string }>(
        sql`select count(*) as rows, min(address) as oldest from refused_callbacks`,
      )
      assert.deepEqual(stored, { rows: 501, oldest: 'runtime' })
      const [newest] = await findRefusedPage(db, { limit: 1, after: null })
      assert.equal(newest?.first_at, 13 * MINUTE_MS)
      await trimRefused(db, { beforeMs: 13 * MINUTE_MS })
      assert.equal((await db.query(sql`select id from refused_callbacks`)).length, 100)
    })
  })
})
