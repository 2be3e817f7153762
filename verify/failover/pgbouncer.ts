import { chmodSync, chownSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { systemClock } from '../../src/core/clock.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import { psql, serverUser, startPostgres } from '../../test/support/postgres.ts'
import { freePort } from '../../test/support/server-process.ts'
import { ClientLoad } from './client-load.ts'
import type { FailoverFigures, Scene } from './scene.ts'

const LOAD_MS = 15_000
const SERVER_CONNECTIONS = 8
/** What PgBouncer cannot pass on, the role brings. */
const ROLE_SETTINGS = [
  "statement_timeout = '8s'",
  "lock_timeout = '2s'",
  "idle_in_transaction_session_timeout = '20s'",
  "default_transaction_isolation = 'read committed'",
  'enable_hashjoin = off',
  'enable_mergejoin = off',
  'enable_material = off',
]

/** Two nodes with 36 connections between them, on PgBouncer in transaction mode with 8 connections of the server. */
export async function throughPgbouncer(scene: Scene): Promise<FailoverFigures> {
  const postgres = await startPostgres()
  scene.onClose(() => postgres.stop())
  const direct = new URL(await postgres.createDatabase())
  const port = await freePort()
  await scene.startServer('pgbouncer', (folder) => {
    const user = serverUser()
    const file = join(folder, 'pgbouncer.ini')
    writeFileSync(
      file,
      `[databases]
* = host=127.0.0.1 port=${direct.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = trust
auth_file = ${folder}/users.txt
pool_mode = transaction
default_pool_size = ${SERVER_CONNECTIONS}
max_client_conn = 200
ignore_startup_parameters = options,statement_timeout,lock_timeout,idle_in_transaction_session_timeout,extra_float_digits
`,
    )
    writeFileSync(join(folder, 'users.txt'), '"postgres" ""\n')
    if (user) chownSync(folder, user.uid, user.gid)
    chmodSync(folder, 0o755)
    return { args: [file], ready: /process up/, stopSignal: 'SIGINT', user }
  })
  const pooled = new URL(direct.href)
  pooled.port = String(port)
  const refusal = await startWithoutRoleSettings(pooled.href, direct.href)
  for (const setting of ROLE_SETTINGS) await psql(direct.href, `alter role postgres set ${setting}`)
  const { identity, balancer } = await scene.startBalancedNodes({
    DATABASE_URL: pooled.href,
    DATABASE_PREPARED: 'off',
  })
  const load = new ClientLoad(balancer.url, identity)
  await systemClock.sleep(LOAD_MS)
  const mine = `datname = '${direct.pathname.slice(1)}' and application_name = 'project-api'`
  const used = await psql(direct.href, `select count(*) from pg_stat_activity where ${mine}`)
  await load.stop()
  const { lost, unfinished } = await load.audit()
  const level = await levelOfStatements(pooled.href)
  return [
    ['start while the role has the level serializable', refusal],
    ['isolation level of single statements', level],
    ['connections of the server', used],
    ['requests answered', load.answered],
    ['requests dropped or refused', load.failed],
    ...[...load.refusals].map(([why, count]): FailoverFigures[number] => [`  ${why}`, count]),
    ['acknowledged changes', load.acknowledged.length],
    ['of them lost', lost],
    ['jobs that did not end', unfinished],
  ]
}

const openPooled = (url: string) => openPostgres({ url, prepared: false })

/** PgBouncer ignores the isolation level that the service asks for, so that the role's counts: the service must notice. */
async function startWithoutRoleSettings(pooled: string, direct: string): Promise<string> {
  await psql(direct, "alter role postgres set default_transaction_isolation = 'serializable'")
  const outcome = await openPooled(pooled).then(
    async (db) => {
      await db.close()
      throw new Error('The service started with the isolation level serializable')
    },
    (error: Error) => error.message,
  )
  // PgBouncer keeps its connections, with the settings that the role had.
  await psql(direct, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'project-api'")
  return outcome
}

/** Of several at a time, so that more than one connection of the server is asked. */
async function levelOfStatements(url: string): Promise<string> {
  const db = await openPooled(url)
  const level = sql`select current_setting('transaction_isolation') as level`
  const found = await Promise.all(Array.from({ length: 20 }, () => db.query<{ level: string }>(level)))
  await db.close()
  return [...new Set(found.flat().map((row) => row.level))].join(', ')
}
