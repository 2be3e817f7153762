import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { afterReading } from '../support/after-reading.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestResponse } from '../support/http-client.ts'
import { type JobWorld, RUN_MS, type ShownJob, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { forEachService, forEachServiceAndVariant } from '../support/service.ts'

/** Numbers that JavaScript cannot hold, and more text than an answer has besides its documents. */
const INPUT = `{"n":9007199254740993,"zero":-0,"large":1e400,"text":"${'x'.repeat(100_000)}"}`
const newUser = () => `user-${randomUUID()}`

function post(world: JobWorld, path: string, { sub, key, raw = '{}' }: { sub: string; key: string; raw?: string }) {
  const headers = { 'idempotency-key': key, 'content-type': 'application/json' }
  return world.request<ShownJob>('POST', path, sub, { headers, raw })
}

function startOnce(world: JobWorld, sub: string, key = 'once'): Promise<TestResponse<ShownJob>> {
  return post(world, '/jobs', { sub, key, raw: `{"type":"report","input":${INPUT}}` })
}

function assertReplay(again: TestResponse, first: TestResponse): void {
  assert.equal(again.status, 202, again.text)
  assert.equal(again.text, first.text)
  assert.equal(again.headers.location, first.headers.location)
  assert.equal(again.headers['idempotency-replayed'], 'true')
}

function assertNew(again: TestResponse<ShownJob>, first: TestResponse<ShownJob>): void {
  assert.equal(again.status, 202, again.text)
  assert.notEqual(again.body.id, first.body.id)
  assert.equal(again.headers['idempotency-replayed'], undefined)
}

async function keptBytes({ service }: JobWorld, id: string): Promise<number> {
  const rows = await service.db.query<{ body: string }>(sql`
    select body from idempotency_keys where location = ${`/jobs/${id}`}`)
  return rows.reduce((sum, { body }) => sum + body.length, 0)
}

describe('the kept answer of a job', () => {
  forEachServiceAndVariant((under) => {
    const shared = sharedJobWorld(under)

    test('a kept answer does not store the input again, and a repeat gets the first answer byte for byte', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await startOnce(world, sub)
      assert.ok(first.text.includes(INPUT))
      assertReplay(await startOnce(world, sub), first)
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await world.stored(first.body.id)).status, 'completed')
      assertReplay(await startOnce(world, sub), first)
      const bytes = await keptBytes(world, first.body.id)
      assert.ok(bytes > 0 && bytes < 2_000, String(bytes))

      const path = `/jobs/${first.body.id}/retry`
      const retried = await post(world, path, { sub, key: 'retry' })
      assert.ok(retried.text.includes(INPUT))
      await world.quiet()
      await world.pass(RUN_MS)
      assertReplay(await post(world, path, { sub, key: 'retry' }), retried)
      assert.ok((await keptBytes(world, retried.body.id)) < 2_000)
      const raw = '{"type":"report","input":{}}'
      const reused = await post(world, '/jobs', { sub, key: 'once', raw })
      assertError(world.service, reused, { status: 422, code: 'idempotency_key_reused' })
    })

    test('following a job that has ended stores its output no second time', async () => {
      const world = await shared()
      const sub = newUser()
      const ids = await world.startElsewhere({ user_id: sub })
      const raw = JSON.stringify({ type: 'report', ...ids })
      const { body } = await post(world, '/jobs', { sub, key: 'first', raw })
      await world.quiet()
      await world.pass(RUN_MS)
      await world.get(body.id)
      const followed = await post(world, '/jobs', { sub, key: 'second', raw })
      assert.equal(followed.body.status, 'completed')
      assert.notEqual(followed.body.output, null)
      assertReplay(await post(world, '/jobs', { sub, key: 'second', raw }), followed)
      const stored = await world.service.db.query<{ body: string }>(sql`
        select body from idempotency_keys where principal = ${sub}`)
      for (const answer of stored) assert.equal(JSON.parse(answer.body).output, null)
    })

    test('the repeat of a turn whose input was replaced shows the new input', async () => {
      const world = await shared()
      const sub = newUser()
      const before = await world.start('pausing', { sub })
      await world.pass(RUN_MS)
      const raw = JSON.stringify({ type: 'pausing', input: { n: 1 }, continues: before.id, on_busy: 'enqueue' })
      const waiting = await post(world, '/jobs', { sub, key: 'turn', raw })
      assert.equal(waiting.status, 202, waiting.text)
      await world.request('PATCH', `/jobs/${waiting.body.id}`, sub, { body: { input: { n: 2 } } })
      const again = await post(world, '/jobs', { sub, key: 'turn', raw })
      assert.deepEqual(again.body, { ...waiting.body, input: { n: 2 } })
    })

    test('the key of a deleted job is free: the request starts a new job', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await startOnce(world, sub)
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await world.request('DELETE', `/jobs/${first.body.id}`, sub)).status, 204)
      assertNew(await startOnce(world, sub), first)
      await world.quiet()
    })

    test('the key of an erased job is free, also if an admin used it for the user', async () => {
      const world = await shared()
      const sub = newUser()
      const headers = { 'idempotency-key': randomUUID(), 'content-type': 'application/json' }
      const raw = `{"type":"report","created_by":${JSON.stringify(sub)},"input":${INPUT}}`
      const start = () => world.service.request<ShownJob>('POST', '/jobs', { token: world.admin, headers, raw })
      const first = await start()
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await world.service.request('DELETE', `/v1/users/${sub}`, { token: world.admin })).status, 202)
      await world.quiet()
      const [row] = await world.service.db.query<{ erased_at: number | null }>(sql`
        select erased_at from jobs where id = ${first.body.id}`)
      assert.notEqual(row?.erased_at ?? null, null)
      assertNew(await start(), first)
      await world.quiet()
    })
  })
})

describe('the kept answer of a job, where others commit meanwhile', () => {
  forEachService((under) => {
    // On SQLite no other connection commits while a transaction is open.
    if (under.engine.name === 'sqlite') return
    test('a repeat that meets the deletion of its job starts a new job', async () => {
      let between: (() => Promise<unknown>) | undefined
      const db = afterReading(await under.engine.openDatabase(), /from idempotency_keys\b/, async () => {
        const happens = between
        between = undefined
        await happens?.()
      })
      const world = await startJobWorld(under, { db })
      const sub = newUser()
      const first = await startOnce(world, sub)
      await world.quiet()
      await world.pass(RUN_MS)
      between = async () => {
        const deleted = await world.request('DELETE', `/jobs/${first.body.id}`, sub)
        assert.equal(deleted.status, 204, deleted.text)
      }
      assertNew(await startOnce(world, sub), first)
      assert.equal(between, undefined)
      await world.quiet()
    })
  })
})
