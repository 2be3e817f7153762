import assert from 'node:assert/strict'
import { copyFileSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { firstIdAt } from '../../src/core/ids.ts'
import { buildNextIndex } from '../../src/db/build-indexes.ts'
import type { Database } from '../../src/db/database.ts'
import { MIGRATIONS, migrate } from '../../src/db/migrate.ts'
import { sql } from '../../src/db/sql.ts'
import type { Job, TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import { JOB_STATUSES, type JobStatus } from '../../src/jobs/job.ts'
import { deleteDevice } from '../../src/push/device-store.ts'
import { eraseDevicesAndNotifications } from '../../src/push/trim-notifications.ts'
import { forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { startTestService, VARIANTS } from '../support/service.ts'

const LAST_BEFORE = 13
const clock = new ManualClock()
const START_MS = clock.now() - 60_000

/** The migrations up to 0013, as the release before had them. */
async function migrateAsBefore(db: Database): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'migrations-'))
  try {
    for (const file of readdirSync(fileURLToPath(MIGRATIONS))) {
      if (Number(file.slice(0, 4)) <= LAST_BEFORE) copyFileSync(new URL(file, MIGRATIONS), join(folder, file))
    }
    await migrate(db, pathToFileURL(`${folder}/`))
    while ((await buildNextIndex(db, pathToFileURL(`${folder}/`))) !== 'done');
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

const idOf = (prefix: 'job' | 'cbk' | 'tml' | 'ntf', n: number, place: number) =>
  `${firstIdAt(prefix, START_MS + n)}${String(place).padStart(16, '0')}`
const uuidOf = (kind: number, n: number) => `00000000-0000-4000-8000-${kind}${String(n).padStart(11, '0')}`

/** Stores a job in this status, with all its records, as the previous release wrote them. */
async function storeAsBefore(db: Database, status: JobStatus, n: number): Promise<void> {
  const [id, at] = [idOf('job', n, 0), START_MS + n]
  const ended = ['completed', 'failed', 'cancelled'].includes(status)
  const watched = status === 'processing' || status === 'generating'
  const runId = status === 'processing' ? null : uuidOf(2, n)
  const output = status === 'completed' ? '{"n":12345678901234567890}' : null
  const settledBy = status === 'completed' ? 'sweep' : status === 'failed' ? 'callback' : null
  await db.query(sql`
    insert into jobs (id, type, status, input, output, error_code, error_message, created_by, thread_id, run_id, trace_id,
      settled_by, run_seq, start_attempts, interrupts, checked_at, next_check_at, check_attempts, deadline_at, created_at,
      started_at, finished_at, updated_at)
    values (${id}, 'agent', ${status}, '{"in":1}', ${output}, ${status === 'failed' ? 'run_failed' : null},
      ${status === 'failed' ? 'It failed' : null}, 'ada', ${uuidOf(1, n)}, ${runId}, ${`trace-${n}`}, ${settledBy}, 1, 1,
      ${status === 'awaiting_input' ? '[{"id":"q","value":"Publish it?"}]' : null}, ${at + 1},
      ${watched ? clock.now() + 3_600_000 : null}, 3, ${clock.now() + 86_400_000}, ${at}, ${at}, ${ended ? at + 2 : null}, ${at + 2})`)
  if (runId !== null) {
    await db.query(sql`insert into job_runs (run_id, job_id, run_seq, created_at) values (${runId}, ${id}, 1, ${at})`)
  }
  await db.query(sql`
    insert into callbacks (id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body)
    values (${idOf('cbk', n, 3)}, '/webhooks/agent', 'agent', ${id}, ${uuidOf(1, n)}, ${uuidOf(2, n)}, 'success',
      'deferred', ${at + 1}, '{"status":"success"}')`)
  const entries = [
    ['created', '{"type":"agent"}'],
    ['callback', `{"callback_id":"${idOf('cbk', n, 3)}","status":"success","outcome":"deferred"}`],
  ] as const
  for (const [place, [kind, detail]] of entries.entries()) {
    await db.query(sql`
      insert into job_timeline (id, job_id, at, kind, via, detail, times, last_at)
      values (${idOf('tml', n, place)}, ${id}, ${at}, ${kind}, null, ${detail}, 1, ${at})`)
  }
  await db.query(sql`
    insert into events (subject, job_id, type, cause, data, created_at)
    values ('ada', ${id}, 'job.created', ${`${id}:created`}, '{}', ${at})`)
  if (!ended) return
  await db.query(sql`
    insert into usage_records (job_id, subject, period, type, input_tokens, output_tokens, total_tokens, settled_at)
    values (${id}, 'ada', '2026-01', 'agent', 1, 2, 3, ${at})`)
  await db.query(sql`
    insert into notifications (id, cause, job_id, title, body, data, priority, ttl_seconds, dry_run, created_at)
    values (${idOf('ntf', n, 0)}, ${`${id}:1:${status}`}, ${id}, 'Done', 'Open it', '{}', 'high', 60, 0, ${at})`)
  await db.query(sql`
    insert into deliveries (notification_id, device_id, state, attempts, created_at, updated_at)
    values (${idOf('ntf', n, 0)}, 'dev_1', 'sent', 1, ${at}, ${at})`)
}

describe('a database of the release before', () => {
  forEachEngine((engine) => {
    for (const variant of VARIANTS) {
      test(`shows everything after its migration, as variant ${variant}`, async () => {
        const db = await (await engine.createStore()).connect()
        await migrateAsBefore(db)
        for (const [n, status] of JOB_STATUSES.entries()) await storeAsBefore(db, status, n)
        await migrate(db)
        while ((await buildNextIndex(db)) !== 'done');
        const service = await startTestService({ db, variant, clock })
        try {
          const headers = { authorization: `Bearer ${service.tokenFor({ sub: 'ada', scopes: ['admin:*'] })}` }
          const get = async <Body>(path: string) => {
            const { status, body } = await service.request<Body>('GET', path, { headers })
            assert.equal(status, 200, `${path}: ${JSON.stringify(body)}`)
            return body
          }
          for (const [n, status] of JOB_STATUSES.entries()) {
            const id = idOf('job', n, 0)
            const job = await get<Job>(`/jobs/${id}`)
            assert.deepEqual([job.id, job.status, job.created_by, job.trace_id], [id, status, 'ada', `trace-${n}`])
            assert.ok(job.reconcile.attempts >= 3, 'the checks before count')
            const list = await get<{ data: Job[] }>(`/jobs?status=${status}`)
            assert.deepEqual([status, ...list.data.map((one) => one.id)], [status, id])
            const { data } = await get<{ data: TimelineEntry[] }>(`/jobs/${id}/timeline?limit=100`)
            const kinds = data.map(({ kind }) => kind)
            assert.deepEqual([kinds[0], kinds.filter((kind) => kind === 'callback').length], ['created', 1])
            const callbacks = await get<{ data: { id: string }[] }>(`/v1/callbacks?job_id=${id}`)
            assert.deepEqual(
              callbacks.data.map((callback) => callback.id),
              [idOf('cbk', n, 3)],
            )
          }
          const ids = async (query: string) => (await get<{ data: Job[] }>(`/jobs?${query}`)).data.map(({ id }) => id)
          const placeOf = (status: JobStatus) => idOf('job', JOB_STATUSES.indexOf(status), 0)
          assert.deepEqual(await ids('error_code=run_failed'), [placeOf('failed')])
          assert.deepEqual(await ids('settled_by=sweep'), [placeOf('completed')])
          assert.deepEqual(await ids('settled_by=callback'), [placeOf('failed')])
          assert.deepEqual(await ids('created_by=ada&status=cancelled'), [placeOf('cancelled')])
          const counts = await get<{ counts: Record<string, number> }>('/v1/jobs/counts')
          for (const status of JOB_STATUSES) assert.equal(counts.counts[status], 1, status)
          const notification = await get<{ job_id: string }>(
            `/v1/notifications/${idOf('ntf', JOB_STATUSES.indexOf('completed'), 0)}`,
          )
          assert.equal(notification.job_id, placeOf('completed'))
        } finally {
          await service.close()
        }
      })
    }

    test('a notification that an admin sent before is erased with its user, also after its device was deleted', async () => {
      const db = await (await engine.createStore()).connect()
      await migrateAsBefore(db)
      const id = idOf('ntf', 0, 0)
      await db.query(sql`
        insert into notifications (id, cause, title, body, data, priority, ttl_seconds, dry_run, created_at)
        values (${id}, ${`api:${id}`}, 'Hello', 'Ada', '{}', 'high', 60, 0, ${START_MS})`)
      await db.query(sql`
        insert into devices (id, subject, token, token_hash, platform, created_at, last_seen_at)
        values ('dev_1', 'ada', 'token', 'hash', 'web', ${START_MS}, ${START_MS})`)
      await db.query(sql`
        insert into deliveries (notification_id, device_id, state, attempts, created_at, updated_at)
        values (${id}, 'dev_1', 'sent', 1, ${START_MS}, ${START_MS})`)
      await migrate(db)
      assert.equal(await deleteDevice(db, { id: 'dev_1', subject: 'ada' }), true)
      assert.equal(await db.transaction((tx) => eraseDevicesAndNotifications(tx, 'ada', 500)), false)
      assert.deepEqual(await db.query(sql`select id from notifications`), [])
    })
  })
})
