import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { type JobWorld, sharedJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

interface Page {
  data: { id: string }[]
  has_more: boolean
  next_cursor: string | null
}

const MEGABYTE = 1024 * 1024
/** In the order they came; the third is larger than a page. */
const SIZES = [0.75, 0.75, 2.25, 0.75, 0.75, 0, 0].map((megabytes) => megabytes * MEGABYTE)
/** Newest first, as a page of 2 MB takes them. */
const PAGES = [4, 1, 2]

async function walk(world: JobWorld, path: string): Promise<Page[]> {
  const pages: Page[] = []
  for (let cursor: string | null = ''; cursor !== null; ) {
    const target: string = `${path}limit=100${cursor && `&cursor=${cursor}`}`
    const { status, body, text } = await world.service.request<Page>('GET', target, { token: world.admin })
    assert.equal(status, 200, text.slice(0, 500))
    pages.push(body)
    assert.equal(body.has_more, body.next_cursor !== null)
    cursor = body.next_cursor
  }
  return pages
}

describe('a list of large items', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under, { runtime: false })

    test('a list of large items ends a page early, and its pages together have every item once, newest first', async () => {
      const world = await shared()
      const jobIds: string[] = []
      for (const bytes of SIZES) {
        const end = { thread_id: randomUUID(), run_id: randomUUID(), status: 'success' }
        const { body } = await world.callback('report', { ...end, values: { report: 'x'.repeat(bytes) } })
        jobIds.push(body.job_id)
        await world.clock.advance(1)
      }
      const jobs = await walk(world, '/jobs?')
      assert.deepEqual(
        jobs.flatMap(({ data }) => data.map(({ id }) => id)),
        jobIds.toReversed(),
      )
      const sizesOf = (pages: Page[]) => pages.map(({ data }) => data.length)
      assert.deepEqual(sizesOf(jobs), PAGES)

      const callbacks = await walk(world, '/v1/callbacks?fields=body&')
      const ids = callbacks.flatMap(({ data }) => data.map(({ id }) => id))
      assert.deepEqual(ids, [...new Set(ids)].sort().reverse())
      assert.deepEqual(sizesOf(callbacks), PAGES)

      const page = await world.service.request<Page>('GET', '/jobs?limit=4', { token: world.admin })
      assert.deepEqual([page.body.data.length, page.body.has_more], [4, true], 'full in rows and in bytes at once')
    })

    test('a page of summaries ends at 256 KB of questions and configurations, and its pages together have every job', async () => {
      const world = await shared()
      const thread_id = randomUUID()
      const ids: string[] = []
      for (let job = 0; job < 4; job++) {
        const end = { thread_id, run_id: randomUUID(), status: 'success', values: { report: 1 } }
        ids.push((await world.callback('report', end)).body.job_id)
        await world.clock.advance(1)
      }
      const question = JSON.stringify([{ id: 'q', value: 'x'.repeat(100_000) }])
      await world.db.query(sql`update jobs set interrupts = ${question} where thread_id = ${thread_id}`)
      for (const path of [`/jobs?thread_id=${thread_id}`, `/v1/conversations/${thread_id}?`]) {
        const pages = await walk(world, `${path}&fields=summary&`)
        assert.deepEqual(
          pages.map(({ data }) => data.length),
          [2, 2],
        )
        assert.deepEqual(
          pages.flatMap(({ data }) => data.map(({ id }) => id)),
          ids.toReversed(),
        )
      }
    })
  })
})
