import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { firstIdAt } from '../../src/core/ids.ts'
import { buildNextIndex } from '../../src/db/build-indexes.ts'
import type { Database } from '../../src/db/database.ts'
import { isAmong, rowsOf } from '../../src/db/rows.ts'
import { sql } from '../../src/db/sql.ts'
import { type CallbackFilter, countCallbacks, findCallbackPage } from '../../src/jobs/callbacks/callback-list-store.ts'
import { findItemNotes } from '../../src/operations/operation-store.ts'
import { countMarks } from '../../src/push/outbox/delivery-list-store.ts'
import {
  type DeliveryFilter,
  type DeliveryPage,
  deliveryIdOf,
  findDeliveryPage,
} from '../../src/push/outbox/delivery-page.ts'
import { searchUsers } from '../../src/users/user-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { explaining } from '../support/explaining.ts'

const ROWS = 12_000
const START_MS = 1_700_000_000_000
const idOf = (prefix: 'cbk' | 'ntf' | 'dev', n: number) => `${firstIdAt(prefix, START_MS + n)}${'0'.repeat(16)}`
const range = (count: number) => Array.from({ length: count }, (_, n) => n)

/** Every thousandth row is rare. */
async function seed(db: Database): Promise<void> {
  const rows = range(ROWS).map((n) => ({
    callback: idOf('cbk', n),
    notification: idOf('ntf', n),
    device: idOf('dev', n % 100),
    job: `job-${n}`,
    type: n % 1_000 === 0 ? 'rare' : 'agent',
    outcome: n % 1_000 === 0 ? 'stale' : 'applied',
    state: n % 1_000 === 0 ? 'failed' : n % 1_000 === 500 ? 'pending' : 'sent',
    at: START_MS + n,
  }))
  const r = rowsOf(db.engine, rows, {
    callback: 'text',
    notification: 'text',
    device: 'text',
    job: 'text',
    type: 'text',
    outcome: 'text',
    state: 'text',
    at: 'bigint',
  })
  await db.query(sql`
    insert into jobs (id, type, status, thread_id, run_seq, check_attempts, deadline_at, created_at, updated_at)
    select job, type, 'completed', 't', 1, 0, at, at, at from ${r} as r`)
  await db.query(sql`
    insert into callbacks (id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body)
    select callback, '/webhooks/agent', type, job, 't', 'r', 'success', outcome, at, '{}' from ${r} as r`)
  await db.query(sql`
    insert into notifications (id, cause, job_id, title, body, data, priority, ttl_seconds, dry_run, created_at)
    select notification, job || ':1:completed', job, '', '', '{}', 'high', 60, 0, at from ${r} as r`)
  await db.query(sql`
    insert into deliveries (notification_id, device_id, state, attempts, next_attempt_at, created_at, updated_at)
    select notification, device, state, 1, case when state = 'pending' then at end, at, at from ${r} as r`)
  for (const n of range(100)) {
    await db.query(sql`
      insert into devices (id, subject, token, token_hash, platform, provider, created_at, last_seen_at)
      values (${idOf('dev', n)}, ${`user-${n % 50}`}, ${`token-${n}`}, ${`hash-${n}`}, 'web', 'fcm', 0, 0)`)
  }
  const users = rowsOf(
    db.engine,
    range(ROWS).map((n) => ({ sub: `sub-${n}`, email: `person-${n}@example.com` })),
    { sub: 'text', email: 'text' },
  )
  await db.query(sql`
    insert into users (sub, email, push_enabled, version, created_at, updated_at, last_seen_at)
    select sub, email, 1, 1, 0, 0, 0 from ${users} as r`)
  await addOperations(db)
  while ((await buildNextIndex(db)) !== 'done');
  if (db.engine === 'postgres') await db.query(sql`analyze`)
  else await db.transaction((tx) => tx.exec('analyze'))
}

/** More than a page of operations has. */
const OPERATIONS = 101
const operationIdOf = (n: number) => `opr_${String(n).padStart(3, '0')}`

/** Operations with 1,000 items each. All items of every second one failed, of the others every 500th. */
async function addOperations(db: Database): Promise<void> {
  const operations = rowsOf(
    db.engine,
    range(OPERATIONS).map((n) => ({ id: operationIdOf(n), every: n % 2 === 0 ? 1 : 500 })),
    { id: 'text', every: 'bigint' },
  )
  await db.query(sql`
    insert into operation_items (operation_id, place, object_id, error)
    with recursive places (place) as (select 1 union all select place + 1 from places where place < 1000)
    select o.id, place, 'job-' || place, case when place % o.every = 0 then 'It failed' end
    from ${operations} as o cross join places`)
}

const BUSY = idOf('dev', 1_000)
const CALM = idOf('dev', 1_001)
const deliveryTo = (device_id: string, n: number) => ({ notification_id: idOf('ntf', n), device_id })
const WANTED = [
  deliveryTo(BUSY, 11_900),
  deliveryTo(BUSY, 9_500),
  // Older than the last row that the first page may read of the other device.
  deliveryTo(CALM, 9_499),
  deliveryTo(CALM, 4_000),
  deliveryTo(BUSY, 3_999),
  deliveryTo(BUSY, 1),
]

/** A user with two devices. One got every notification, the other got two. So many wait that a list cannot read them all. */
async function addBusyUser(db: Database): Promise<void> {
  for (const id of [BUSY, CALM]) {
    await db.query(sql`
      insert into devices (id, subject, token, token_hash, platform, provider, created_at, last_seen_at)
      values (${id}, 'user-busy', ${id}, ${id}, 'web', 'fcm', 0, 0)`)
  }
  const ofCalm = WANTED.filter(({ device_id }) => device_id === CALM).map(({ notification_id }) => notification_id)
  const isOfCalm = isAmong(db.engine, sql`id`, ofCalm)
  for (const { id, where } of [
    { id: BUSY, where: sql`1 = 1` },
    { id: CALM, where: isOfCalm },
  ]) {
    await db.query(sql`
      insert into deliveries (notification_id, device_id, state, attempts, next_attempt_at, created_at, updated_at)
      select id, ${id}, 'expired', 1, 1, 0, 0 from notifications where ${where}`)
  }
}

const CALLBACKS: { filter: CallbackFilter; index: string | null; found: number }[] = [
  { filter: {}, index: null, found: 20 },
  { filter: { jobId: 'job-77' }, index: 'callbacks_by_job', found: 1 },
  { filter: { outcome: 'stale' }, index: 'callbacks_by_outcome', found: 12 },
  { filter: { type: 'rare' }, index: 'jobs_by_type', found: 12 },
  { filter: { type: 'rare', outcome: 'applied' }, index: 'callbacks_by_job', found: 0 },
  { filter: { type: 'agent' }, index: 'jobs_by_type', found: 20 },
  { filter: { receivedAfterMs: START_MS + 10, receivedBeforeMs: START_MS + 15 }, index: null, found: 4 },
]

const DELIVERIES: { filter: DeliveryFilter; index: string; found: number }[] = [
  { filter: {}, index: 'deliveries', found: 20 },
  { filter: { state: 'failed' }, index: 'deliveries_by_rare_state', found: 12 },
  { filter: { state: 'pending' }, index: 'deliveries_due', found: 12 },
  { filter: { user: 'user-7' }, index: 'deliveries_by_device', found: 20 },
  { filter: { user: 'user-0', state: 'failed' }, index: 'deliveries_by_device', found: 12 },
  { filter: { user: 'user-7', state: 'sent' }, index: 'deliveries_by_device', found: 20 },
  { filter: { user: 'user-0', state: 'pending' }, index: 'deliveries_due', found: 12 },
  { filter: { job: 'job-77' }, index: 'notifications_cause_key|sqlite_autoindex_notifications_2', found: 1 },
  { filter: { device: idOf('dev', 7) }, index: 'deliveries_by_device', found: 20 },
  { filter: { device: idOf('dev', 0), state: 'failed' }, index: 'deliveries_by_device', found: 12 },
  { filter: { device: idOf('dev', 7), user: 'user-8' }, index: '', found: 0 },
  { filter: { notification: idOf('ntf', 77) }, index: 'deliveries', found: 1 },
  { filter: { notification: idOf('ntf', 77), device: idOf('dev', 77) }, index: 'deliveries', found: 1 },
  { filter: { notification: idOf('ntf', 77), device: idOf('dev', 78) }, index: 'deliveries', found: 0 },
  { filter: { notification: idOf('ntf', 77), state: 'sent' }, index: 'deliveries', found: 1 },
  { filter: { notification: idOf('ntf', 77), state: 'failed' }, index: 'deliveries', found: 0 },
  { filter: { notification: idOf('ntf', 78), job: 'job-77' }, index: 'notifications', found: 0 },
  {
    filter: { job: 'job-77', user: 'user-1' },
    index: 'notifications_cause_key|sqlite_autoindex_notifications_2',
    found: 0,
  },
]

const WHOLE_TABLE = /Seq Scan on (?:deliveries|notifications)|SCAN (?:deliveries|d|n)\b(?! USING)/

describe('a list for operators', () => {
  forEachEngine((engine) => {
    let db: Database
    before(async () => {
      db = await engine.openDatabase({ waitsLong: true })
      await seed(db)
    })
    const first = { limit: 20, after: null }

    for (const { filter, index, found } of CALLBACKS) {
      test(`a list for operators reads an index for callbacks by ${Object.keys(filter).join(' and ') || 'no filter'}`, async () => {
        const plans: string[] = []
        const page = await findCallbackPage(explaining(db, plans), { filter, bodies: false }, first)
        assert.equal(page.rows.length, found)
        if (index !== null) assert.match(plans.join('\n'), new RegExp(`\\b${index}\\b`))
        assert.doesNotMatch(plans.join('\n'), /Seq Scan on callbacks|SCAN callbacks(?! USING)/)
      })
    }

    for (const { filter, index, found } of DELIVERIES) {
      test(`a list for operators reads an index for deliveries by ${Object.keys(filter).join(' and ') || 'no filter'}`, async () => {
        const plans: string[] = []
        const page = await findDeliveryPage(explaining(db, plans), filter, first)
        assert.equal(page.rows.length > 20 ? 20 : page.rows.length, found)
        assert.match(plans.join('\n'), new RegExp(index))
        // On SQLite the table is sorted by its key, so that the newest rows are read by a scan.
        const isSorted = engine.name === 'sqlite' && Object.keys(filter).length === 0
        assert.doesNotMatch(plans.join('\n'), isSorted ? /SCAN [dn]\b(?! USING)/ : WHOLE_TABLE)
      })
    }

    for (const { text, found } of [
      { text: 'sub-777', found: 11 },
      { text: 'person-777', found: 11 },
      { text: 'unknown', found: 0 },
    ]) {
      test(`a list for operators reads the indexes for users that begin with ${text}`, async () => {
        const plans: string[] = []
        assert.equal((await searchUsers(explaining(db, plans), { ...first, text })).length, found)
        assert.equal(plans.length, 2)
        for (const plan of plans) assert.doesNotMatch(plan, /Seq Scan on users|SCAN users|Sort Key|TEMP B-TREE/)
      })
    }

    test('the failures of operations are read one operation at a time, from an index of failed items', async () => {
      const plans: string[] = []
      const ids = range(OPERATIONS).map(operationIdOf)
      const found = await findItemNotes(explaining(db, plans), ids, { kind: 'failed', limit: 3 })
      assert.deepEqual(
        Map.groupBy(found, ({ operation_id }) => operation_id),
        new Map(
          ids.map((operation_id, n) => {
            const places = n % 2 === 0 ? [1, 2, 3] : [500, 1_000]
            return [operation_id, places.map((at) => ({ operation_id, object_id: `job-${at}`, note: 'It failed' }))]
          }),
        ),
      )
      const [plan = ''] = plans
      assert.equal(plan.match(/\b(?:Scan using|USING INDEX) operation_items_failed\b/g)?.length, OPERATIONS)
      assert.doesNotMatch(plan, /Seq Scan|SCAN operation_items|operation_items_pkey|sqlite_autoindex_operation_items/)
      assert.deepEqual(await findItemNotes(db, [], { kind: 'failed', limit: 3 }), [])
    })

    test('pages of deliveries follow each other without a gap, for no filter, for a user and for the common state', async () => {
      for (const filter of [{}, { user: 'user-7' }, { state: 'sent' as const, user: 'user-7' }]) {
        const one = await findDeliveryPage(db, filter, { limit: 5, after: null })
        assert.ok(one.hasMore)
        const last = one.rows[4]
        assert.ok(last)
        const two = await findDeliveryPage(db, filter, { limit: 5, after: [deliveryIdOf(last)] })
        const both = await findDeliveryPage(db, filter, { limit: 10, after: null })
        const ids = (rows: typeof one.rows) => rows.map(deliveryIdOf)
        assert.deepEqual([...ids(one.rows.slice(0, 5)), ...ids(two.rows.slice(0, 5))], ids(both.rows.slice(0, 10)))
      }
    })

    test('the newest of more pending deliveries than a page may read are found first', async () => {
      await db.query(sql`update deliveries set state = 'pending', next_attempt_at = 1 where state = 'sent'`)
      const page = await findDeliveryPage(db, { state: 'pending' }, { limit: 5, after: null })
      assert.deepEqual([page.rows[0]?.notification_id, page.hasMore], [idOf('ntf', ROWS - 1), true])
      await db.query(sql`update deliveries set state = 'sent', next_attempt_at = null where state = 'pending'`)
    })

    test('a state that few of the newest have ends a page early, and the next one goes on', async () => {
      await db.query(sql`update deliveries set state = 'expired' where state = 'sent'`)
      await db.query(sql`update deliveries set state = 'sent' where notification_id = ${idOf('ntf', 1)}`)
      let pages = 0
      let found = 0
      for (let after: readonly [string] | null = null; ; pages++) {
        const page: DeliveryPage = await findDeliveryPage(db, { state: 'sent' }, { limit: 5, after })
        found += page.rows.length
        if (!page.hasMore) break
        assert.ok(page.lastRead)
        after = page.lastRead
      }
      assert.deepEqual([pages, found], [2, 1])
    })

    test('a state that few deliveries of a user have ends a page early, and the next one goes on', async () => {
      await addBusyUser(db)
      for (const state of ['sent', 'failed', 'pending'] as const) {
        for (const { notification_id, device_id } of WANTED) {
          await db.query(sql`
            update deliveries set state = ${state} where notification_id = ${notification_id} and device_id = ${device_id}`)
        }
        const pages: DeliveryPage[] = []
        for (let after: readonly [string] | null = null; ; ) {
          const page: DeliveryPage = await findDeliveryPage(db, { user: 'user-busy', state }, { limit: 5, after })
          pages.push(page)
          if (!page.hasMore) break
          assert.ok(page.lastRead)
          after = page.lastRead
        }
        const ids = WANTED.map(deliveryIdOf)
        assert.deepEqual(
          pages.map(({ rows }) => rows.map(deliveryIdOf)),
          [ids.slice(0, 2), ids.slice(2, 3), [], ids.slice(3, 5), ids.slice(5)],
        )
        // Each of the two devices may use half of the 5,000 rows.
        const bounds = [9_500, 7_000, 4_500, 2_000].map((n) => [deliveryIdOf(deliveryTo(BUSY, n))])
        assert.deepEqual(
          pages.map(({ lastRead }) => lastRead),
          [...bounds, undefined],
        )
      }
    })

    test('counts by minute read an index', async () => {
      const plans: string[] = []
      const on = explaining(db, plans)
      const callbacks = await countCallbacks(on, { fromMs: START_MS, toMs: START_MS + 100 })
      const marks = await countMarks(on, { fromMs: START_MS, toMs: START_MS + 100 })
      const sum = (rows: { count: number }[]) => rows.reduce((total, { count }) => total + count, 0)
      assert.deepEqual([sum(callbacks), sum(marks)], [100, 100])
      assert.match(plans[1] ?? '', /deliveries_by_change/)
      assert.doesNotMatch(plans.join('\n'), /Seq Scan|SCAN (callbacks|deliveries)(?! USING)/)
    })
  })
})
