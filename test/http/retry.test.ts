import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { assertError } from '../support/assert-error.ts'
import { GET_RUN, RUN_MS, type ShownJob, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

describe('POST /jobs/{id}/retry', () => {
  forEachService((under) => {
    const started = sharedJobWorld(under)

    test('a retry starts a new job with the same exact input, type, project and owner, and names the job it repeats', async () => {
      const world = await started()
      const raw = '{"type":"report","input":{"title":"Again","n":9007199254740993,"zero":-0}}'
      const first = await world.service.request<ShownJob>('POST', '/jobs', {
        token: world.token('ada'),
        raw,
        headers: { 'content-type': 'application/json' },
      })
      await world.quiet()
      await world.pass(RUN_MS)
      const again = await world.request('POST', `/jobs/${first.body.id}/retry`, 'ada')
      assert.equal(again.status, 202, again.text)
      assert.equal(again.headers.location, `/jobs/${again.body.id}`)
      assert.notEqual(again.body.id, first.body.id)
      assert.notEqual(again.body.thread_id, first.body.thread_id)
      assert.deepEqual(
        [again.body.retry_of, again.body.type, again.body.created_by, again.body.project_id],
        [first.body.id, 'report', 'ada', null],
      )
      assert.match(again.text, /"n":9007199254740993,"zero":-0/)
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await world.get(again.body.id)).status, 'completed')
      const list = await world.request<{ data: ShownJob[] }>('GET', `/jobs?retry_of=${first.body.id}`, 'ada')
      assert.deepEqual(
        list.body.data.map(({ id }) => id),
        [again.body.id],
      )
    })

    test('an Idempotency-Key repeats a job once', async () => {
      const world = await started()
      const job = await world.start('throwing')
      await world.pass(RUN_MS)
      await world.get(job.id)
      const headers = { 'idempotency-key': 'retry-once' }
      const answers = [
        await world.request('POST', `/jobs/${job.id}/retry`, 'ada', { headers }),
        await world.request('POST', `/jobs/${job.id}/retry`, 'ada', { headers }),
      ]
      assert.deepEqual(
        answers.map(({ status, headers }) => [status, headers['idempotency-replayed']]),
        [
          [202, undefined],
          [202, 'true'],
        ],
      )
      assert.equal(answers[0]?.body.id, answers[1]?.body.id)
      const other = await world.start('throwing')
      await world.pass(RUN_MS)
      const reused = await world.request('POST', `/jobs/${other.id}/retry`, 'ada', { headers })
      assertError(under, reused, { status: 422, code: 'idempotency_key_reused' })
    })

    test('a retried job names its newest retry; another retry is a conflict unless `again` is true', async () => {
      const world = await started()
      const job = await world.start('report', { sub: 'marked' })
      await world.pass(RUN_MS)
      assert.equal((await world.get(job.id)).retried_as, null)
      const retry = (body?: object, headers = {}) =>
        world.request('POST', `/jobs/${job.id}/retry`, 'marked', { headers, ...(body && { body }) })
      const listed = async (query: string) => {
        const list = await world.request<{ data: ShownJob[] }>('GET', `/jobs?${query}`, 'marked')
        return list.body.data.map(({ id }) => id)
      }
      const headers = { 'idempotency-key': 'first-retry' }
      const first = await retry({}, headers)
      assert.equal(first.status, 202, first.text)
      assert.equal((await world.get(job.id)).retried_as, first.body.id)
      assert.deepEqual(await listed('retried=true'), [job.id])
      assert.deepEqual(await listed('retried=false'), [first.body.id])
      assert.deepEqual(await listed('retried=false&type=report&status=completed'), [])
      const message = `The job was retried already, as ${first.body.id}: to repeat it once more, set "again" to true`
      for (const body of [undefined, {}, { again: false }]) {
        assertError(under, await retry(body), { status: 409, code: 'conflict', message })
      }
      assertError(under, await retry({ again: 'yes' }), { status: 400, code: 'invalid_request' })
      assertError(under, await retry({ more: true }), { status: 400, code: 'invalid_request' })
      const repeated = await retry({}, headers)
      assert.deepEqual([repeated.status, repeated.body.id], [202, first.body.id], 'the key keeps its first answer')
      const second = await retry({ again: true })
      assert.deepEqual([second.status, second.body.retry_of], [202, job.id])
      assert.equal((await world.get(job.id)).retried_as, second.body.id)
      await world.quiet()
      await world.pass(RUN_MS)
      await world.get(second.body.id)
      assert.equal((await world.request('DELETE', `/jobs/${second.body.id}`, 'marked')).status, 204)
      const kept = await world.get(job.id)
      assert.deepEqual(
        [kept.status, kept.retried_as],
        ['completed', second.body.id],
        'it stays when the retry is deleted',
      )
      assert.equal((await retry()).status, 409)
      assert.equal((await retry({ again: true })).status, 202)
      await world.quiet()
    })

    test('of two retries at the same time, one starts a job and the other names it', async () => {
      const world = await started()
      const job = await world.start('report', { sub: 'twice' })
      await world.pass(RUN_MS)
      await world.get(job.id)
      const retry = () => world.request('POST', `/jobs/${job.id}/retry`, 'twice')
      const answers = await Promise.all([retry(), retry()])
      assert.deepEqual(answers.map(({ status }) => status).sort(), [202, 409])
      const list = await world.request<{ data: ShownJob[] }>('GET', `/jobs?retry_of=${job.id}`, 'twice')
      assert.equal(list.body.data.length, 1)
      await world.quiet()
    })

    test('a job that has not ended, or whose input is not stored, is a conflict', async () => {
      const world = await started()
      const paused = await world.start('pausing')
      await world.pass(RUN_MS)
      await world.get(paused.id)
      const early = await world.request('POST', `/jobs/${paused.id}/retry`, 'ada')
      assertError(under, early, {
        status: 409,
        code: 'conflict',
        message: 'The job is awaiting_input: only a job that has ended can be repeated',
      })
      const run = await world.startElsewhere({ user_id: 'ada' })
      const followed = await world.request('POST', '/jobs', 'ada', { body: { type: 'report', ...run } })
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await world.get(followed.body.id)).status, 'completed')
      const inputless = await world.request('POST', `/jobs/${followed.body.id}/retry`, 'ada')
      assertError(under, inputless, { status: 409, code: 'conflict' })
    })

    test('another user does not see the job; an admin repeats it for its owner, which is audited', async () => {
      const world = await started()
      const job = await world.start('report')
      await world.pass(RUN_MS)
      await world.get(job.id)
      const stranger = await world.request('POST', `/jobs/${job.id}/retry`, 'eve')
      assertError(under, stranger, { status: 404, code: 'not_found' })
      const again = await world.request('POST', `/jobs/${job.id}/retry`, 'root', { token: world.admin })
      assert.deepEqual([again.status, again.body.created_by], [202, 'ada'])
      const token = world.admin
      type Audit = { data: { action: string; after: unknown }[] }
      const audit = await world.service.request<Audit>('GET', `/v1/audit?object=${job.id}`, { token })
      assert.deepEqual(
        audit.body.data.map(({ action, after }) => [action, after]),
        [['job.retried', { job_id: again.body.id }]],
      )
      await world.quiet()
    })

    test('a turn of a conversation is repeated on its thread', async () => {
      const world = await started()
      const first = await world.start('report')
      await world.pass(RUN_MS)
      await world.get(first.id)
      const body = { type: 'report', input: { title: 'Next' }, continues: first.id }
      const second = await world.request('POST', '/jobs', 'ada', { body })
      await world.quiet()
      await world.pass(RUN_MS)
      await world.get(second.body.id)
      const again = await world.request('POST', `/jobs/${second.body.id}/retry`, 'ada')
      assert.deepEqual([again.status, again.body.continues, again.body.thread_id], [202, first.id, first.thread_id])
      const onceMore = { body: { again: true } }
      const busy = await world.request('POST', `/jobs/${second.body.id}/retry`, 'ada', onceMore)
      assertError(under, busy, { status: 409, code: 'conflict', message: 'A job on the thread is unfinished' })
      await world.quiet()
    })

    test('a retry counts towards the usage limit of the owner', async () => {
      const world = await startJobWorld(under, { env: { USAGE_LIMIT_RUNS: '1' } })
      const job = await world.start('report')
      await world.pass(RUN_MS)
      await world.get(job.id)
      const again = await world.request('POST', `/jobs/${job.id}/retry`, 'ada')
      assertError(under, again, { status: 429, code: 'usage_limit_exceeded' })
    })
  })
})

describe('POST /jobs/{id}/check', () => {
  forEachService((under) => {
    const started = sharedJobWorld(under)

    test('a check asks the runtime and answers with the job', async () => {
      const world = await started()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const job = await world.start('report')
      await world.pass(RUN_MS)
      const before = world.calls(GET_RUN)
      const checked = await world.request('POST', `/jobs/${job.id}/check`, 'ada')
      assert.deepEqual([checked.status, checked.body.status, checked.body.settled_by], [200, 'completed', 'read'])
      assert.ok(world.calls(GET_RUN) > before)
      const ended = world.calls(GET_RUN)
      const repeated = await world.request('POST', `/jobs/${job.id}/check`, 'ada')
      assert.deepEqual([repeated.status, repeated.body.status], [200, 'completed'])
      assert.equal(world.calls(GET_RUN), ended, 'a job that has ended is not asked about')
    })

    test('an admin’s check of another user’s job is audited, the owner’s is not; a stranger gets 404', async () => {
      const world = await started()
      const job = await world.start('report')
      await world.request('POST', `/jobs/${job.id}/check`, 'ada')
      const stranger = await world.request('POST', `/jobs/${job.id}/check`, 'eve')
      assertError(under, stranger, { status: 404, code: 'not_found' })
      await world.request('POST', `/jobs/${job.id}/check`, 'root', { token: world.admin })
      const rows = await world.db.query<{ actor_id: string }>(
        sql`select actor_id from audit where object_id = ${job.id} and action = 'job.checked'`,
      )
      assert.deepEqual(
        rows.map(({ actor_id }) => actor_id),
        ['root'],
      )
    })
  })
})
