import assert from 'node:assert/strict'
import { afterEach, describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import { type Log, silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import { appendEvents, findHead, findPositionAt, readEvents, skipPositions } from '../../src/events/event-store.ts'
import type { OperationActions, SteppedAction } from '../../src/operations/bulk-actions.ts'
import { OperationRunner } from '../../src/operations/operation-runner.ts'
import { findOperation, insertOperation } from '../../src/operations/operation-store.ts'
import { recoverAction } from '../../src/operations/recover-webhooks.ts'
import { deleteDeliveriesOf, skipWebhookCursor } from '../../src/webhooks/delivery-store.ts'
import { countEndpointStates } from '../../src/webhooks/endpoint-store.ts'
import { trimWebhooks } from '../../src/webhooks/trim-webhooks.ts'
import { Backends, DOWN, OK } from '../support/backends.ts'
import { forEachEngine } from '../support/engines.ts'
import { until } from '../support/until.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const GONE = { ...DOWN, status: 410 }

describe('the sending of webhooks', () => {
  forEachEngine((engine) => {
    const opened: Backends[] = []
    let shared: Promise<Database> | undefined

    function engineDatabase(): Promise<Database> {
      shared ??= engine.openDatabase()
      return shared
    }

    async function open(log: Log = silentLog): Promise<Backends> {
      const db = await engineDatabase()
      for (const table of ['webhook_deliveries', 'webhook_endpoints', 'events', 'nodes']) {
        await db.transaction((tx) => tx.exec(`delete from ${table}`))
      }
      await db.query(sql`update webhook_cursor set position = 0`)
      await db.query(sql`update event_log set trimmed_seq = 0`)
      const backends = new Backends(db, log)
      opened.push(backends)
      return backends
    }
    afterEach(async () => {
      for (const backends of opened.splice(0)) await backends.close()
    })

    const idsOf = (backends: Backends, url?: string) =>
      backends.posted.filter((one) => url === undefined || one.url === url).map(({ headers }) => headers['webhook-id'])

    test('each event is delivered once to each endpoint, by two nodes at once', async () => {
      const backends = await open()
      await backends.start('a')
      await backends.start('b')
      await backends.addEndpoint()
      await backends.addEndpoint()
      await backends.addEndpoint({ event_types: '["project.deleted"]' })
      for (let n = 0; n < 5; n++) await backends.addEvents(50)
      await backends.quiet()
      while ((await backends.states()).pending) await backends.quiet()
      assert.deepEqual(await backends.states(), { sent: 500 })
      const sent = backends.posted.map(({ url, headers }) => `${url} ${headers['webhook-id']}`)
      assert.equal(new Set(sent).size, 500)
      assert.equal(sent.length, 500)
    })

    test('an event that commits after a later one is not lost at the cursor', async () => {
      const backends = await open()
      await backends.start()
      await backends.addEndpoint()
      await backends.quiet()
      const append = (cause: string) => ({
        subject: null,
        job_id: null,
        type: 'project.created' as const,
        cause,
        data: '{}',
        created_at: 0,
      })
      const held = Promise.withResolvers<void>()
      const begun = Promise.withResolvers<void>()
      // Not on the watched database: `quiet` must not wait for it.
      const slow = (await engineDatabase()).transaction(async (tx) => {
        await appendEvents(tx, [append('slow')])
        begun.resolve()
        // SQLite has one writer: there the other event comes later anyway.
        if (engine.name === 'postgres') await held.promise
      })
      await begun.promise
      if (engine.name === 'sqlite') await slow
      backends.watched.forget()
      await backends.db.transaction((tx) => appendEvents(tx, [append('fast')]))
      // The second transaction at the cursor began after the fast commit. The third one shows that the second one is over.
      while (backends.watched.count(/from webhook_cursor/) < 3) await backends.quiet()
      held.resolve()
      await slow
      await backends.pass(5_000, 1_000)
      assert.deepEqual(await backends.states(), { sent: 2 })
    })

    test('a node that stops between sending and marking: another one sends again with the same id', async () => {
      const backends = await open()
      const arrived = Promise.withResolvers<void>()
      const answered = Promise.withResolvers<typeof OK>()
      backends.answer = () => {
        arrived.resolve()
        return answered.promise
      }
      const stopped = await backends.start('a')
      await backends.addEndpoint()
      await backends.addEvents(1)
      await arrived.promise
      // The process of node a is gone: its lease is free, and what it would write comes too late.
      stopped.stopLeasing()
      await backends.db.query(sql`delete from nodes where id = 'a'`)
      backends.answer = () => DOWN
      await backends.start('b')
      await backends.quiet()
      assert.deepEqual(
        backends.posted.map(({ node }) => node),
        ['a', 'b'],
      )
      assert.equal(new Set(idsOf(backends)).size, 1)
      answered.resolve(OK)
      await backends.quiet()
      assert.deepEqual(await backends.states(), { pending: 1 }, 'a late mark changes nothing')
      backends.answer = () => OK
      // The attempt of the stopped node counts: this is the second pause.
      await backends.pass(5 * 60_000)
      assert.deepEqual(await backends.states(), { sent: 1 })
    })

    test('an endpoint that hangs delays no other, and has at most ten requests in progress', async () => {
      const backends = await open()
      const hanging = 'https://hangs.example.com/'
      backends.answer = async ({ url }) => {
        if (url !== hanging) return OK
        await backends.clock.sleep(15_000)
        throw new Error('no answer')
      }
      await backends.start()
      await backends.addEndpoint({ url: hanging })
      for (let n = 0; n < 5; n++) await backends.addEndpoint()
      const startMs = backends.clock.now()
      for (let n = 0; n < 3; n++) await backends.addEvents(40)
      while ((await backends.states()).sent !== 600) await backends.quiet()
      assert.equal(backends.clock.now(), startMs, 'no time has passed')
      assert.equal(idsOf(backends, hanging).length, 10)
      assert.deepEqual(await backends.states(), { pending: 120, sent: 600 })
    })

    test('endpoints of one host take turns on any port, also if there are more of them than slots', async () => {
      const backends = await open()
      backends.answer = async () => {
        await backends.clock.sleep(3_000)
        return OK
      }
      await backends.start()
      const urls = Array.from({ length: 20 }, (_, n) => `https://host.example.com:${8_000 + n}/`)
      for (const url of urls) await backends.addEndpoint({ url })
      await backends.addEvents(20)
      await backends.quiet()
      assert.equal(backends.posted.length, 10)
      await backends.pass(18_000, 3_000)
      const counts = urls.map((url) => idsOf(backends, url).length)
      assert.ok(Math.min(...counts) >= 3 && Math.max(...counts) <= 4, `posts of each endpoint: ${counts}`)
    })

    test('an endpoint that hangs leaves a slot to each other endpoint of its host', async () => {
      const backends = await open()
      const never = new Promise<never>(() => {})
      const hanging = 'https://host.example.com/hangs'
      backends.answer = ({ url }) => (url === hanging ? never : OK)
      await backends.start()
      await backends.addEndpoint({ url: hanging })
      const urls = ['https://host.example.com/one', 'https://host.example.com/two']
      for (const url of urls) await backends.addEndpoint({ url, event_types: '["project.updated"]' })
      await backends.addEvents(40)
      await backends.quiet()
      assert.equal(idsOf(backends, hanging).length, 5)
      await backends.addEvents(20, { type: 'project.updated' })
      // Without a further wake-up: the end of each request makes room for the next.
      for (let n = 0; n < 500 && (await backends.states()).sent !== 40; n++) {
        await new Promise(setImmediate)
        await backends.watched.idle()
      }
      assert.deepEqual(
        urls.map((url) => idsOf(backends, url).length),
        [20, 20],
      )
    })

    test('an endpoint that hangs leaves half of the slots of its host to a burst of another one', async () => {
      const backends = await open()
      const never = new Promise<never>(() => {})
      const [hanging, other] = ['https://host.example.com/hangs', 'https://host.example.com/other']
      backends.answer = async ({ url }) => {
        if (url === hanging) return never
        await backends.clock.sleep(1_000)
        return OK
      }
      await backends.start()
      await backends.addEndpoint({ url: hanging })
      await backends.addEndpoint({ url: other, event_types: '["project.updated"]' })
      await backends.addEvents(40)
      await backends.quiet()
      await backends.addEvents(20, { type: 'project.updated' })
      await backends.pass(4_000, 1_000)
      assert.deepEqual([idsOf(backends, hanging).length, (await backends.states()).sent], [5, 20])
    })

    for (const order of ['at once', 'one after the other'] as const) {
      test(`two endpoints of one host that hang, ${order}, do not delay a third one`, async () => {
        const backends = await open()
        const never = new Promise<never>(() => {})
        const hanging = ['https://host.example.com/one', 'https://host.example.com/two'] as const
        const third = 'https://host.example.com/three'
        backends.answer = ({ url }) => (url === third ? OK : never)
        await backends.start()
        const types = order === 'at once' ? ['project.created', 'project.created'] : ['project.created', 'job.created']
        for (const [at, url] of hanging.entries()) {
          await backends.addEndpoint({ url, event_types: JSON.stringify([types[at]]) })
        }
        await backends.addEndpoint({ url: third, event_types: '["project.updated"]' })
        await backends.addEvents(40)
        await backends.quiet()
        if (order !== 'at once') await backends.addEvents(40, { type: 'job.created' })
        await backends.quiet()
        const counts = hanging.map((url) => idsOf(backends, url).length)
        assert.deepEqual(counts, [5, 4])
        const startMs = backends.clock.now()
        for (let n = 1; n <= 3; n++) {
          await backends.addEvents(1, { type: 'project.updated' })
          await backends.quiet()
          assert.equal(idsOf(backends, third).length, n)
        }
        assert.equal(backends.clock.now(), startMs, 'no time has passed')
      })
    }

    test('a receiver that is down for days gets every event when it is back, and is disabled after five days', async () => {
      const backends = await open()
      await backends.start()
      const id = await backends.addEndpoint()
      backends.answer = () => DOWN
      await backends.addEvents(3)
      await backends.pass(20 * HOUR_MS)
      await backends.addEvents(2)
      await backends.pass(HOUR_MS)
      assert.equal((await backends.endpoint(id))?.disabled_at, null)
      backends.answer = () => OK
      await backends.pass(DAY_MS)
      assert.deepEqual(await backends.states(), { sent: 5 })
      assert.equal((await backends.endpoint(id))?.failing_since, null)

      backends.answer = () => DOWN
      for (let day = 0; day < 6; day++) {
        await backends.addEvents(1)
        await backends.pass(DAY_MS)
      }
      const endpoint = await backends.endpoint(id)
      assert.equal(endpoint?.disabled_reason, 'failing')
      const last = backends.posted.length
      await backends.addEvents(1)
      await backends.pass(DAY_MS)
      assert.equal(backends.posted.length, last, 'a disabled endpoint gets nothing')
      const [event] = await backends.db.query<{ count: number }>(
        sql`select count(*) as count from events where type = 'webhook.disabled'`,
      )
      assert.equal(event?.count, 1)
    })

    test('a success ends the time of failures, also if the endpoint did not fail when it was sent', async () => {
      const backends = await open()
      const answered = Promise.withResolvers<typeof OK>()
      let requests = 0
      backends.answer = () => (requests++ === 0 ? DOWN : answered.promise)
      await backends.start()
      const id = await backends.addEndpoint()
      await backends.addEvents(2)
      await backends.quiet()
      assert.notEqual((await backends.endpoint(id))?.failing_since, null)
      answered.resolve(OK)
      await backends.quiet()
      assert.equal((await backends.endpoint(id))?.failing_since, null)
    })

    for (const { answer, effect } of [
      { answer: GONE, effect: 'disables' },
      { answer: DOWN, effect: 'counts as a failure of' },
    ]) {
      test(`a late ${answer.status} of an earlier URL never ${effect} the endpoint at its new URL`, async () => {
        const backends = await open()
        const late = Promise.withResolvers<typeof OK>()
        const [earlier, later] = ['https://earlier.example.com/', 'https://later.example.com/']
        backends.answer = ({ url }) => (url === earlier ? late.promise : OK)
        await backends.start()
        const id = await backends.addEndpoint({ url: earlier })
        await backends.addEvents(1)
        await backends.quiet()
        await backends.db.query(sql`update webhook_endpoints set url = ${later} where id = ${id}`)
        late.resolve(answer)
        await backends.quiet()
        assert.equal(idsOf(backends, earlier).length, 1)
        const { disabled_at, failing_since } = (await backends.endpoint(id)) ?? {}
        assert.deepEqual({ disabled_at, failing_since }, { disabled_at: null, failing_since: null })
        await backends.addEvents(1)
        await backends.quiet()
        assert.equal(idsOf(backends, later).length, 1)
      })
    }

    test('a late success of an earlier URL does not hide the failures of the new one', async () => {
      const backends = await open()
      const late = Promise.withResolvers<typeof OK>()
      const [earlier, later] = ['https://earlier.example.com/', 'https://later.example.com/']
      backends.answer = ({ url }) => (url === earlier ? late.promise : DOWN)
      await backends.start()
      const id = await backends.addEndpoint({ url: earlier })
      await backends.addEvents(1)
      await backends.quiet()
      await backends.db.query(sql`update webhook_endpoints set url = ${later} where id = ${id}`)
      await backends.addEvents(1)
      await backends.quiet()
      assert.notEqual((await backends.endpoint(id))?.failing_since, null)
      late.resolve(OK)
      await backends.quiet()
      assert.deepEqual(await backends.states(), { pending: 1, sent: 1 })
      assert.notEqual((await backends.endpoint(id))?.failing_since, null)
    })

    test('a new endpoint gets only later events, and filters by job type and project', async () => {
      const backends = await open()
      await backends.start()
      await backends.addEvents(3)
      const [head] = await backends.db.query<{ seq: number }>(sql`select max(seq) as seq from events`)
      const after_seq = head?.seq ?? 0
      const events = '["job.failed","project.created","usage.threshold"]'
      await backends.addEndpoint({ url: 'https://all/', event_types: events, after_seq })
      await backends.addEndpoint({ url: 'https://type/', event_types: events, types: '["report"]', after_seq })
      await backends.addEndpoint({ url: 'https://project/', event_types: events, project_id: 'prj_1', after_seq })
      const job = { type: 'job.failed', job_id: 'job_1' } as const
      await backends.addEvents(1, { ...job, data: { type: 'report', project_id: null } })
      await backends.addEvents(1, { ...job, data: { type: 'summary', project_id: 'prj_1' } })
      await backends.addEvents(1, { data: { project_id: 'prj_2' } })
      await backends.addEvents(1, { type: 'usage.threshold', data: { sub: 'ada' } })
      await backends.quiet()
      const counts = ['all', 'type', 'project'].map((host) => idsOf(backends, `https://${host}/`).length)
      assert.deepEqual(counts, [4, 3, 2])
    })

    test('the deliveries of a deleted event are deleted; one whose event was trimmed expires', async () => {
      const backends = await open()
      backends.answer = () => DOWN
      await backends.start()
      await backends.addEndpoint()
      await backends.addEvents(2)
      await backends.quiet()
      const events = await backends.db.query<{ seq: number }>(sql`select seq from events order by seq`)
      await backends.db.transaction((tx) => deleteDeliveriesOf(tx, events.slice(0, 1)))
      await backends.db.query(sql`delete from events`)
      await backends.pass(5_000)
      assert.deepEqual(await backends.states(), { expired: 1 })
      const trim = (beforeMs: number) => trimWebhooks({ db: backends.db, log: silentLog }, { beforeMs, limit: 10 })
      assert.equal(await trim(backends.clock.now() - HOUR_MS), false)
      assert.deepEqual(await backends.states(), { expired: 1 })
      assert.equal(await trim(backends.clock.now()), true)
      assert.deepEqual(await backends.states(), {})
    })

    test('a delivery that expires is in the log, and counts as a missed event of its endpoint', async () => {
      const lines: object[] = []
      const log = { ...silentLog, warn: (fields: object, event: string) => void lines.push({ ...fields, event }) }
      const backends = await open(log)
      backends.answer = () => DOWN
      await backends.start()
      const id = await backends.addEndpoint()
      const other = await backends.addEndpoint({ event_types: '["project.updated"]' })
      await backends.addEvents(2)
      await backends.quiet()
      const events = await backends.db.query<{ seq: number }>(sql`select seq from events order by seq`)
      await backends.db.query(sql`delete from events`)
      await backends.pass(5_000)
      assert.deepEqual(await backends.states(), { expired: 2 })
      assert.equal((await backends.endpoint(id))?.missed, 2)
      assert.equal((await backends.endpoint(other))?.missed, 0)
      const reason = 'the event was deleted before it could be delivered'
      assert.deepEqual(
        lines,
        events.map(({ seq }) => ({
          endpointId: id,
          eventId: String(seq),
          attempts: 2,
          reason,
          event: 'webhook.failed',
        })),
      )
    })

    test('deliveries that wait for a disabled, deleted or failing endpoint do not keep others from being trimmed', async () => {
      const backends = await open()
      backends.answer = () => DOWN
      await backends.start()
      const off = await backends.addEndpoint()
      const deleted = await backends.addEndpoint()
      const failing = await backends.addEndpoint()
      await backends.addEvents(4)
      await backends.quiet()
      await backends.db.query(
        sql`update webhook_endpoints set disabled_at = 1, disabled_reason = 'admin' where id = ${off}`,
      )
      await backends.db.query(sql`delete from webhook_endpoints where id = ${deleted}`)
      backends.answer = () => OK
      const [last] = await backends.db.query<{ seq: number }>(sql`select max(seq) as seq from events`)
      await backends.addEndpoint({ after_seq: last?.seq ?? 0 })
      await backends.addEvents(3)
      await backends.quiet()
      assert.deepEqual(await backends.states(), { pending: 12, sent: 6 })
      const beforeMs = backends.clock.now() + 1
      const missing: object[] = []
      const log = { ...silentLog, error: (fields: object, event: string) => void missing.push({ ...fields, event }) }
      const trim = async () => {
        let batches = 0
        while (await trimWebhooks({ db: backends.db, log }, { beforeMs, limit: 2 })) batches++
        return batches
      }
      assert.equal(await trim(), 0, 'the events are still stored')
      await backends.db.query(sql`delete from events`)
      assert.equal(await trim(), 7)
      assert.deepEqual(await backends.states(), { pending: 4 })
      const kept = await backends.db.query(sql`select distinct endpoint_id from webhook_deliveries`)
      assert.deepEqual(kept, [{ endpoint_id: failing }])
      assert.equal(
        (await backends.endpoint(off))?.missed,
        4,
        'what waited for the disabled endpoint is not lost silently',
      )
      assert.equal((await backends.endpoint(failing))?.missed, 0)
      const line = { endpointId: off, count: 1, event: 'webhooks.events_missing' }
      assert.deepEqual(missing, [line, line, line, line])
    })

    test('endpoints are counted by state: one that an admin disabled does not count as disabled by failures', async () => {
      const backends = await open()
      assert.deepEqual(await countEndpointStates(backends.db), { ok: 0, failing: 0, disabled: 0, off: 0 })
      await backends.addEndpoint()
      await backends.addEndpoint({ failing_since: 1 })
      for (const disabled_reason of ['gone', 'failing', 'admin'] as const) {
        await backends.addEndpoint({ failing_since: 1, disabled_at: 2, disabled_reason })
      }
      assert.deepEqual(await countEndpointStates(backends.db), { ok: 1, failing: 1, disabled: 2, off: 1 })
    })

    test('a recovery whose endpoint is disabled meanwhile is cancelled, and counts only the positions it has read', async () => {
      const backends = await open()
      const { db, clock } = backends
      const { seq: from } = await findHead(db)
      await backends.addEvents(1_000)
      const { seq: to } = await findHead(db)
      const endpointId = await backends.addEndpoint()
      const recover = recoverAction({ db, clock })
      let steps = 0
      const disabling: SteppedAction = {
        transact: async (wanted, work) => {
          if (++steps === 2) await db.query(sql`update webhook_endpoints set disabled_at = 1 where id = ${endpointId}`)
          return recover.transact(wanted, work)
        },
      }
      const by = { actor: { kind: 'user', id: 'root' }, address: null, requestId: null } as const
      const objectIds = [`${endpointId} ${from} ${to}`]
      const operation = { id: 'opr_recover', action: 'recover', by, objectIds, total: to - from, atMs: 1 } as const
      await db.transaction((tx) => insertOperation(tx, operation))
      const actions = { recover: disabling } as unknown as OperationActions
      const runner = new OperationRunner({
        db,
        node: { id: 'n' },
        clock,
        random: systemRandom,
        log: silentLog,
        actions,
      })
      runner.wake()
      await until(async () => (await findOperation(db, operation.id))?.finished_at != null)
      await runner.close()
      const { state, total, position, failed } = (await findOperation(db, operation.id)) ?? {}
      assert.deepEqual([state, total, (position ?? 0) - (failed ?? 0), failed], ['cancelled', 1_001, 200, 1])
      assert.deepEqual(await backends.states(), { pending: 200 })
    })

    for (const [what, statement] of [
      ['its delivery', /join webhook_deliveries d/],
      ['its event', /from events where seq in/],
    ] as const) {
      test(`a webhook is sent soon after an error while ${what} was read, and no attempt is used up`, async () => {
        const backends = await open()
        let failures = 0
        const query: Database['query'] = async (wanted) => {
          if (statement.test(wanted.text) && failures++ === 0) throw new UnavailableError('the connection was lost')
          return backends.db.query(wanted)
        }
        await backends.start('a', { ...backends.db, query })
        const id = await backends.addEndpoint()
        await backends.addEvents(1)
        await backends.pass(5_000)
        assert.deepEqual(await backends.states(), { sent: 1 })
        const [delivery] = await backends.db.query(sql`
          select attempts from webhook_deliveries where endpoint_id = ${id}`)
        assert.deepEqual([delivery, failures], [{ attempts: 1 }, 2])
      })
    }

    const restore = (backends: Backends) =>
      backends.db.transaction(async (tx) => skipWebhookCursor(tx, await skipPositions(tx)))

    test('after a restore nothing is sent twice, and nothing counts as missing', async () => {
      const backends = await open()
      await backends.start()
      const id = await backends.addEndpoint()
      await backends.addEvents(2)
      await backends.quiet()
      await restore(backends)
      await backends.addEvents(1)
      await backends.quiet()
      assert.equal(backends.posted.length, 3)
      assert.equal((await backends.endpoint(id))?.missed, 0)
    })

    test('an endpoint that was created after the last event misses nothing by a restore', async () => {
      const backends = await open()
      await backends.start()
      await backends.addEvents(5)
      await backends.quiet()
      const id = await backends.addEndpoint({ after_seq: (await findHead(backends.db)).seq })
      await backends.addEndpoint({ disabled_at: 1, disabled_reason: 'admin' })
      await restore(backends)
      await backends.addEvents(1)
      await backends.quiet()
      assert.equal(backends.posted.length, 1)
      assert.equal((await backends.endpoint(id))?.missed, 0)
    })

    test('one full page of unread events is sent after a restore, and nothing counts as missing', async () => {
      const backends = await open()
      const id = await backends.addEndpoint({ after_seq: (await findHead(backends.db)).seq })
      await backends.addEvents(100)
      await restore(backends)
      await backends.start()
      while ((await backends.states()).sent !== 100) await backends.quiet()
      assert.equal((await backends.endpoint(id))?.missed, 0)
    })

    test('events from before a restore are found by their time', async () => {
      const backends = await open()
      await backends.addEvents(3)
      const [first] = await readEvents(backends.db, { after: 0, upTo: Number.MAX_SAFE_INTEGER, filter: {}, limit: 1 })
      const sinceMs = backends.clock.now() + HOUR_MS
      await backends.clock.leap(2 * HOUR_MS)
      await backends.addEvents(1)
      await restore(backends)
      assert.ok(first)
      assert.equal(await findPositionAt(backends.db, sinceMs - 2 * HOUR_MS), first.seq - 1)
      assert.equal(await findPositionAt(backends.db, sinceMs), first.seq + 2)
      await backends.db.query(sql`delete from events`)
      assert.equal(await findPositionAt(backends.db, sinceMs), (await findHead(backends.db)).newest)
    })
  })
})
