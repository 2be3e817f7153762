import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '../../src/db/database.ts'
import { JobReads } from '../../src/jobs/api/job-reads.ts'

/** Answers each statement a turn later, and notes how many ids were asked for by how many statements at once. */
function watchedDatabase(answer: (ids: string[]) => { id: string }[] = (ids) => ids.map((id) => ({ id }))) {
  const seen = { batches: [] as number[], mostAtOnce: 0 }
  let underWay = 0
  const query = async ({ values }: { values: readonly unknown[] }) => {
    const ids = JSON.parse(String(values.at(-1))) as string[]
    seen.batches.push(ids.length)
    underWay += 1
    seen.mostAtOnce = Math.max(seen.mostAtOnce, underWay)
    await new Promise(setImmediate)
    underWay -= 1
    return answer(ids)
  }
  return { db: { engine: 'sqlite', query } as unknown as Database, seen }
}

const ids = Array.from({ length: 45 }, (_, n) => `job_${n}`)

test('the jobs of one turn come in bounded statements, one after the other, and each reader gets its own', async () => {
  const { db, seen } = watchedDatabase()
  const reads = new JobReads(db)
  const found = await Promise.all([...ids, ...ids].map((id) => reads.find(id)))
  assert.deepEqual(
    found.map((job) => job?.id),
    [...ids, ...ids],
  )
  assert.deepEqual(seen, { batches: [20, 20, 5], mostAtOnce: 1 })
})

test('a job that is not there, or whose statement fails, leaves the other readers alone', async () => {
  const { db } = watchedDatabase((asked) => {
    if (asked.includes('job_0')) throw new Error('the database is away')
    return asked.filter((id) => id !== 'job_44').map((id) => ({ id }))
  })
  const reads = new JobReads(db)
  const found = await Promise.allSettled(ids.map((id) => reads.find(id)))
  assert.deepEqual(
    found.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value?.id : 'failed')),
    ids.map((id, n) => (n < 20 ? 'failed' : n === 44 ? undefined : id)),
  )
})
