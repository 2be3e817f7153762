import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { toRfc3339 } from '../../src/core/clock.ts'
import type { Database, Queryable } from '../../src/db/database.ts'
import { Hold } from '../../src/http/admission/admission.ts'
import { ANSWER_BOUNDS } from '../../src/http/admission/byte-budget.ts'
import { INLINE_BYTES } from '../../src/jobs/job-row.ts'
import type { TestResponse } from '../support/http-client.ts'
import { GET_RUN, type JobWorld, RUN_MS, type ShownJob, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const MB = 1024 * 1024
const READERS = 10
/** Four times this is more than the share of a principal, so one reader at a time has room. */
const OUTPUT = 'x'.repeat(5 * MB)
/** Large, and less than the rest of the share while `holdUnread` holds most of it. */
const DOCUMENT = { text: 'x'.repeat(INLINE_BYTES + 1) }
const newUser = () => `user-${randomUUID()}`

/** The same database. Calls `onLoad` whenever a statement returns a large value. */
function observed(db: Database, onLoad: () => void): Database {
  const observe =
    (on: Queryable): Queryable['query'] =>
    async (statement) => {
      const rows = await on.query(statement)
      const isLarge = (value: unknown) => typeof value === 'string' && value.length > INLINE_BYTES
      if (rows.some((row) => Object.values(row).some(isLarge))) onLoad()
      return rows as never
    }
  const bound = <T extends object>(target: T, changes: Partial<T>): T =>
    new Proxy(target, {
      get: (_, name) => {
        const value = Reflect.get(name in changes ? changes : target, name) as unknown
        return typeof value === 'function' && !(name in changes) ? value.bind(target) : value
      },
    })
  return bound(db, {
    query: observe(db),
    transaction: (work, options) => db.transaction((tx) => work(bound(tx, { query: observe(tx) })), options),
  })
}

describe('answers with one large job', () => {
  forEachService((under) => {
    const start = async () => {
      const state = { onLoad: () => {} }
      const db = observed(await under.engine.openDatabase(), () => state.onLoad())
      const world = await startJobWorld(under, { db })
      const callerOf = (sub: string) => world.service.services.admission.callers.get(sub)
      return { world, state, callerOf }
    }
    const complete = async (world: JobWorld, { thread_id, run_id }: Pick<ShownJob, 'thread_id' | 'run_id'>) => {
      const end = { thread_id, run_id, status: 'success', values: { report: OUTPUT } }
      const { status, body } = await world.callback('report', end)
      assert.deepEqual([status, body.outcome], [200, 'applied'])
    }

    /** Reserves most of the caller's share of memory, as an answer does that the caller does not read. */
    const holdUnread = ({ service }: JobWorld, sub: string) => {
      const hold = new Hold(service.services.admission, { kind: 'read', urgency: 'ordinary' })
      hold.enterCaller(sub)
      hold.answer(15 * MB, { kind: 'principal', id: sub })
      return hold
    }

    test('many readers of an unfinished job that ends with a large output load it one after the other', async () => {
      const { world, state, callerOf } = await start()
      const sub = newUser()
      world.runtime.setFaults({ zombie: true })
      const job = await world.stored((await world.start('report', { sub })).id)
      world.runtime.setFaults({ hang_lookups: true })
      const asked = world.calls(GET_RUN)
      const reads = Array.from({ length: READERS }, () => world.request('GET', `/jobs/${job.id}`, sub))
      await until(() => callerOf(sub)?.counts.read === READERS && world.calls(GET_RUN) > asked)
      await complete(world, job)
      // Until all readers wait, none gets memory: one may not know yet that the job has ended.
      const unread = holdUnread(world, sub)
      /** For each load: the requests that may have the output in memory, and the bytes that they have reserved. */
      const loads: (readonly [number, number])[] = []
      state.onLoad = () => {
        const { counts, waiting, reservedBytes } = callerOf(sub) ?? assert.fail()
        loads.push([counts.read - waiting.length, reservedBytes])
      }
      world.runtime.setFaults({ hang_lookups: false })
      await until(() => callerOf(sub)?.waiting.length === READERS)
      unread.take()
      for (const { status, body } of await Promise.all(reads)) {
        assert.deepEqual([status, body.status, (body.output as string).length], [200, 'completed', OUTPUT.length])
      }
      assert.deepEqual(
        loads,
        loads.map(() => [1, ANSWER_BOUNDS.principal.callerBytes]),
      )
      assert.equal(loads.length, READERS)
      await until(() => world.service.services.admission.isEmpty)
    })

    /** A request whose answer has a large document, and how its user prepares it. */
    const REQUESTS: Record<string, (world: JobWorld, sub: string) => Promise<() => Promise<TestResponse<ShownJob>>>> = {
      'GET of an unfinished job': async (world, sub) => {
        const { id } = await world.start('report', { sub, input: DOCUMENT })
        return () => world.request('GET', `/jobs/${id}`, sub)
      },
      check: async (world, sub) => {
        const { id } = await world.start('report', { sub, input: DOCUMENT })
        return () => world.request('POST', `/jobs/${id}/check`, sub)
      },
      cancel: async (world, sub) => {
        const { id } = await world.start('report', { sub, input: DOCUMENT })
        return () => world.request('POST', `/jobs/${id}/cancel`, sub)
      },
      resume: async (world, sub) => {
        const { id } = await world.start('pausing', { sub, input: DOCUMENT })
        await world.pass(RUN_MS)
        return () => world.request('POST', `/jobs/${id}/resume`, sub, { body: { input: 'yes' } })
      },
      retry: async (world, sub) => {
        const { id } = await world.start('report', { sub, input: DOCUMENT })
        await world.pass(RUN_MS)
        return () => world.request('POST', `/jobs/${id}/retry`, sub)
      },
      'the new input of a turn that waits': async (world, sub) => {
        const run_at = toRfc3339(world.clock.now() + 60_000)
        const body = { type: 'report', input: DOCUMENT, run_at }
        const { id } = (await world.request('POST', '/jobs', sub, { body })).body
        return () => world.request('PATCH', `/jobs/${id}`, sub, { body: { input: {} } })
      },
      'a repeated start': async (world, sub) => {
        const body = { type: 'report', input: DOCUMENT }
        const create = () => world.request('POST', '/jobs', sub, { body, headers: { 'idempotency-key': 'once' } })
        assert.equal((await create()).status, 202)
        return create
      },
      'a run whose callback came first': async (world, sub) => {
        const ids = await world.startElsewhere({ user_id: sub })
        await world.callback('report', { ...ids, status: 'success', values: { report: DOCUMENT.text } })
        return () => world.request('POST', '/jobs', sub, { body: { type: 'report', ...ids } })
      },
    }
    for (const [name, prepare] of Object.entries(REQUESTS)) {
      test(`documents over 256 KB are loaded when their principal has room: ${name}`, async () => {
        const { world, state, callerOf } = await start()
        const sub = newUser()
        const ask = await prepare(world, sub)
        await world.quiet()
        const unread = holdUnread(world, sub)
        let loads = 0
        state.onLoad = () => {
          loads += 1
        }
        let isAnswered = false
        const asked = ask().finally(() => {
          isAnswered = true
        })
        await until(() => isAnswered || callerOf(sub)?.waiting.length === 1)
        assert.deepEqual([isAnswered, loads], [false, 0])
        unread.take()
        const { status, text } = await asked
        assert.ok(status === 200 || status === 202, text.slice(0, 200))
        assert.ok(loads > 0)
        await until(() => world.service.services.admission.isEmpty)
      })
    }
  })
})
