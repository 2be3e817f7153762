import assert from 'node:assert/strict'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, test } from 'node:test'
import { psql } from '../support/postgres.ts'
import { freshFolder, runProgram, type Settings } from '../support/program.ts'
import { settingsWith } from '../support/served.ts'
import { needsPostgres, sharedPostgresDatabase } from '../support/services.ts'

const CONFIG = 78
const UNAVAILABLE = 69
const SENTENCE =
  'An earlier version, from before 1.0, made this database, and it cannot be updated: use an empty database, or that version'

/** A database as versions before the baseline left it: with other migrations, and a row. */
const EARLIER = `
  create table schema_migrations (version integer primary key, name text not null, checksum text not null,
    applied_at bigint not null);
  insert into schema_migrations values (1, '0001_foundation', 'c0ffee', 1), (37, '0037_replica_identity', 'decaf', 1);
  create table nodes (id text primary key, started_at bigint not null, expires_at bigint not null);
  insert into nodes values ('stopped', 1, 2);
  create table projects (id text primary key, name text not null);
  insert into projects values ('prj_1', 'kept');`

async function checkRefused(args: string[], settings: Settings): Promise<void> {
  const { code, output, errors } = await runProgram(args, { settings: await settingsWith(settings) })
  assert.deepEqual([args[0], code, output, errors], [args[0], CONFIG, '', `${SENTENCE}\n`])
}

async function checkDoctor(settings: Settings): Promise<void> {
  const { code, output } = await runProgram(['doctor'], { settings: await settingsWith(settings) })
  assert.equal(code, UNAVAILABLE)
  assert.match(output, /^FAIL +database +An earlier version, from before 1\.0, made this database/m)
}

describe('a database of an earlier version', { concurrency: 2 }, () => {
  test('every command on SQLite refuses an earlier database, also as a backup, and does not change it', async () => {
    const DATA_DIR = freshFolder()
    const file = join(DATA_DIR, 'project-api.db')
    const earlier = new DatabaseSync(file)
    earlier.exec(EARLIER)
    earlier.close()
    for (const args of [['serve'], ['migrate'], ['keys', 'list'], ['copy', '--to', 'postgres://127.0.0.1/none']])
      await checkRefused(args, { DATA_DIR })
    await checkDoctor({ DATA_DIR })
    await checkRefused(['restore', file], { DATA_DIR: freshFolder() })
    const after = new DatabaseSync(file, { readOnly: true })
    const rows = ['projects', 'nodes', 'schema_migrations'].flatMap((table) =>
      after.prepare(`select * from ${table}`).all(),
    )
    const tables = after.prepare(`select name from sqlite_schema where type = 'table' order by name`).all()
    after.close()
    assert.deepEqual(
      rows.map((row) => Object.values(row)[0]),
      ['prj_1', 'stopped', 1, 37],
    )
    assert.deepEqual(
      tables.map(({ name }) => name),
      ['nodes', 'projects', 'schema_migrations'],
    )
  })

  test('every command on PostgreSQL refuses an earlier database, and does not change it', needsPostgres(), async () => {
    const { url: DATABASE_URL, drop } = await sharedPostgresDatabase()
    await psql(DATABASE_URL, EARLIER)
    const commands = [
      ['serve'],
      ['migrate'],
      ['keys', 'list'],
      ['copy', '--to', freshFolder()],
      ['restore', '--finish'],
    ]
    await Promise.all(commands.map((args) => checkRefused(args, { DATABASE_URL })))
    await checkDoctor({ DATABASE_URL })
    const rows = `select id from projects union all select id from nodes union all
      select version::text from schema_migrations order by 1`
    assert.deepEqual((await psql(DATABASE_URL, rows)).split('\n'), ['1', '37', 'prj_1', 'stopped'])
    const tables = `select tablename from pg_tables where schemaname = 'public' order by 1`
    assert.deepEqual((await psql(DATABASE_URL, tables)).split('\n'), ['nodes', 'projects', 'schema_migrations'])
    await drop()
  })
})
