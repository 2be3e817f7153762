import { randomUUID } from 'node:crypto'
import { systemClock } from '../../src/core/clock.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import { HttpClient } from '../../test/support/http-client.ts'
import { nextRelease } from '../../test/support/next-release.ts'
import { psql, startPostgres } from '../../test/support/postgres.ts'
import { runProgram } from '../../test/support/program.ts'
import { settingsWith, sharedIssuer, startServe } from '../../test/support/served.ts'
import { seedHistory } from '../bench/growth/seed-history.ts'

const READER_MS = 15_000
const BEFORE_AND_AFTER_MS = 3_000
const MAX_OUTAGE_MS = 1_000
const SEEDING_TIMEOUT_MS = 3_600_000

/** One kind of request, and what became of it. */
interface Kind {
  name: string
  send(http: HttpClient, token: string): Promise<{ status: number }>
  answered: number
  failed: number
  slowestMs: number
  /** The longest time from the start of a failed request to the answer of the next one that did not fail. */
  longestOutageMs: number
}

/**
 * `npm run verify:upgrade -- [JOBS]`: a node serves requests on that many jobs (500,000) while the next release migrates
 * the database, and while another session reads all tables in one transaction, as `pg_dump` does. Fails if requests of
 * one kind fail for longer than a second, or if the migration is not made.
 */
const jobs = Number(process.argv[2] ?? 500_000)
const postgres = await startPostgres()
try {
  const DATABASE_URL = await postgres.createDatabase()
  await seed(DATABASE_URL)
  const served = await startServe({ settings: { DATABASE_URL, RATE_LIMIT_AUTHENTICATED: '1000000' } })
  const load = startLoad(served.url, (await sharedIssuer()).mint({ sub: 'owner-1', scopes: ['admin:*'] }))
  await systemClock.sleep(BEFORE_AND_AFTER_MS)

  const reader = await startReader(DATABASE_URL)
  const startedMs = performance.now()
  const settings = await settingsWith({ DATABASE_URL })
  const migrating = runProgram(['migrate'], { settings, main: nextRelease() })
  await systemClock.sleep(READER_MS)
  const isMadeEarly = (await psql(DATABASE_URL, `select to_regclass('colors')`)) !== ''
  await reader.close()
  const { code, output, errors } = await migrating
  const seconds = Math.round((performance.now() - startedMs) / 1_000)
  await systemClock.sleep(BEFORE_AND_AFTER_MS)
  const kinds = await load.stop()

  print(`| ${jobs} jobs | answered | failed | longest outage | slowest answer |`)
  print('|---|---|---|---|---|')
  for (const { name, answered, failed, longestOutageMs, slowestMs } of kinds) {
    print(`| ${name} | ${answered} | ${failed} | ${longestOutageMs} ms | ${slowestMs} ms |`)
  }
  print(
    `The migration ended with ${code} after ${seconds} s, ${READER_MS / 1_000} s of them beside the reader\n${output}`,
  )
  if (isMadeEarly) throw new Error('The reader did not keep the migration waiting')
  if (code !== 0) throw new Error(errors)
  if (kinds.some(({ longestOutageMs }) => longestOutageMs > MAX_OUTAGE_MS)) process.exitCode = 1
  await served.program.kill()
} finally {
  await postgres.stop()
}
process.exit()

async function seed(url: string): Promise<void> {
  const db = await openPostgres({ url, queryTimeoutMs: SEEDING_TIMEOUT_MS })
  await migrate(db)
  await seedHistory(db, jobs)
  await db.close()
}

/** Reads all tables in one transaction that stays open until it is closed. */
async function startReader(url: string): Promise<{ close(): Promise<void> }> {
  const db = await openPostgres({ url, queryTimeoutMs: SEEDING_TIMEOUT_MS })
  const [tables] = await db.query<{ names: string }>(
    sql`select string_agg(quote_ident(tablename), ', ') as names from pg_tables where schemaname = current_schema()`,
  )
  const reads = Promise.withResolvers<void>()
  const end = Promise.withResolvers<void>()
  const reading = db.transaction(async (tx) => {
    await tx.exec(`lock table ${tables?.names} in access share mode`)
    reads.resolve()
    await end.promise
  })
  await Promise.race([reads.promise, reading])
  return {
    close: async () => {
      end.resolve()
      await reading
      await db.close()
    },
  }
}

/** One client for each kind of request; each sends the next request when the last one was answered. */
function startLoad(url: string, token: string): { stop(): Promise<Kind[]> } {
  const kindOf = (name: string, send: Kind['send']): Kind => {
    return { name, send, answered: 0, failed: 0, slowestMs: 0, longestOutageMs: 0 }
  }
  const kinds = [
    kindOf('list of jobs', (http, token) => http.request('GET', '/jobs?limit=20', { token })),
    kindOf('new project', (http, token) => http.request('POST', '/v1/projects', { token, body: { name: 'x' } })),
    kindOf('list of projects', (http, token) => http.request('GET', '/v1/projects', { token })),
    kindOf('callback', (http) => {
      const body = { thread_id: randomUUID(), run_id: randomUUID(), status: 'error', error: 'x' }
      return http.request('POST', '/webhooks/agent', { body })
    }),
  ]
  const stopping = new AbortController()
  const clients = kinds.map(async (kind) => {
    const http = new HttpClient(url)
    let failingSinceMs: number | null = null
    while (!stopping.signal.aborted) {
      const sentMs = performance.now()
      const { status } = await kind.send(http, token).catch(() => ({ status: 0 }))
      const nowMs = performance.now()
      kind.answered += 1
      kind.slowestMs = Math.max(kind.slowestMs, Math.round(nowMs - sentMs))
      const isFailed = status < 200 || status > 299
      if (isFailed) kind.failed += 1
      failingSinceMs ??= isFailed ? sentMs : null
      if (failingSinceMs !== null)
        kind.longestOutageMs = Math.max(kind.longestOutageMs, Math.round(nowMs - failingSinceMs))
      if (!isFailed) failingSinceMs = null
    }
    http.close()
  })
  return {
    stop: async () => {
      stopping.abort()
      await Promise.all(clients)
      return kinds
    },
  }
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}
