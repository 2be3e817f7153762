import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { IdGenerator } from '../../src/core/ids.ts'
import { type Log, silentLog } from '../../src/core/log.ts'
import { type Meter, silentMeter } from '../../src/core/metrics/meter.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { rowsOf } from '../../src/db/rows.ts'
import { sql } from '../../src/db/sql.ts'
import { insertCallbacks } from '../../src/jobs/callback-store.ts'
import { newJob } from '../../src/jobs/job-row.ts'
import { insertJob } from '../../src/jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { trimHistory } from '../../src/jobs/retention/trim-history.ts'
import { appendTimeline } from '../../src/jobs/settlement/timeline-store.ts'
import { trimNotifications } from '../../src/push/trim-notifications.ts'
import { forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'

const DAY_MS = 86_400_000
const RETENTION_DAYS = 30

interface Past {
  /** How long ago its callback, timeline entry and notification were written. */
  daysAgo: number
  /** Null for a job that has not ended. */
  endedDaysAgo: number | null
  /** How many of each entry. */
  entries?: number
  delivery?: { state: string; due?: boolean; ttlSeconds?: number }
}

function setUp(db: Database) {
  const clock = new ManualClock()
  const nowMs = clock.now()
  const random = systemRandom

  const addJob = async ({ daysAgo, endedDaysAgo, entries = 1, delivery }: Past): Promise<string> => {
    const atMs = nowMs - daysAgo * DAY_MS
    const ids = new IdGenerator({ now: () => atMs }, random)
    const type = BUILT_IN_JOB_TYPES.get('agent') as JobType
    const given = { id: ids.next('job'), input: '{}', project_id: null, created_by: 'ada', thread_id: 't', run_id: 'r' }
    const ended = endedDaysAgo === null ? null : nowMs - endedDaysAgo * DAY_MS
    const job = { ...newJob(type, given, atMs), finished_at: ended }
    await db.transaction(async (tx) => {
      await insertJob(tx, job)
      const common = { job_id: job.id, thread_id: 't', run_id: 'r', status: 'success', outcome: 'applied' as const }
      const each = Array.from({ length: entries })
      await insertCallbacks(
        tx,
        each.map(() => ({
          ...common,
          id: ids.next('cbk'),
          path: '/',
          type: 'agent',
          received_at: atMs,
          transition: null,
          body: '{}',
        })),
      )
      await appendTimeline(
        tx,
        each.map(() => ({ id: ids.next('tml'), job_id: job.id, at: atMs, kind: 'created', via: null, detail: '{}' })),
      )
      const notificationIds = each.map(() => ({ id: ids.next('ntf') }))
      const notifications = () => rowsOf(tx.engine, notificationIds, { id: 'text' })
      await tx.query(sql`
        insert into notifications (id, cause, job_id, title, body, data, priority, ttl_seconds, dry_run, created_at)
        select r.id, r.id, ${job.id}, '', '', '{}', 'high', ${delivery?.ttlSeconds ?? 60}, 0, ${atMs}
        from ${notifications()} as r where true`)
      if (!delivery) return
      await tx.query(sql`
        insert into deliveries (notification_id, device_id, state, attempts, next_attempt_at, created_at, updated_at)
        select r.id, 'one', ${delivery.state}, 1, ${delivery.due ? atMs : null}, ${atMs}, ${atMs}
        from ${notifications()} as r where true`)
      await tx.query(sql`
        insert into deliveries (notification_id, device_id, state, attempts, next_attempt_at, created_at, updated_at)
        select r.id, 'two', 'sent', 1, null, ${atMs}, ${atMs} from ${notifications()} as r where true`)
    })
    return job.id
  }

  const trim = (options: { log?: Log; meter?: Meter; signal?: AbortSignal } = {}) =>
    trimHistory(
      { db, clock, log: options.log ?? silentLog, meter: options.meter ?? silentMeter },
      { retentionDays: RETENTION_DAYS, signal: options.signal ?? new AbortController().signal },
    )
  return { addJob, trim, ids: new IdGenerator(clock, random) }
}

const KEPT_WHOLE = { callbacks: 1, timeline: 1, notifications: 1 }
const FORGOTTEN = { callbacks: 0, timeline: 0, notifications: 0 }

async function keptOf(db: Database, jobId: string) {
  const [row] = await db.query<{ callbacks: number; timeline: number; notifications: number }>(sql`select
    (select count(*) from callbacks where job_id = ${jobId}) as callbacks,
    (select count(*) from job_timeline where job_id = ${jobId}) as timeline,
    (select count(*) from notifications where job_id = ${jobId}) as notifications`)
  assert.equal((await db.query(sql`select id from jobs where id = ${jobId}`)).length, 1, 'the job itself stays')
  return row
}

async function deliveriesOf(db: Database, jobId: string): Promise<number> {
  const rows = await db.query(sql`
    select device_id from deliveries d join notifications n on n.id = d.notification_id where n.job_id = ${jobId}`)
  return rows.length
}

describe('the history of jobs', () => {
  forEachEngine((engine) => {
    test('the history of a job is deleted when both it and the end of the job are old enough, and not before', async () => {
      const db = await engine.openDatabase()
      const { addJob, trim } = setUp(db)
      const old = await addJob({ daysAgo: 32, endedDaysAgo: 31 })
      const endedLate = await addJob({ daysAgo: 32, endedDaysAgo: 29 })
      const unfinished = await addJob({ daysAgo: 400, endedDaysAgo: null })
      const heardLate = await addJob({ daysAgo: 29, endedDaysAgo: 31 })
      await trim()
      assert.deepEqual(await keptOf(db, old), FORGOTTEN)
      for (const id of [endedLate, unfinished, heardLate]) assert.deepEqual(await keptOf(db, id), KEPT_WHOLE)
    })

    test('a notification is kept with all its deliveries as long as one of them may still be sent', async () => {
      const db = await engine.openDatabase()
      const { addJob, trim } = setUp(db)
      const long = { daysAgo: 40, endedDaysAgo: 40 }
      const month = 28 * 86_400
      const pending = await addJob({ ...long, delivery: { state: 'pending', due: true } })
      const parked = await addJob({ ...long, delivery: { state: 'no_credentials', ttlSeconds: 2 * month } })
      const parkedTooLong = await addJob({ ...long, delivery: { state: 'no_credentials', ttlSeconds: month } })
      const sent = await addJob({ ...long, delivery: { state: 'sent' } })
      await trim()
      for (const id of [pending, parked]) {
        assert.deepEqual(await keptOf(db, id), { ...FORGOTTEN, notifications: 1 })
        assert.equal(await deliveriesOf(db, id), 2)
      }
      for (const id of [parkedTooLong, sent]) assert.deepEqual(await keptOf(db, id), FORGOTTEN)
      const [left] = await db.query<{ deliveries: number }>(sql`select count(*) as deliveries from deliveries`)
      assert.equal(left?.deliveries, 4)
    })

    test('a parked delivery that becomes due again meanwhile stays, and its notification with it', async () => {
      const db = await engine.openDatabase()
      const { addJob } = setUp(db)
      const taken = await addJob({ daysAgo: 40, endedDaysAgo: 40, delivery: { state: 'no_credentials' } })
      const sent = await addJob({ daysAgo: 40, endedDaysAgo: 40, delivery: { state: 'sent' } })
      const nowMs = new ManualClock().now()
      const range = { after: '', beforeMs: nowMs - RETENTION_DAYS * DAY_MS, nowMs, limit: 100 }
      const page = await trimNotifications(db, range, async (tx, jobIds) => {
        await tx.query(sql`update deliveries set next_attempt_at = ${nowMs} where state = 'no_credentials'`)
        return new Set(jobIds)
      })
      assert.equal(page?.trimmed, 1)
      assert.deepEqual(await keptOf(db, taken), KEPT_WHOLE)
      assert.equal(await deliveriesOf(db, taken), 1)
      assert.deepEqual(await keptOf(db, sent), { ...KEPT_WHOLE, notifications: 0 })
    })

    test('notifications without a job are deleted by their own age', async () => {
      const db = await engine.openDatabase()
      const { addJob, trim } = setUp(db)
      await addJob({ daysAgo: 31, endedDaysAgo: null, delivery: { state: 'sent' } })
      await addJob({ daysAgo: 29, endedDaysAgo: null, delivery: { state: 'sent' } })
      await db.query(sql`update notifications set job_id = null`)
      await trim()
      for (const [table, left] of [
        [sql`notifications`, 1],
        [sql`deliveries`, 2],
      ] as const) {
        assert.equal((await db.query(sql`select created_at from ${table}`)).length, left)
      }
    })

    test('old history is deleted completely, even behind many entries that stay, and the log and the metrics have the number', async () => {
      const db = await engine.openDatabase()
      const { addJob, trim } = setUp(db)
      const unfinished = await addJob({ daysAgo: 50, endedDaysAgo: null, entries: 450 })
      const ended = await addJob({ daysAgo: 40, endedDaysAgo: 40, entries: 401, delivery: { state: 'sent' } })
      const lines: unknown[] = []
      const counted: Record<string, number> = {}
      await trim({
        log: { ...silentLog, info: (fields, event) => lines.push([event, fields]) },
        meter: {
          ...silentMeter,
          count: (_name: string, labels?: Readonly<Record<string, string>>, by = 1) => {
            const kind = labels?.kind ?? ''
            counted[kind] = (counted[kind] ?? 0) + by
          },
        },
      })
      assert.deepEqual(await keptOf(db, ended), FORGOTTEN)
      assert.deepEqual(await keptOf(db, unfinished), { callbacks: 450, timeline: 450, notifications: 450 })
      const all = { callbacks: 401, timeline: 401, notifications: 401 }
      assert.deepEqual(lines, [['history.trimmed', all]])
      assert.deepEqual(counted, all)
      await trim({ log: { ...silentLog, info: () => assert.fail('there was nothing more to say') } })
    })

    test('a stop ends it after the page in progress', async () => {
      const db = await engine.openDatabase()
      const { addJob, trim } = setUp(db)
      const job = await addJob({ daysAgo: 40, endedDaysAgo: 40 })
      await trim({ signal: AbortSignal.abort() })
      assert.deepEqual(await keptOf(db, job), KEPT_WHOLE)
    })

    test('several nodes at once delete the same as one node, and none fails', async () => {
      const store = await engine.createStore()
      const dbs = await Promise.all([store.connect(), store.connect(), store.connect()])
      const [db] = dbs
      assert.ok(db)
      await migrate(db)
      const nodes = dbs.map(setUp)
      const job = await nodes[0]?.addJob({
        daysAgo: 40,
        endedDaysAgo: 40,
        entries: 401,
        delivery: { state: 'sent' },
      })
      await Promise.all(nodes.map(({ trim }) => trim()))
      assert.deepEqual(await keptOf(db, job ?? ''), FORGOTTEN)
      assert.deepEqual(await db.query(sql`select device_id from deliveries`), [])
    })
  })
})
