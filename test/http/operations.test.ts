import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Database } from '../../src/db/database.ts'
import { rowsOf } from '../../src/db/rows.ts'
import { sql } from '../../src/db/sql.ts'
import { trimOperations } from '../../src/operations/operation-store.ts'
import { assertError } from '../support/assert-error.ts'
import { GET_RUN, type JobWorld, RUN_MS, type ShownJob, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { forEachService, onOneService } from '../support/service.ts'
import { until } from '../support/until.ts'

interface Operation {
  id: string
  action: string
  state: string
  total: number
  done: number
  failed: number
  failures: { id: string; error: string }[]
  skipped: number
  skips: { id: string; reason: string }[]
  retried?: number
  created_by: string
  finished_at: string | null
  dry_run?: boolean
}

const start = (world: JobWorld, body: object, headers: Record<string, string> = {}) =>
  world.service.request<Operation>('POST', '/v1/operations', { token: world.admin, body, headers })

async function finished(world: JobWorld, id: string): Promise<Operation> {
  const read = async () => {
    const token = world.admin
    return (await world.service.request<Operation>('GET', `/v1/operations/${id}`, { token })).body
  }
  await until(async () => (await read()).finished_at !== null)
  return read()
}

async function run(world: JobWorld, body: object): Promise<Operation> {
  const answer = await start(world, body)
  assert.equal(answer.status, 202, answer.text)
  assert.equal(answer.headers.location, `/v1/operations/${answer.body.id}`)
  return finished(world, answer.body.id)
}

async function ended(world: JobWorld, count: number, sub: string, type = 'report'): Promise<ShownJob[]> {
  const jobs = []
  for (let n = 0; n < count; n++) jobs.push(await world.start(type, { sub }))
  await world.pass(RUN_MS)
  for (const { id } of jobs) await world.get(id)
  return jobs
}

const list = async (world: JobWorld, query: string) =>
  (await world.service.request<{ data: ShownJob[] }>('GET', `/jobs?${query}`, { token: world.admin })).body.data

function withQuery(db: Database, query: Database['query']): Database {
  return {
    engine: db.engine,
    now: db.now,
    query,
    transaction: (work, options) => db.transaction(work, options),
    listen: (listener) => db.listen(listener),
    ping: () => db.ping(),
    close: () => db.close(),
  }
}

describe('POST /v1/operations', () => {
  forEachService((under) => {
    const started = sharedJobWorld(under)

    if (under.engine.name === 'postgres') {
      test('a bulk cancel locks its jobs in the order of their ids, so that it cannot deadlock with callbacks', async () => {
        const world = await startJobWorld(under, { db: await under.engine.openDatabase({ waitsLong: true }) })
        world.runtime.setFaults({ zombie: true, drop_callbacks: 1 })
        const [first, second] = [await world.start('report'), await world.start('report')]
        const answer = await world.db.transaction(async (tx) => {
          await tx.query(sql`select id from jobs where id = ${first.id} for update`)
          const started = await start(world, { action: 'cancel', ids: [second.id, first.id] })
          assert.equal(started.status, 202, started.text)
          const waiting = sql`
            select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
          await until(async () => (await world.db.query(waiting)).length > 0)
          // The bulk cancel waits for the first job and holds no other one.
          await tx.query(sql`select id from jobs where id = ${second.id} for update nowait`)
          return started
        })
        const done = await finished(world, answer.body.id)
        assert.deepEqual([done.state, done.done, done.failed], ['done', 2, 0])
      })
    }

    test('retry repeats each job that fits the filter once, for its owner, and leaves the others alone', async () => {
      const world = await started()
      const jobs = await ended(world, 3, 'bulk')
      await ended(world, 1, 'other')
      const paused = await world.start('pausing', { sub: 'bulk' })
      await world.pass(RUN_MS)
      await world.get(paused.id)
      const filter = { created_by: 'bulk' }
      const counted = await start(world, { action: 'retry', filter, dry_run: true })
      assert.deepEqual([counted.status, counted.body], [200, { action: 'retry', total: 3, retried: 0, dry_run: true }])
      assert.equal((await list(world, 'created_by=bulk')).length, 4, 'a dry run starts nothing')
      const done = await run(world, { action: 'retry', filter })
      assert.deepEqual(
        [done.action, done.state, done.total, done.done, done.failed, done.failures, done.created_by],
        ['retry', 'done', 3, 3, 0, [], 'root'],
      )
      for (const { id } of jobs) {
        const retries = await list(world, `retry_of=${id}`)
        assert.deepEqual(
          retries.map(({ created_by, input }) => [created_by, input]),
          [['bulk', { title: 'Done', n: 42 }]],
        )
      }
      await world.sweepUntil(async () => (await list(world, 'created_by=bulk&status=completed')).length === 6)
      const audit = await world.service.request<{ data: { action: string; after: unknown }[] }>(
        'GET',
        `/v1/audit?object=${done.id}`,
        { token: world.admin },
      )
      assert.deepEqual(
        audit.body.data.map(({ action, after }) => [action, after]),
        [['operation.started', { action: 'retry', total: 3 }]],
      )
      // In the audit trail, a bulk action is one line or each of its changes.
      interface Entry {
        action: string
        object: { id: string }
        operation_id: string | null
      }
      const read = async (query: string) => {
        const path = `/v1/audit?limit=100&${query}`
        return (await world.service.request<{ data: Entry[] }>('GET', path, { token: world.admin })).body.data
      }
      const items = await read(`operation_id=${done.id}`)
      assert.deepEqual(
        items.map(({ action, object }) => [action, object.id]).sort(),
        jobs.map(({ id }) => ['job.retried', id]).sort(),
      )
      assert.ok(items.every(({ operation_id }) => operation_id === done.id))
      const lines = await read('items=none')
      assert.ok(lines.some(({ object }) => object.id === done.id))
      assert.ok(lines.every(({ operation_id }) => operation_id === null))
      assert.ok((await read('')).some(({ operation_id }) => operation_id === done.id))
    })

    test('the same bulk retry again finds no job, and counts those that were retried; `again` repeats them', async () => {
      const world = await started()
      const jobs = await ended(world, 2, 'once')
      const ids = jobs.map(({ id }) => id)
      const filter = { created_by: 'once', created_before: new Date(world.clock.now() + 1).toISOString() }
      await world.clock.advance(1_000)
      const counts = async (body: object) => {
        const { total, retried } = (await start(world, { action: 'retry', ...body, dry_run: true })).body
        return [total, retried]
      }
      assert.deepEqual(await counts({ filter }), [2, 0])
      const first = await run(world, { action: 'retry', filter })
      assert.deepEqual([first.total, first.done, first.skipped], [2, 2, 0])
      assert.deepEqual(await counts({ filter }), [0, 2])
      assert.deepEqual(await counts({ filter: { ...filter, retried: false } }), [0, 2])
      assert.deepEqual(await counts({ ids }), [0, 2])
      assert.deepEqual(await counts({ filter, again: true }), [2, undefined])
      assert.deepEqual(await counts({ filter: { ...filter, retried: true } }), [2, undefined])
      assert.equal((await run(world, { action: 'retry', filter })).total, 0)
      const named = await run(world, { action: 'retry', ids })
      assert.deepEqual([named.state, named.total, named.done, named.failed, named.skipped], ['done', 2, 0, 0, 2])
      const retries = await Promise.all(ids.map(async (id) => (await world.stored(id)).retried_as))
      assert.deepEqual(
        named.skips,
        ids.map((id, at) => ({ id, reason: `It was retried already, as ${retries[at]}` })),
      )
      const again = await run(world, { action: 'retry', ids, again: true })
      assert.deepEqual([again.done, again.skipped], [2, 0])
      for (const id of ids) assert.equal((await list(world, `retry_of=${id}`)).length, 2)
      await world.quiet()
    })

    test('a bulk retry skips a job that was retried after its ids were frozen, also with `again`', async () => {
      const db = await under.engine.openDatabase()
      // While it is true, no node takes an operation.
      let isHeld = true
      const query: Database['query'] = async (statement) =>
        isHeld && statement.text.includes('update operations set lease_token') ? [] : db.query(statement)
      const world = await startJobWorld(under, { db: withQuery(db, query) })
      const jobs = await ended(world, 4, 'raced')
      const ids = jobs.map(({ id }) => id)
      const retry = async (id: string) =>
        (await world.request('POST', `/jobs/${id}/retry`, 'raced', { body: { again: true } })).body.id
      const known = await retry(ids[0] ?? '')
      await retry(ids[1] ?? '')
      const frozen = await start(world, { action: 'retry', ids, again: true })
      const newest = [await retry(ids[1] ?? ''), await retry(ids[2] ?? '')]
      isHeld = false
      await world.clock.advance(1_000)
      const all = await finished(world, frozen.body.id)
      assert.deepEqual([all.total, all.done, all.failed, all.skipped], [4, 2, 0, 2])
      assert.deepEqual(all.skips, [
        { id: ids[1], reason: `It was retried already, as ${newest[0]}` },
        { id: ids[2], reason: `It was retried already, as ${newest[1]}` },
      ])
      const counts = await Promise.all(ids.map(async (id) => (await list(world, `retry_of=${id}`)).length))
      assert.deepEqual(counts, [2, 2, 1, 1])
      assert.notEqual((await world.stored(ids[0] ?? '')).retried_as, known)
      await world.quiet()
    })

    test('a job that is retried between the freeze and the creation of a bulk retry is skipped, also with `again`', async () => {
      const db = await under.engine.openDatabase()
      let afterFreeze: (() => Promise<unknown>) | undefined
      const query: Database['query'] = async (statement) => {
        const rows = await db.query(statement)
        if (!statement.text.includes('as fits from') || !afterFreeze || rows.length === 0) return rows as never
        const act = afterFreeze
        afterFreeze = undefined
        await act()
        return rows as never
      }
      const world = await startJobWorld(under, { db: withQuery(db, query) })
      const [raced, known] = await ended(world, 2, 'between')
      const retry = async (id = '') =>
        (await world.request('POST', `/jobs/${id}/retry`, 'between', { body: { again: true } })).body.id
      // The filter is older than both retries: it never matches the jobs that they create, however early these end.
      const filter = { created_by: 'between', created_before: new Date(world.clock.now() + 1).toISOString() }
      await world.clock.advance(1_000)
      await retry(known?.id)
      let newest: unknown
      afterFreeze = async () => {
        newest = await retry(raced?.id)
      }
      const done = await run(world, { action: 'retry', filter: { ...filter, status: 'completed' }, again: true })
      assert.deepEqual([done.total, done.done, done.skipped], [2, 1, 1])
      assert.deepEqual(done.skips, [{ id: raced?.id, reason: `It was retried already, as ${newest}` }])
      assert.equal((await list(world, `retry_of=${raced?.id}`)).length, 1)
      assert.equal((await list(world, `retry_of=${known?.id}`)).length, 2)
      await world.quiet()
    })

    test('the filters by run and thread ignore the case of the id, as the list of jobs does', async () => {
      const world = await started()
      const [job] = await ended(world, 1, 'in-capitals')
      assert.ok(job)
      const { run_id, thread_id } = await world.get(job.id)
      for (const filter of [{ run_id: run_id?.toUpperCase() }, { thread_id: thread_id.toUpperCase() }]) {
        const counted = await start(world, { action: 'retry', filter, dry_run: true })
        assert.equal(counted.body.total, 1, counted.text)
      }
    })

    test('items that fail say why, and do not stop the others', async () => {
      const world = await started()
      const [job] = await ended(world, 1, 'mixed')
      const paused = await world.start('pausing', { sub: 'mixed' })
      await world.pass(RUN_MS)
      await world.get(paused.id)
      const ids = [paused.id, 'job_none', job?.id ?? '', job?.id ?? '']
      const done = await run(world, { action: 'retry', ids })
      assert.deepEqual([done.state, done.total, done.done, done.failed], ['done', 3, 1, 2])
      assert.deepEqual(done.failures, [
        { id: paused.id, error: 'The job is awaiting_input: only a job that has ended can be repeated' },
        { id: 'job_none', error: 'No such job' },
      ])
      assert.equal((await list(world, `retry_of=${job?.id}`)).length, 1, 'an id that is named twice is one item')
      await world.quiet()
    })

    test('cancel ends unfinished jobs, those that wait for an answer at once', async () => {
      const world = await started()
      const paused = await world.start('pausing', { sub: 'stopped' })
      await world.pass(RUN_MS)
      await world.get(paused.id)
      const running = await world.start('report', { sub: 'stopped' })
      const done = await run(world, { action: 'cancel', filter: { created_by: 'stopped' } })
      assert.deepEqual([done.total, done.done, done.failed], [2, 2, 0])
      assert.equal((await world.stored(paused.id)).status, 'cancelled')
      await world.quiet()
      assert.equal((await world.stored(running.id)).status, 'cancelled')
      const again = await run(world, { action: 'cancel', filter: { created_by: 'stopped' } })
      assert.deepEqual([again.state, again.total], ['done', 0], 'nothing is left to cancel')
      const named = await run(world, { action: 'cancel', ids: [paused.id] })
      assert.deepEqual(named.failures, [{ id: paused.id, error: 'The job is cancelled already' }])
    })

    test('check asks the runtime about each job whose run may be active', async () => {
      const world = await startJobWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const jobs = [await world.start('report'), await world.start('report')]
      await world.clock.advance(RUN_MS)
      const before = world.calls(GET_RUN)
      const done = await run(world, { action: 'check', filter: { type: 'report' } })
      assert.deepEqual([done.total, done.done, done.failed], [2, 2, 0])
      assert.ok(world.calls(GET_RUN) >= before)
      for (const { id } of jobs) assert.equal((await world.stored(id)).status, 'completed')
    })

    test('replay processes stored callbacks again, by the filters of their list', async () => {
      const world = await started()
      const [job] = await ended(world, 1, 'replayed')
      const done = await run(world, { action: 'replay', filter: { job_id: job?.id } })
      assert.deepEqual([done.state, done.total, done.done], ['done', 1, 1])
      const entries = await world.db.query<{ via: string }>(
        sql`select via from job_timeline where job_id = ${job?.id ?? ''} and via = 'replay'`,
      )
      assert.equal(entries.length, 1)
      const none = await run(world, { action: 'replay', ids: ['cbk_none'] })
      assert.deepEqual(none.failures, [{ id: 'cbk_none', error: 'No such callback' }])
    })

    test('an Idempotency-Key starts one operation', async () => {
      const world = await started()
      const [job] = await ended(world, 1, 'keyed')
      const headers = { 'idempotency-key': 'bulk-once' }
      const body = { action: 'retry', filter: { created_by: 'keyed' } }
      const first = await start(world, body, headers)
      await finished(world, first.body.id)
      const second = await start(world, body, headers)
      assert.deepEqual([second.status, second.body.id], [202, first.body.id])
      assert.equal((await list(world, `retry_of=${job?.id}`)).length, 1)
      await world.quiet()
    })

    test('a request for no valid operation is a 400 that names the fault', async () => {
      const world = await started()
      const cases: [object, RegExp][] = [
        [{ action: 'retry' }, /body must have either "ids" or "filter"/],
        [{ action: 'retry', ids: ['job_1'], filter: { type: 'report' } }, /body must have either "ids" or "filter"/],
        [{ action: 'delete', ids: ['job_1'] }, /body\/action/],
        [{ action: 'retry', ids: [] }, /body\/ids/],
        [{ action: 'cancel', ids: ['job_1'], again: true }, /body\/again is only for the action retry/],
        [{ action: 'retry', filter: { retried: true }, again: false }, /body\/again must not be false with the filter/],
        [{ action: 'retry', filter: { retried: false }, again: true }, /body\/again must not be true with the filter/],
        [{ action: 'retry', filter: { retried: 'no' } }, /body\/filter\/retried/],
        [{ action: 'retry', filter: {} }, /body\/filter/],
        [{ action: 'retry', filter: { colour: 'red' } }, /colour/],
        [{ action: 'retry', filter: { outcome: 'stale' } }, /body\/filter\/outcome is no filter of GET \/jobs/],
        [
          { action: 'replay', filter: { status: 'failed' } },
          /body\/filter\/status is no filter of GET \/v1\/callbacks/,
        ],
        [{ action: 'retry', filter: { project: 'a', project_id: 'b' } }, /body\/filter must have either/],
        [{ action: 'retry', filter: { created_after: 'yesterday' } }, /body\/filter\/created_after/],
        [{ action: 'retry', filter: { run_id: 'run_1' } }, /body\/filter\/run_id must be a UUID/],
        [{ action: 'retry', filter: { thread_id: '9a4bcb3e' } }, /body\/filter\/thread_id must be a UUID/],
      ]
      for (const [body, message] of cases) {
        assertError(under, await start(world, body), { status: 400, code: 'invalid_request', message })
      }
      const token = world.token('ada')
      const refused = await world.service.request('POST', '/v1/operations', {
        token,
        body: { action: 'check', ids: ['a'] },
      })
      assertError(under, refused, { status: 403, code: 'forbidden' })
      const missing = await world.service.request('GET', '/v1/operations/opr_none', { token: world.admin })
      assertError(under, missing, { status: 404, code: 'not_found', message: 'No such operation' })
    })

    test('an operation on more than 10,000 items is a 400 with their number, and starts nothing', async () => {
      const world = await started()
      const [one] = await ended(world, 1, 'template')
      const many = Array.from({ length: 10_001 }, (_, n) => ({ id: `job_many_${n}` }))
      await world.db.query(sql`
        insert into jobs (id, type, status, created_by, thread_id, run_seq, check_attempts, deadline_at,
          created_at, finished_at, updated_at)
        select r.id, type, 'failed', 'crowd', r.id, 1, 0, deadline_at, created_at, finished_at, updated_at
        from ${rowsOf(world.db.engine, many, { id: 'text' })} as r join jobs on jobs.id = ${one?.id ?? ''}`)
      const body = { action: 'retry', filter: { created_by: 'crowd' } }
      const message = 'body/filter fits 10001 jobs, and an operation takes 10000 at most'
      for (const dry_run of [true, false]) {
        assertError(under, await start(world, { ...body, dry_run }), { status: 400, code: 'invalid_request', message })
      }
      await world.db.query(sql`delete from jobs where id = 'job_many_0'`)
      const counted = await start(world, { ...body, dry_run: true })
      assert.deepEqual([counted.status, counted.body.total], [200, 10_000])
      const ids = many.map(({ id }) => id)
      assertError(under, await start(world, { action: 'retry', ids }), {
        status: 400,
        code: 'invalid_request',
        message: /body\/ids/,
      })
      await world.db.query(sql`delete from jobs where created_by = 'crowd'`)
    })

    test('a stopped operation does no further item; a finished one cannot be stopped', async () => {
      const world = await started()
      const [job] = await ended(world, 1, 'halted')
      const running = await run(world, { action: 'retry', ids: [job?.id ?? ''] })
      const stop = (id: string) =>
        world.service.request<Operation>('POST', `/v1/operations/${id}/cancel`, { token: world.admin })
      assertError(under, await stop(running.id), {
        status: 409,
        code: 'conflict',
        message: 'The operation is already done',
      })
      // As another node holds it, it waits here until it is stopped.
      const waiting = 'opr_00000000000000000000000000'
      const origin = JSON.stringify({ actor: { kind: 'user', id: 'root' } })
      await world.db.query(sql`
        insert into nodes (id, started_at, expires_at) values ('elsewhere', 0, 9000000000000000)`)
      await world.db.query(sql`
        insert into operations (id, action, state, total, position, failed, skipped, created_by, origin, created_at, lease_node, lease_token)
        values (${waiting}, 'retry', 'running', 2, 1, 0, 0, 'root', ${origin}, 0, 'elsewhere', 'x')`)
      const stopped = await stop(waiting)
      assert.deepEqual([stopped.status, stopped.body.state, stopped.body.done], [200, 'cancelled', 1])
      assert.equal((await stop(waiting)).status, 200)
      const page = await world.service.request<{ data: Operation[] }>('GET', '/v1/operations?limit=100', {
        token: world.service.tokenFor({ sub: 'reader', scopes: ['read:operations'] }),
      })
      assert.equal(page.body.data.find(({ id }) => id === waiting)?.state, 'cancelled')
      await world.db.query(sql`delete from nodes where id = 'elsewhere'`)
      while (await trimOperations(world.db, { beforeMs: Number.MAX_SAFE_INTEGER }));
      const rest = await world.db.query(sql`select operation_id from operation_items`)
      assert.deepEqual(rest, [])
      await world.quiet()
    })
  })
})

describe('an operation that another node takes', () => {
  onOneService((under) => {
    test('an operation taken by another node is not taken back before the next round, so that it does not alternate between them', async () => {
      const db = await under.engine.openDatabase()
      let leases = 0
      const query: Database['query'] = async (statement) => {
        const rows = await db.query(statement)
        if (rows.length === 0 || !statement.text.includes('update operations set lease_token')) return rows as never
        leases += 1
        await db.query(sql`update operations set lease_token = 'another', lease_node = 'another'`)
        return rows as never
      }
      const world = await startJobWorld(under, { db: withQuery(db, query) })
      const [job] = await ended(world, 1, 'bulk')
      const answer = await start(world, { action: 'retry', ids: [job?.id] })
      assert.equal(answer.status, 202, answer.text)
      await until(() => leases > 0)
      // More than a round needs: without a pause there would be a second lease meanwhile.
      for (let n = 0; n < 50; n++) await db.query(sql`update operations set lease_node = 'another'`)
      assert.equal(leases, 1)
      await until(async () => {
        await world.clock.advance(1_000)
        return leases > 1
      })
    })
  })
})
