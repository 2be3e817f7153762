import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { firstIdAt } from '../../src/core/ids.ts'
import { rowsOf } from '../../src/db/rows.ts'
import { sql } from '../../src/db/sql.ts'
import type { Job } from '../../src/jobs/api/job-schema.ts'
import { groupFailures } from '../../src/jobs/lists/failure-store.ts'
import { assertError } from '../support/assert-error.ts'
import { type JobWorld, RUN_MS, sharedJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

interface Page {
  data: Job[]
  has_more: boolean
  next_cursor: string | null
}

/** Inserts failed jobs that began and ended at this time. */
async function addFailed(world: JobWorld, { count, atMs, owner = 'crowd' }: AddedJobs): Promise<void> {
  const prefix = firstIdAt('job', atMs)
  const jobs = Array.from({ length: count }, (_, n) => ({ id: `${prefix}${owner}${String(n).padStart(6, '0')}` }))
  await world.db.query(sql`
    insert into jobs (id, type, status, error_code, created_by, thread_id, run_seq, check_attempts, deadline_at,
      created_at, finished_at, updated_at)
    select r.id, 'throwing', 'failed', 'run_lost', ${owner}, r.id, 1, 0, 0, ${sql`cast(${atMs} as bigint)`},
      ${sql`cast(${atMs} as bigint)`}, ${sql`cast(${atMs} as bigint)`}
    from ${rowsOf(world.db.engine, jobs, { id: 'text' })} as r where true`)
}

interface AddedJobs {
  count: number
  atMs: number
  owner?: string
}

const HOUR_MS = 3_600_000

describe('the filters of a job list', () => {
  forEachService((under) => {
    const started = sharedJobWorld(under)

    test('each filter finds its jobs and no others', async () => {
      const world = await started()
      const sub = 'filtering'
      const first = await world.start('report', { sub })
      await world.pass(RUN_MS)
      await world.pass(1)
      const second = await world.start('throwing', { sub })
      await world.pass(RUN_MS)
      await world.start('pausing', { sub: 'another' })
      const done = await world.get(first.id)
      const failed = await world.get(second.id)
      assert.deepEqual([done.status, failed.status], ['completed', 'failed'])
      await world.db.query(sql`
        update jobs set trace_id = 'trace-of-it', retry_of = ${first.id}, project_id = 'prj_x' where id = ${second.id}`)
      const found: [query: string, ids: string[]][] = [
        ['', [second.id, first.id]],
        ['?status=completed', [first.id]],
        ['?status=failed', [second.id]],
        ['?type=throwing', [second.id]],
        ['?project_id=prj_x', [second.id]],
        ['?error_code=run_failed', [second.id]],
        ['?error_code=run_lost', []],
        [`?settled_by=${done.settled_by}&status=completed`, [first.id]],
        [`?run_id=${done.run_id}`, [first.id]],
        [`?thread_id=${failed.thread_id}`, [second.id]],
        [`?run_id=${done.run_id?.toUpperCase()}`, [first.id]],
        [`?thread_id=${failed.thread_id.toUpperCase()}`, [second.id]],
        ['?trace_id=trace-of-it', [second.id]],
        [`?retry_of=${first.id}`, [second.id]],
        [`?created_after=${first.created_at}`, [second.id]],
        [`?created_before=${second.created_at}`, [first.id]],
        [`?created_after=${first.created_at}&created_before=${second.created_at}`, []],
        ['?status=failed&type=throwing&trace_id=trace-of-it', [second.id]],
        ['?status=completed&type=throwing', []],
      ]
      for (const [query, ids] of found) {
        const { body, status } = await world.request<Page>('GET', `/jobs${query}`, sub)
        assert.equal(status, 200, query)
        assert.deepEqual(
          body.data.map(({ id }) => id),
          ids,
          query,
        )
      }
      const own = await world.request<Page>('GET', `/jobs?run_id=${done.run_id}`, 'another')
      assert.deepEqual(own.body.data, [], 'never the jobs of another owner')
      const [shown] = (await world.request<Page>('GET', '/jobs?status=failed', sub)).body.data
      assert.equal(shown?.retry_of, first.id)
      assert.equal(shown?.continues, null)
    })

    test('an admin filters by owner; for another caller that is 403', async () => {
      const world = await started()
      const job = await world.start('report', { sub: 'owner-of-one' })
      const asAdmin = await world.service.request<Page>('GET', '/jobs?created_by=owner-of-one', { token: world.admin })
      assert.deepEqual(
        asAdmin.body.data.map(({ id }) => id),
        [job.id],
      )
      for (const owner of ['owner-of-one', 'ada']) {
        const refused = await world.request('GET', `/jobs?created_by=${owner}`, 'ada')
        assertError(world.service, refused, { status: 403, code: 'forbidden', message: 'Insufficient scope' })
      }
    })

    test('a summary has neither input nor output', async () => {
      const world = await started()
      const sub = 'summarizing'
      const { id } = await world.start('report', { sub })
      const [whole] = (await world.request<Page>('GET', '/jobs', sub)).body.data
      const [summary] = (await world.request<Page>('GET', '/jobs?fields=summary', sub)).body.data
      const { input, output, ...rest } = whole as Job
      assert.deepEqual(input, { title: 'Done', n: 42 })
      assert.equal(output, null)
      assert.deepEqual(summary, rest)
      assert.equal(summary?.id, id)
    })

    test('an unknown filter or a bad value is refused by its name', async () => {
      const world = await started()
      const refusals: [query: string, message: RegExp][] = [
        ['?owner=me', /^querystring must not have the field "owner"$/],
        ['?error_code=odd', /^querystring\/error_code must be one of run_failed/],
        ['?settled_by=me', /^querystring\/settled_by must be one of callback, read, sweep$/],
        ['?created_after=yesterday', /^querystring\/created_after must be an RFC 3339 date and time/],
        ['?created_before=2026', /^querystring\/created_before must be an RFC 3339 date and time/],
        ['?run_id=run_1', /^querystring\/run_id must be a UUID$/],
        ['?thread_id=9a4bcb3e', /^querystring\/thread_id must be a UUID$/],
        ['?fields=all', /^querystring\/fields must be/],
        ['?status=failed&status=completed', /^querystring\/status must be/],
        [`?trace_id=${'x'.repeat(256)}`, /^querystring\/trace_id must/],
      ]
      for (const [query, message] of refusals) {
        const answer = await world.request('GET', `/jobs${query}`, 'ada')
        assertError(world.service, answer, { status: 400, code: 'invalid_request', message })
      }
    })

    test('counts have the filters of the list, and a caller counts only their own jobs', async () => {
      const world = await started()
      const sub = 'counting-by-filter'
      const none = { processing: 0, generating: 0, awaiting_input: 0, completed: 0, failed: 0, cancelled: 0 }
      const first = await world.start('report', { sub })
      await world.pass(RUN_MS)
      await world.start('throwing', { sub })
      await world.pass(RUN_MS)
      await world.start('pausing', { sub: 'another' })
      await world.request('GET', '/jobs', sub)
      const { finished_at: end } = await world.get(first.id)
      const counted: [query: string, counts: Partial<typeof none>][] = [
        ['', { completed: 1, failed: 1 }],
        ['?type=report', { completed: 1 }],
        ['?error_code=run_failed', { failed: 1 }],
        [`?created_after=${first.created_at}`, { failed: 1 }],
        [`?finished_after=${end}`, { failed: 1 }],
        [`?finished_before=${new Date(Date.parse(end ?? '') + 1).toISOString()}`, { completed: 1 }],
        [`?run_id=${crypto.randomUUID()}`, {}],
      ]
      for (const [query, counts] of counted) {
        const { body } = await world.request('GET', `/v1/jobs/counts${query}`, sub)
        assert.deepEqual(body, { counts: { ...none, ...counts }, at_least: [] }, query)
        const listed = await world.request<Page>('GET', `/jobs${query}`, sub)
        const found = Object.groupBy(listed.body.data, ({ status }) => status)
        for (const [status, count] of Object.entries({ ...none, ...counts })) {
          assert.equal(found[status as Job['status']]?.length ?? 0, count, `${status} of ${query}`)
        }
      }
      const refusals: [query: string, status: number][] = [
        ['?status=failed', 400],
        ['?finished_after=now', 400],
        ['?created_by=another', 403],
      ]
      for (const [query, status] of refusals) {
        assert.equal((await world.request('GET', `/v1/jobs/counts${query}`, sub)).status, status, query)
      }
    })

    test('the callers of the last hour have their requests, those over the limit, and their jobs', async () => {
      const world = await started()
      const sub = 'calling-often'
      await world.leap(2 * 3_600_000)
      await world.start('report', { sub })
      for (let count = 0; count < 4; count++) await world.request('GET', '/v1/users/me', sub)
      const read = async () => {
        const { body } = await world.service.request<{ data: { caller: string }[] }>('GET', '/v1/callers', {
          token: world.admin,
        })
        return body.data.find(({ caller }) => caller === sub)
      }
      assert.deepEqual(await read(), { caller: sub, tier: 'authenticated', requests: 5, refused: 0, jobs: 1 })
      await world.leap(2 * 3_600_000)
      assert.equal(await read(), undefined, 'they sent nothing for an hour')
    })

    test('a caller with fewer jobs than 20 owners has its own number; more than 5,000 jobs are counted as at least', async () => {
      const world = await started()
      const sub = 'with-few-jobs'
      await world.leap(2 * HOUR_MS)
      await world.start('report', { sub })
      const atMs = world.service.clock.now()
      for (let n = 0; n < 25; n++) await addFailed(world, { count: 2, atMs, owner: `owner-${n}-` })
      const read = async () => {
        type Answer = { data: { caller: string; jobs: number }[]; at_least: string[] }
        const { body } = await world.service.request<Answer>('GET', '/v1/callers', { token: world.admin })
        const jobsOf = (wanted: string) => body.data.find(({ caller }) => caller === wanted)?.jobs
        return { jobsOf, atLeast: body.at_least, silent: body.data.filter(({ caller }) => caller.startsWith('owner-')) }
      }
      const few = await read()
      assert.deepEqual([few.jobsOf(sub), few.atLeast, few.silent.length], [1, [], 20])
      await addFailed(world, { count: 5_000, atMs })
      const many = await read()
      assert.deepEqual(many.atLeast, ['jobs'])
      assert.ok((many.jobsOf('crowd') ?? 0) > 4_000)
      await world.leap(2 * HOUR_MS)
      assert.deepEqual((await read()).atLeast, [], 'they are older than an hour')
    })

    test('failures are grouped by type and error, with the number before and the newest message', async () => {
      const world = await started()
      const read = (query = '') =>
        world.service.request<{ since: string; data: Record<string, unknown>[]; at_least: boolean }>(
          'GET',
          `/v1/failures${query}`,
          { token: world.admin },
        )
      // The jobs of other tests are out of the span, and of the one before.
      await world.leap(3 * 3_600_000)
      const fail = async () => {
        const { id } = await world.start('throwing', { sub: 'failing-often' })
        await world.pass(RUN_MS)
        return world.get(id)
      }
      await fail()
      const since = new Date(world.service.clock.now()).toISOString()
      await world.pass(1)
      await fail()
      const last = await fail()
      const span = await read(`?since=${since}`)
      assert.deepEqual(span.body, {
        since,
        data: [
          {
            type: 'throwing',
            error_code: 'run_failed',
            count: 2,
            before: 1,
            last_at: last.finished_at,
            message: last.error?.message,
          },
        ],
        at_least: false,
      })
      assert.deepEqual((await read()).body.data[0]?.count, 3, 'the last hour')
      for (const bad of ['2020-01-01T00:00:00Z', '2999-01-01T00:00:00Z']) {
        const message = 'querystring/since must be a time in the last 30 days'
        assertError(world.service, await read(`?since=${bad}`), { status: 400, code: 'invalid_request', message })
      }
      const refused = await world.request('GET', '/v1/failures', 'ada')
      assertError(world.service, refused, { status: 403, code: 'forbidden', message: 'Insufficient scope' })
    })

    test('failures are counted as at least only if some that were not read ended inside the span', async () => {
      const world = await started()
      await world.leap(4 * HOUR_MS)
      const nowMs = world.service.clock.now()
      const sinceMs = nowMs - HOUR_MS
      const read = async (maxRead: number) => {
        const { groups, isCut } = await groupFailures(world.db, { sinceMs, nowMs, maxRead })
        return [groups[0]?.count, groups[0]?.before, isCut]
      }
      await addFailed(world, { count: 6, atMs: nowMs - 3 * HOUR_MS })
      await addFailed(world, { count: 3, atMs: nowMs - 60_000 })
      assert.deepEqual(await read(5), [3, 0, false], 'the others ended before both spans')
      await addFailed(world, { count: 4, atMs: nowMs - 1.5 * HOUR_MS })
      assert.deepEqual(await read(8), [3, 4, false])
      assert.deepEqual(await read(5), [3, null, false], 'the span before is not read to its beginning')
      assert.deepEqual(await read(2), [2, null, true])
      await addFailed(world, { count: 5_000, atMs: nowMs - 120_000 })
      const { body } = await world.service.request<{ data: Record<string, unknown>[]; at_least: boolean }>(
        'GET',
        `/v1/failures?since=${new Date(sinceMs).toISOString()}`,
        { token: world.admin },
      )
      assert.deepEqual([body.at_least, body.data[0]?.count, body.data[0]?.before], [true, 5_000, null])
    })

    test('counts of jobs are by status, a caller’s own or, for an admin, all', async () => {
      const world = await started()
      const sub = 'counting'
      const count = async (token: string) => {
        const { body } = await world.service.request<{ counts: Record<string, number>; at_least: string[] }>(
          'GET',
          '/v1/jobs/counts',
          { token },
        )
        return body
      }
      const none = { processing: 0, generating: 0, awaiting_input: 0, completed: 0, failed: 0, cancelled: 0 }
      assert.deepEqual(await count(world.token(sub)), { counts: none, at_least: [] })
      const before = await count(world.admin)
      await world.start('report', { sub })
      assert.deepEqual((await count(world.token(sub))).counts, { ...none, processing: 1 })
      await world.pass(RUN_MS)
      assert.deepEqual((await count(world.token(sub))).counts, { ...none, completed: 1 })
      const after = await count(world.admin)
      assert.ok((after.counts.completed ?? 0) > (before.counts.completed ?? 0))
    })
  })
})
