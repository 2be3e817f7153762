import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { openMigratedDatabase } from '../../src/cli/startup/open-database.ts'
import { parseConfig } from '../../src/config.ts'
import { firstIdAt } from '../../src/core/ids.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import { newJob } from '../../src/jobs/job-row.ts'
import { insertJob } from '../../src/jobs/job-store.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { freshFolder, type Settings } from '../support/program.ts'
import { type Served, settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

const JOBS = 2_000
const ERASED_JOBS = 1_000
/** The jobs of a user are erased within a second. If a busy machine kills the service too late, the next user is erased. */
const ERASED = ['erika', 'emil', 'edith', 'enzo']
const START_MS = 1_700_000_000_000
const TYPE = [...toJobTypes({ report: { assistant_id: 'report', output_key: 'report' } }).values()][0]

const COMMON: Settings = {
  WEBHOOK_SECRET: 'a-secret-of-the-runtime',
  // Nothing listens there: what is tested is which jobs exist, not their runs.
  RUNTIME_URL: 'http://127.0.0.1:9',
  RATE_LIMIT_AUTHENTICATED: '1000000',
  JOB_TYPES_FILE: fileURLToPath(new URL('../../job-types.json', import.meta.url)),
}

const ENGINES: { name: string; options: { skip: string | false }; home: () => Promise<Home> }[] = [
  {
    name: 'sqlite',
    options: { skip: false },
    home: async () => {
      const folder = freshFolder()
      return { folder, settings: { DATA_DIR: folder } }
    },
  },
  {
    name: 'postgres',
    options: needsPostgres(),
    home: async () => {
      const { url, drop } = await sharedMigratedDatabase()
      return { folder: freshFolder(), settings: { DATABASE_URL: url }, drop }
    },
  },
]

interface Home {
  folder: string
  settings: Settings
  drop?: () => Promise<void>
}

interface Operation {
  id: string
  state: string
  total: number
  done: number
  failed: number
}

async function withDatabase<Result>(home: Home, work: (db: Database) => Promise<Result>): Promise<Result> {
  const config = parseConfig(await settingsWith({ ...COMMON, ...home.settings }), () => '')
  const opened = await openMigratedDatabase(config.database)
  try {
    return await work(opened.db)
  } finally {
    await opened.close()
  }
}

async function seed(db: Database): Promise<void> {
  await addEndedJobs(db, { owner: 'ada', jobs: JOBS, suffix: '0'.repeat(16) })
}

async function seedErased(db: Database, { sub, n }: { sub: string; n: number }): Promise<void> {
  await addEndedJobs(db, { owner: sub, jobs: ERASED_JOBS, suffix: `${n + 1}`.repeat(16) })
  await db.query(sql`
    insert into users (sub, push_enabled, version, created_at, updated_at, last_seen_at)
    values (${sub}, 1, 1, ${START_MS}, ${START_MS}, ${START_MS})`)
}

async function addEndedJobs(
  db: Database,
  { owner, jobs, suffix }: { owner: string; jobs: number; suffix: string },
): Promise<void> {
  assert.ok(TYPE)
  for (let from = 0; from < jobs; from += 500) {
    await db.transaction(async (tx) => {
      for (let n = from; n < from + 500; n++) {
        const id = `${firstIdAt('job', START_MS + n)}${suffix}`
        const given = {
          id,
          input: `{"n":${n}}`,
          project_id: null,
          created_by: owner,
          thread_id: `${owner}-${n}`,
          run_id: `${owner}-run-${n}`,
        }
        const job = newJob(TYPE, given, START_MS + n)
        await insertJob(tx, { ...job, status: 'failed', error_code: 'run_lost', finished_at: START_MS + n + 1 })
      }
    })
  }
}

/** Waits for progress, not for a time: the machine may be slow. */
async function waitForEnd(read: () => Promise<Operation>): Promise<Operation> {
  for (;;) {
    const before = await read()
    if (before.state === 'done') return before
    await until(async () => {
      const now = await read()
      return now.done + now.failed > before.done + before.failed || now.state === 'done'
    })
  }
}

for (const { name, options, home } of ENGINES) {
  describe(`a bulk operation on ${name}`, options, () => {
    let place: Home
    before(async () => {
      place = await home()
      await withDatabase(place, seed)
    })
    after(() => place?.drop?.())

    test('a bulk operation that is killed in the middle continues, and each of 2,000 jobs is retried once', async () => {
      const token = (await sharedIssuer()).mint({ sub: 'root', scopes: ['admin:*'] })
      const start = () => startServe({ folder: place.folder, settings: { ...COMMON, ...place.settings } })
      const read = async (served: Served, id: string) =>
        (await served.request<Operation>('GET', `/v1/operations/${id}`, { token })).body

      const killed = await start()
      const body = { action: 'retry', filter: { status: 'failed', created_by: 'ada' } }
      const started = await killed.request<Operation>('POST', '/v1/operations', { token, body })
      assert.deepEqual([started.status, started.body.total], [202, JOBS], started.text)
      const { id } = started.body
      await until(async () => (await read(killed, id)).done > 0)
      await killed.program.kill()
      const left = await withDatabase(place, (db) =>
        db.query<{ position: number }>(sql`select position from operations where id = ${id}`),
      )
      assert.ok((left[0]?.position ?? JOBS) < JOBS, 'the process was killed before the operation ended')

      const again = await start()
      const done = await waitForEnd(() => read(again, id))
      assert.deepEqual([done.total, done.done, done.failed], [JOBS, JOBS, 0], JSON.stringify(done))
      await again.program.kill()
      const rows = await withDatabase(place, (db) =>
        db.query<{ retries: number; retried: number }>(sql`
          select count(*) as retries, count(distinct retry_of) as retried from jobs where retry_of is not null`),
      )
      assert.deepEqual(rows, [{ retries: JOBS, retried: JOBS }])
    })

    test('an erasure that is killed in the middle goes on, and nothing of the user is left', async (t) => {
      const token = (await sharedIssuer()).mint({ sub: 'root', scopes: ['admin:*'] })
      // The erasure ends once the runtime has deleted the user's threads.
      const runtime = await startAgentRuntime()
      t.after(() => runtime.close())
      const settings = { ...COMMON, ...place.settings, RUNTIME_URL: runtime.url }
      const start = () => startServe({ folder: place.folder, settings })
      const read = async (served: Served, id: string) =>
        (await served.request<Operation>('GET', `/v1/operations/${id}`, { token })).body
      const owned = (sub: string) =>
        withDatabase(place, async (db) => {
          const [row] = await db.query<{ jobs: number }>(
            sql`select count(*) as jobs from jobs where created_by = ${sub} and input is not null`,
          )
          return row?.jobs ?? 0
        })
      const killInTheMiddle = async (sub: string) => {
        const served = await start()
        const started = await served.request<Operation>('DELETE', `/v1/users/${sub}`, { token })
        assert.deepEqual([started.status, started.body.total], [202, ERASED_JOBS + 1], started.text)
        const { id } = started.body
        await until(async () => (await read(served, id)).done > 0)
        await served.program.kill()
        return { sub, id, left: await owned(sub) }
      }

      let killed = { sub: '', id: '', left: 0 }
      for (const [n, sub] of ERASED.entries()) {
        if (killed.left > 0) break
        await withDatabase(place, (db) => seedErased(db, { sub, n }))
        killed = await killInTheMiddle(sub)
      }
      const { sub, id, left } = killed
      assert.ok(left > 0 && left < ERASED_JOBS, `it was killed in the middle: ${left}`)

      const again = await start()
      const { total, done, failed } = await waitForEnd(() => read(again, id))
      // The threads of these jobs are not the service's own, so each is named as left.
      assert.deepEqual([total, done, failed], [2 * ERASED_JOBS + 1, ERASED_JOBS + 1, ERASED_JOBS])
      assert.equal((await again.request('GET', `/v1/users/${sub}`, { token })).status, 404)
      await again.program.kill()
      assert.equal(await owned(sub), 0)
    })
  })
}
