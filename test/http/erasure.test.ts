import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Database } from '../../src/db/database.ts'
import { Sql, sql } from '../../src/db/sql.ts'
import { repeatJob } from '../../src/jobs/actions/retry-job.ts'
import { eraseDevicesAndNotifications } from '../../src/push/trim-notifications.ts'
import { RuntimeUnavailable } from '../../src/runtime/check-errors.ts'
import { assertError } from '../support/assert-error.ts'
import { openStream } from '../support/event-stream.ts'
import { type JobWorld, RUN_MS, type ShownJob, startJobWorld, WEBHOOK_SECRET } from '../support/job-world.ts'
import { overTime } from '../support/over-time.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const SUB = 'erika-4711'
/** In every document, text and token of the user. */
const MARK = 'Geheimnis'
const ADMIN_ONLY = { status: 403, code: 'forbidden' } as const

interface Operation {
  id: string
  action: string
  state: string
  total: number
  done: number
  failed: number
  failures: { id: string; error: string }[]
}

const erase = (world: JobWorld, sub = SUB) =>
  world.service.request<Operation>('DELETE', `/v1/users/${encodeURIComponent(sub)}`, { token: world.admin })

async function read(world: JobWorld, id: string): Promise<Operation> {
  return (await world.service.request<Operation>('GET', `/v1/operations/${id}`, { token: world.admin })).body
}

async function untilDone(world: JobWorld, id: string): Promise<Operation> {
  await world.sweepUntil(async () => (await read(world, id)).state === 'done')
  return read(world, id)
}

/** The names of the tables in which a text occurs. */
async function tablesWith(db: Database, text: string): Promise<string[]> {
  const names =
    db.engine === 'sqlite'
      ? sql`select name from sqlite_master where type = 'table' order by name`
      : sql`select tablename as name from pg_tables where schemaname = current_schema() order by tablename`
  const found: string[] = []
  for (const { name } of await db.query<{ name: string }>(names)) {
    const rows = await db.query(new Sql([`select * from ${name}`], []))
    if (JSON.stringify(rows).includes(text)) found.push(name)
  }
  return found
}

/** Whether a transaction waits for another one. */
async function waitsForLock(db: Database): Promise<boolean> {
  const waiting = await db.query(sql`
    select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
  return waiting.length > 0
}

/** Creates a user with data in every table that can hold data of a user. */
async function startFullLife(world: JobWorld): Promise<{ ended: ShownJob; paused: ShownJob; running: ShownJob }> {
  const { service, admin } = world
  const scopes = ['write:projects', 'admin:*']
  const token = service.tokenFor({ sub: SUB, email: `${MARK}@example.com`, scopes })
  const send = async (method: string, path: string, body: object, headers: Record<string, string> = {}) => {
    const answer = await service.request<{ id: string }>(method, path, { token, body, headers })
    assert.ok(answer.status < 300, answer.text)
    return answer.body
  }
  await send('POST', '/v1/devices', { token: `token-${MARK}-1234567890`, platform: 'web' })
  await send('POST', '/v1/projects', { name: 'Stays' }, { 'idempotency-key': `key-${MARK}` })
  await send('POST', '/v1/service-accounts', { name: 'Stays too', scopes: ['read:projects'] })
  await send('POST', '/v1/notifications', { users: [SUB], title: `To ${MARK}`, body: 'alone' })
  await service.request('PATCH', `/v1/users/${SUB}`, { token: admin, body: { display_name: MARK } })
  const input = { title: MARK, n: 1 }
  const ended = await world.start('report', { sub: SUB, input })
  const failed = await world.start('throwing', { sub: SUB, input: { message: MARK } })
  const paused = await world.start('pausing', { sub: SUB, input })
  await world.pass(RUN_MS)
  for (const { id } of [ended, failed, paused]) await world.get(id)
  const running = await world.start('report', { sub: SUB, input: { ...input, sandbox: { duration_ms: 3_600_000 } } })
  return { ended, paused, running }
}

/** Sends a notification as an admin, and answers with its id. */
async function notify(
  { service, admin }: JobWorld,
  { title, ...targets }: { title: string; users?: readonly string[]; devices?: readonly string[] },
): Promise<string> {
  const answer = await service.request<{ id: string }>('POST', '/v1/notifications', {
    token: admin,
    headers: { 'idempotency-key': title.toLowerCase().replaceAll(' ', '-') },
    body: { ...targets, title, body: 'A text', data: { title } },
  })
  assert.equal(answer.status, 201, answer.text)
  return answer.body.id
}

async function registerDevice({ service }: JobWorld, { sub, token }: { sub: string; token: string }): Promise<string> {
  const body = { token, platform: 'web' }
  return (await service.request<{ id: string }>('POST', '/v1/devices', { token: service.tokenFor({ sub }), body })).body
    .id
}

/** The titles that `GET /v1/notifications` shows. */
async function titlesIn({ service, admin }: JobWorld): Promise<string[]> {
  const list = await service.request<{ data: { title: string }[] }>('GET', '/v1/notifications', { token: admin })
  return list.body.data.map(({ title }) => title)
}

describe('DELETE /v1/users/{sub}', () => {
  forEachService((under) => {
    test('an erased user is named only by ids in the audit trail, the operation and the state; everything else is erased', async () => {
      const world = await startJobWorld(under)
      const { ended, paused, running } = await startFullLife(world)
      const other = await world.start('report', { sub: 'bystander' })
      for (const table of ['jobs', 'callbacks', 'users', 'devices', 'idempotency_keys', 'notifications', 'audit']) {
        assert.ok((await tablesWith(world.db, MARK)).includes(table), `${table} holds something of the user`)
      }
      const stream = await openStream(world.service.url, '/v1/events', { token: world.token(SUB) })
      const accepted = await erase(world)
      assert.deepEqual(
        [accepted.status, accepted.body.action, accepted.body.total, accepted.headers.location],
        [202, 'erase', 5, `/v1/operations/${accepted.body.id}`],
        accepted.text,
      )
      const refused = await world.request('GET', '/v1/users/me', SUB)
      assertError(under, refused, { status: 403, code: 'forbidden', message: 'This account is blocked' })
      assert.equal((await erase(world)).body.id, accepted.body.id, 'a second request finds the first')
      const stop = await world.service.request('POST', `/v1/operations/${accepted.body.id}/cancel`, {
        token: world.admin,
      })
      assertError(under, stop, { status: 409, code: 'conflict', message: 'An erasure cannot be stopped' })
      const done = await untilDone(world, accepted.body.id)
      assert.deepEqual([done.total, done.done], [5, 5])
      await stream.ended()

      assert.deepEqual(await tablesWith(world.db, MARK), [])
      assert.deepEqual(await tablesWith(world.db, SUB), ['audit', 'operation_items', 'user_states'])
      for (const { id } of [ended, paused, running]) {
        const { created_by, input, output, interrupts } = await world.stored(id)
        assert.deepEqual(
          { created_by, input, output, interrupts },
          { created_by: null, input: null, output: null, interrupts: null },
        )
      }
      assert.deepEqual(
        await Promise.all([ended, paused, running].map(async ({ id }) => (await world.stored(id)).status)),
        ['completed', 'cancelled', 'cancelled'],
      )
      assert.equal((await world.stored(other.id)).created_by, 'bystander')
      const counted = await world.db.query<{ runs: number }>(sql`select runs from usage_counters where subject = ''`)
      assert.equal(
        counted.reduce((sum, { runs }) => sum + runs, 0),
        4,
        'usage stays as numbers',
      )
      const audit = await world.service.request<{ data: { action: string }[] }>('GET', `/v1/audit?object=${SUB}`, {
        token: world.admin,
      })
      assert.deepEqual(
        audit.body.data.map(({ action }) => action),
        ['user.erased', 'user.erasure_started', 'user.changed'],
      )

      await world.pass(5_000)
      const again = await world.request<{ email: string | null; display_name: string | null }>(
        'GET',
        '/v1/users/me',
        SUB,
      )
      assert.deepEqual([again.status, again.body.email, again.body.display_name], [200, null, null], 'a fresh profile')
      const jobs = await world.request<{ data: object[] }>('GET', '/jobs', SUB)
      assert.deepEqual(jobs.body.data, [])
    })

    test('a callback that comes after the erasure is answered and stores nothing; a replay and a retry are refused', async () => {
      const world = await startJobWorld(under)
      const job = await world.start('report', { sub: SUB, input: { title: MARK } })
      await world.pass(RUN_MS)
      const { thread_id, run_id } = await world.get(job.id)
      const [stored] = await world.db.query<{ id: string }>(sql`select id from callbacks where job_id = ${job.id}`)
      await untilDone(world, (await erase(world)).body.id)
      const late = { thread_id, run_id, status: 'success', values: { report: MARK } }
      const answer = await world.callback('report', late)
      assert.deepEqual([answer.status, answer.body], [200, { received: true, outcome: 'stale', job_id: job.id }])
      assert.deepEqual(await tablesWith(world.db, MARK), [])
      const post = (path: string) => world.service.request('POST', path, { token: world.admin })
      const replayed = await post(`/v1/callbacks/${stored?.id}/replay`)
      assertError(under, replayed, { status: 409, code: 'conflict', message: 'The callback was erased with its user' })
      assertError(under, await post(`/jobs/${job.id}/retry`), { status: 409, code: 'conflict' })
      const body = { type: 'report', thread_id, run_id }
      const claimed = await overTime(world, world.service.request('POST', '/jobs', { token: world.admin, body }))
      assertError(under, claimed, { status: 404, code: 'not_found', message: 'No such run' })
    })

    test('a retry that commits while the erasure runs keeps nothing: the new job is erased too', async () => {
      const world = await startJobWorld(under)
      const job = await world.start('report', { sub: SUB, input: { title: MARK } })
      await world.pass(RUN_MS)
      assert.equal((await world.get(job.id)).status, 'completed')
      const { jobContext, jobs } = world.service.services
      const erasure = Promise.withResolvers<Operation>()
      const isOver = async ({ id }: Operation) => {
        await world.clock.advance(1_000)
        const [row] = await world.db.query<{ finished_at: number | null }>(
          sql`select finished_at from operations where id = ${id}`,
        )
        return row?.finished_at !== null
      }
      await world.db.transaction(async (tx) => {
        await repeatJob(
          tx,
          { jobContext, jobs },
          { id: job.id, asker: { id: 'ada', scopes: [] }, by: undefined, startsHere: false },
        )
        if (world.db.engine === 'sqlite') return
        // Without the lock the erasure would end now, and miss the new job.
        const started = (await erase(world)).body
        erasure.resolve(started)
        await until(async () => (await waitsForLock(world.db)) || (await isOver(started)))
      })
      if (world.db.engine === 'sqlite') erasure.resolve((await erase(world)).body)
      await untilDone(world, (await erasure.promise).id)
      assert.deepEqual(await tablesWith(world.db, MARK), [])
    })

    test('notifications to the user are erased without the devices they went to, with the answers kept for their sender', async () => {
      const world = await startJobWorld(under, { projectNotifications: { updated: { title: MARK, body: 'Changed' } } })
      const { service, admin } = world
      const token = service.tokenFor({ sub: SUB, scopes: ['write:projects'] })
      await notify(world, { users: [SUB], title: `${MARK} without a device` })
      const deleted = await registerDevice(world, { sub: SUB, token: 'token-that-is-deleted' })
      await registerDevice(world, { sub: SUB, token: 'token-that-moves' })
      await notify(world, { devices: [deleted], title: `${MARK} to a device` })
      await notify(world, { users: [SUB], title: `${MARK} to all devices` })
      await notify(world, { users: [SUB, 'bystander'], title: 'To two users' })
      const project = await service.request<{ id: string }>('POST', '/v1/projects', { token, body: { name: 'Plan' } })
      await service.request('PATCH', `/v1/projects/${project.body.id}`, { token, body: { name: 'Plan B' } })
      assert.equal((await titlesIn(world)).length, 5)
      await service.request('DELETE', `/v1/devices/${deleted}`, { token })
      await registerDevice(world, { sub: 'bystander', token: 'token-that-moves' })

      await untilDone(world, (await erase(world)).body.id)
      assert.deepEqual(await titlesIn(world), ['To two users'])
      assert.deepEqual(await tablesWith(world.db, MARK), [])
      assert.deepEqual(await tablesWith(world.db, SUB), ['audit', 'operation_items', 'user_states'])

      await untilDone(world, (await erase(world, 'bystander')).body.id)
      assert.deepEqual(await titlesIn(world), [])
      const left = await world.db.query(sql`
        select location from idempotency_keys where location like '/v1/notifications/%'
        union all select notification_id from deliveries`)
      assert.deepEqual(left, [])
      assert.equal((await service.request('GET', '/v1/notifications', { token: admin })).status, 200)
    })

    test('a user who is known only as the recipient of a notification can be erased', async () => {
      const world = await startJobWorld(under)
      await notify(world, { users: ['never-signed-in'], title: MARK })
      const accepted = await erase(world, 'never-signed-in')
      assert.equal(accepted.status, 202, accepted.text)
      await untilDone(world, accepted.body.id)
      assert.deepEqual(await tablesWith(world.db, MARK), [])
    })

    test('a notification to two users who are erased at the same time is erased', async () => {
      const world = await startJobWorld(under, { db: await under.engine.openDatabase({ waitsLong: true }) })
      await notify(world, { users: ['first', 'second'], title: MARK })
      const eraseAtOnce = (sub: string, meanwhile = async () => {}) =>
        world.db.transaction(async (tx) => {
          await eraseDevicesAndNotifications(tx, sub, 500)
          await meanwhile()
        })
      let isOver = false
      let second = Promise.resolve()
      const eraseSecond = async () => {
        second = eraseAtOnce('second').finally(() => {
          isOver = true
        })
        // On SQLite the second one begins after the first one.
        if (world.db.engine === 'postgres') await until(async () => isOver || (await waitsForLock(world.db)))
      }
      await eraseAtOnce('first', eraseSecond)
      await second
      assert.deepEqual(await tablesWith(world.db, MARK), [])
    })

    test('the jobs of an erased user end as cancelled within half a minute while the runtime is away', async () => {
      const world = await startJobWorld(under)
      const job = await world.start('report', { sub: SUB, input: { sandbox: { duration_ms: 3_600_000 } } })
      await world.runtime.close()
      const { id } = (await erase(world)).body
      await world.sweepUntil(async () => (await world.stored(job.id)).status === 'cancelled')
      await world.sweepUntil(async () => (await world.stored(job.id)).created_by === null)
      assert.equal((await read(world, id)).state, 'running', 'the runtime may come back and delete the thread')
      await world.leapUntil(async () => (await read(world, id)).state === 'done', 60_000)
      const { total, done, failed, failures } = await read(world, id)
      assert.deepEqual([total, done, failed], [4, 2, 2])
      assert.equal(failures[0]?.id, job.thread_id)
      assert.match(failures[0]?.error ?? '', /^The thread stays at the runtime: the runtime /)
      assert.match(failures[1]?.error ?? '', /^Threads of deleted jobs may stay: the runtime /)
      assert.deepEqual([failures.length, failures[1]?.id], [2, SUB])
    })

    test('each thread that stays is named, also more than the operation shows, and those that it replaced', async () => {
      const world = await startJobWorld(under)
      const job = await world.start('report', { sub: SUB })
      await world.pass(RUN_MS)
      const left = ['own', 'foreign'].map((name) => `left-${name}`)
      const insert = (id: string, replacedBy: string | null, isOwn: number) =>
        world.db.query(sql`
          insert into threads (id, owner, type, title, newest, is_own, is_pinned, replaced_by)
          select ${id}, owner, type, title, newest, ${isOwn}, is_pinned, ${replacedBy} from threads
          where id = ${job.thread_id}`)
      const threads = Array.from({ length: 110 }, (_, n) => `thread-${n}`)
      for (const id of threads) await insert(id, null, 1)
      await insert('left-own', job.thread_id, 1)
      await insert('left-foreign', job.thread_id, 0)
      world.runtime.setFaults({ lookup_failure: 1 })
      const { id } = (await erase(world)).body
      await world.leapUntil(async () => (await read(world, id)).state === 'done', 60_000)
      const { total, failed, failures } = await read(world, id)
      assert.deepEqual([total, failed, failures.length], [2 + 114, 114, 100])
      const path = `/v1/operations/${id}/failures`
      const listed: { id: string; error: string }[] = []
      let cursor = ''
      for (let pages = 1; pages <= 3; pages++) {
        const page = await world.service.request<{
          data: { id: string; error: string }[]
          has_more: boolean
          next_cursor: string | null
        }>('GET', `${path}?limit=50${cursor}`, { token: world.admin })
        assert.equal(page.status, 200, page.text)
        listed.push(...page.body.data)
        assert.deepEqual([page.body.has_more, page.body.next_cursor === null], [pages < 3, pages === 3])
        cursor = `&cursor=${page.body.next_cursor}`
      }
      assert.deepEqual(listed.slice(0, 100), failures)
      assert.deepEqual(listed.map((one) => one.id).sort(), [...threads, ...left, job.thread_id, SUB].sort())
      assert.match(listed.at(-1)?.error ?? '', /^Threads of deleted jobs may stay: /)
      assert.equal(
        listed.find((one) => one.id === 'left-foreign')?.error,
        'The thread stays at the runtime: another client created it',
      )
    })

    test('the failures of an operation are read page by page; an unknown operation is 404, another cursor 400', async () => {
      const world = await startJobWorld(under)
      const get = (path: string) =>
        world.service.request<{ data: { id: string }[]; next_cursor: string }>('GET', `/v1/operations/${path}`, {
          token: world.admin,
        })
      const check = async (...ids: string[]) => {
        const request = { token: world.admin, body: { action: 'check', ids } }
        const { body } = await world.service.request<Operation>('POST', '/v1/operations', request)
        await untilDone(world, body.id)
        return body.id
      }
      const id = await check('job_1', 'job_2')
      const page = await get(`${id}/failures?limit=1`)
      assert.deepEqual(page.body.data, [{ id: 'job_1', error: 'No such job' }])
      const cursor = `cursor=${page.body.next_cursor}`
      const rest = await get(`${id}/failures?${cursor}`)
      assert.deepEqual([rest.body.data.map((one) => one.id), rest.body.next_cursor], [['job_2'], null])
      assertError(under, await get('opr_none/failures'), {
        status: 404,
        code: 'not_found',
        message: 'No such operation',
      })
      const wrong = await get(`${await check('job_3')}/failures?${cursor}`)
      assertError(under, wrong, { status: 400, code: 'invalid_request' })
    })

    test('an erasure that gave up on the runtime can be repeated, and then deletes the threads that stayed', async () => {
      const world = await startJobWorld(under)
      const job = await world.start('report', { sub: SUB })
      const deleted = await world.start('report', { sub: SUB })
      await world.pass(RUN_MS)
      assert.equal((await world.request('DELETE', `/jobs/${deleted.id}`, SUB)).status, 204)
      world.runtime.setFaults({ lookup_failure: 1 })
      const first = (await erase(world)).body.id
      await world.leapUntil(async () => (await read(world, first)).state === 'done', 60_000)
      assert.equal((await read(world, first)).failed, 2)
      world.runtime.setFaults({ lookup_failure: 0 })
      const again = await erase(world)
      assert.equal(again.status, 202, again.text)
      assert.notEqual(again.body.id, first)
      const done = await untilDone(world, again.body.id)
      assert.deepEqual([done.total, done.failed], [1, 0])
      for (const { thread_id } of [job, deleted]) {
        assert.equal((await fetch(`${world.runtime.url}/threads/${thread_id}`)).status, 404)
      }
    })

    test('a thread of a deleted job that the runtime does not delete is named, and the others are deleted', async () => {
      const world = await startJobWorld(under)
      const jobs = [
        await world.start('report', { sub: SUB }),
        await world.start('report', { sub: SUB }),
        await world.start('report', { sub: SUB }),
      ]
      await world.pass(RUN_MS)
      for (const { id } of jobs) assert.equal((await world.request('DELETE', `/jobs/${id}`, SUB)).status, 204)
      const stuck = jobs[1]?.thread_id ?? ''
      const { runtime } = world.service.services.jobContext
      assert.ok(runtime)
      const deleteThread = runtime.deleteThread.bind(runtime)
      runtime.deleteThread = async (id, signal) => {
        if (id === stuck) throw new RuntimeUnavailable('threads_stay')
        await deleteThread(id, signal)
      }
      const { id } = (await erase(world)).body
      await world.leapUntil(async () => (await read(world, id)).state === 'done', 60_000)
      const error = 'The thread stays at the runtime: the runtime still lists threads that it has deleted'
      assert.deepEqual((await read(world, id)).failures, [{ id: stuck, error }])
      const statuses = await Promise.all(
        jobs.map(async ({ thread_id }) => (await fetch(`${world.runtime.url}/threads/${thread_id}`)).status),
      )
      assert.deepEqual(statuses, [404, 200, 404])
    })

    test('a runtime that ignores the owner in a search loses no threads of other users', async () => {
      const world = await startJobWorld(under)
      const own = await world.start('report', { sub: SUB })
      const other = await world.start('report', { sub: 'bystander' })
      await world.pass(RUN_MS)
      assert.equal((await world.request('DELETE', `/jobs/${own.id}`, SUB)).status, 204)
      assert.equal((await world.request('DELETE', `/jobs/${other.id}`, 'bystander')).status, 204)
      const { runtime } = world.service.services.jobContext
      assert.ok(runtime)
      const searchThreads = runtime.searchThreads.bind(runtime)
      runtime.searchThreads = (_metadata, page, signal) => searchThreads({}, page, signal)
      const done = await untilDone(world, (await erase(world)).body.id)
      assert.equal(done.failed, 0)
      const statusOf = async ({ thread_id }: ShownJob) =>
        (await fetch(`${world.runtime.url}/threads/${thread_id}`)).status
      assert.deepEqual(await Promise.all([own, other].map(statusOf)), [404, 200])
    })

    test('the threads of an erased user are deleted at the runtime, and the thread of another client is named', async () => {
      const world = await startJobWorld(under)
      const existsAt = async ({ thread_id }: { thread_id: string }) =>
        (await fetch(`${world.runtime.url}/threads/${thread_id}`)).status === 200
      const own = await world.start('report', { sub: SUB })
      const deleted = await world.start('report', { sub: SUB })
      const running = await world.start('report', { sub: SUB, input: { sandbox: { duration_ms: 3_600_000 } } })
      const other = await world.start('report', { sub: 'bystander' })
      await world.pass(RUN_MS)
      assert.equal((await world.request('DELETE', `/jobs/${deleted.id}`, SUB)).status, 204)
      assert.ok(await existsAt(deleted), 'the thread of a deleted job stays')
      // More than a page of newer threads that another client has named like ours.
      const ofOther: { thread_id: string }[] = []
      for (let n = 0; n < 25; n++) {
        ofOther.push(await world.startElsewhere({}, { threadMetadata: { owner: SUB, job_id: 'ticket-1' } }))
      }
      const run = await world.startElsewhere({ user_id: SUB })
      await world.pass(RUN_MS)
      const followed = await world.request('POST', '/jobs', SUB, { body: { type: 'report', ...run } })
      assert.equal(followed.status, 202, followed.text)
      world.runtime.setFaults({ lookup_failure: 1 })
      const { id } = (await erase(world)).body
      await world.sweepUntil(async () => (await world.stored(running.id)).created_by === null)
      await world.pass(20_000)
      assert.equal((await read(world, id)).state, 'running')
      world.runtime.setFaults({ lookup_failure: 0 })
      const done = await untilDone(world, id)
      const error = 'The thread stays at the runtime: another client created it'
      assert.deepEqual([done.failed, done.failures], [1, [{ id: run.thread_id, error }]])
      assert.deepEqual(await Promise.all([own, running, deleted].map(existsAt)), [false, false, false])
      assert.deepEqual(await Promise.all([other, run].map(existsAt)), [true, true])
      assert.ok((await Promise.all(ofOther.map(existsAt))).every((exists) => exists))
      assert.deepEqual(await tablesWith(world.db, SUB), ['audit', 'operation_items', 'user_states'])
    })

    test('a thread with jobs of two owners stays for the other one, and is named', async () => {
      const world = await startJobWorld(under)
      const existsAt = async ({ thread_id }: { thread_id: string }) =>
        (await fetch(`${world.runtime.url}/threads/${thread_id}`)).status === 200
      const follow = async (sub: string, { thread_id }: ShownJob) => {
        const run_id = await world.continueElsewhere(
          { thread_id },
          { assistant_id: 'report', metadata: { owner: sub } },
        )
        await world.pass(RUN_MS)
        const body = { type: 'report', thread_id, run_id }
        const followed = await world.request('POST', '/jobs', sub, { body })
        assert.equal(followed.status, 202, followed.text)
      }
      const own = await world.start('report', { sub: SUB, input: { title: MARK } })
      const ofOther = await world.start('report', { sub: 'bystander' })
      await world.pass(RUN_MS)
      await follow('bystander', own)
      await follow(SUB, ofOther)
      await follow(SUB, ofOther)
      const done = await untilDone(world, (await erase(world)).body.id)
      const error = 'The thread stays at the runtime: it has jobs of another owner'
      assert.deepEqual(
        [done.failed, done.failures.toSorted((a, b) => (a.id === own.thread_id ? -1 : b.id === own.thread_id ? 1 : 0))],
        [2, [own, ofOther].map(({ thread_id: id }) => ({ id, error }))],
      )
      assert.deepEqual(await Promise.all([own, ofOther].map(existsAt)), [true, true])
      assert.ok(!(await tablesWith(world.db, MARK)).includes('threads'), 'the title is erased')
      assert.deepEqual(await tablesWith(world.db, SUB), ['audit', 'operation_items', 'user_states'])
      await untilDone(world, (await erase(world, 'bystander')).body.id)
      assert.deepEqual(await Promise.all([own, ofOther].map(existsAt)), [false, false])
    })

    test('the erasure says when the runtime cannot find the threads of deleted jobs by their owner', async () => {
      const world = await startJobWorld(under, { env: { RUNTIME_IDENTITY: 'none' } })
      const job = await world.start('report', { sub: SUB })
      await world.start('report', { sub: 'bystander' })
      await world.pass(RUN_MS)
      assert.equal((await world.request('DELETE', `/jobs/${job.id}`, SUB)).status, 204)
      const done = await untilDone(world, (await erase(world)).body.id)
      const unknown =
        'Threads of deleted jobs may stay: with RUNTIME_IDENTITY=none the runtime does not know whose threads they are'
      assert.deepEqual(done.failures, [{ id: SUB, error: unknown }])
      assert.equal(done.failed, 1)

      await world.service.services.operationRunner.close()
      await under.start({ db: world.db, clock: world.clock, env: { WEBHOOK_SECRET, RUNTIME_URL: world.runtime.url } })
      const { failures } = await untilDone(world, (await erase(world, 'bystander')).body.id)
      const changed =
        'Threads of deleted jobs may stay: RUNTIME_IDENTITY or its secret was changed, and older threads name their owner in another way'
      assert.deepEqual(failures, [{ id: 'bystander', error: changed }])
    })

    test('a runtime that fails late in an erasure is asked again for ten minutes from then on', async () => {
      const world = await startJobWorld(under)
      const job = await world.start('report', { sub: SUB })
      await world.pass(RUN_MS)
      world.runtime.setFaults({ lookup_failure: 1 })
      const { id } = (await erase(world)).body
      // No node has worked on the operation meanwhile.
      await world.leap(11 * 60_000)
      await world.sweepUntil(async () => (await world.stored(job.id)).created_by === null)
      await world.pass(60_000)
      assert.equal((await read(world, id)).state, 'running')
      world.runtime.setFaults({ lookup_failure: 0 })
      const done = await untilDone(world, id)
      assert.deepEqual([done.failed, done.failures], [0, []])
    })

    test('a stop does not wait for the runtime to delete a thread, and another node goes on', async () => {
      const world = await startJobWorld(under)
      await world.start('report', { sub: SUB })
      await world.pass(RUN_MS)
      world.runtime.setFaults({ hang_lookups: true })
      const { id } = (await erase(world)).body
      await world.sweepUntil(() => world.calls('DELETE /threads/{t}') > 0)
      let isClosed = false
      void world.service.services.operationRunner.close().then(() => {
        isClosed = true
      })
      await until(() => isClosed)
      const [left] = await world.db.query(sql`select lease_node, failing_since from operations where id = ${id}`)
      assert.deepEqual({ ...left }, { lease_node: null, failing_since: null }, 'a stop is no failure of the runtime')
      world.runtime.setFaults({ hang_lookups: false })
      const env = { WEBHOOK_SECRET, RUNTIME_URL: world.runtime.url }
      await under.start({ db: world.db, clock: world.clock, env })
      const done = await untilDone(world, id)
      assert.deepEqual([done.failed, done.failures], [0, []])
    })

    test('an erased user is no longer named as the actor of other users’ jobs', async () => {
      const world = await startJobWorld(under)
      const token = world.service.tokenFor({ sub: SUB, scopes: ['admin:*'] })
      const body = { type: 'report', input: {}, created_by: 'bystander' }
      const { body: job } = await world.service.request<ShownJob>('POST', '/jobs', { token, body })
      assert.equal(job.actor, SUB)
      await untilDone(world, (await erase(world)).body.id)
      const { actor, created_by } = await world.stored(job.id)
      assert.deepEqual([actor, created_by], ['erased', 'bystander'])
    })

    test('a restart in the middle changes nothing: another node goes on', async () => {
      const world = await startJobWorld(under)
      await world.start('report', { sub: SUB, input: { title: MARK } })
      const { id } = (await erase(world)).body
      const next = await under.start({ db: world.db, clock: world.clock })
      await world.service.services.operationRunner.close()
      const token = next.tokenFor({ sub: 'root', scopes: ['admin:*'] })
      await world.sweepUntil(async () => {
        return (await next.request<Operation>('GET', `/v1/operations/${id}`, { token })).body.state === 'done'
      })
      assert.deepEqual(await tablesWith(world.db, MARK), [])
    })

    test('an unknown user is 404, the caller itself 409, and without admin:* it is 403', async () => {
      const world = await startJobWorld(under)
      assertError(under, await erase(world, 'unknown'), { status: 404, code: 'not_found', message: 'No such user' })
      for (const own of ['root', 'me']) {
        const refused = await erase(world, own)
        assertError(under, refused, { status: 409, code: 'conflict', message: 'You cannot erase yourself' })
      }
      const token = world.service.tokenFor({ sub: 'watcher', scopes: ['read:operations', 'write:users'] })
      assertError(under, await world.service.request('DELETE', `/v1/users/${SUB}`, { token }), ADMIN_ONLY)
    })
  })
})
