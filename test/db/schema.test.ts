import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import { onBothEngines } from '../support/engines.ts'

/** Every column as `table.column kind`, with a `?` where it may be null. */
async function columnsOf(db: Database): Promise<string[]> {
  const rows = await db.query<{ name: string; type: string; nullable: number }>(
    db.engine === 'postgres'
      ? sql`
        select table_name || '.' || column_name as name, data_type as type, (is_nullable = 'YES')::int as nullable
        from information_schema.columns where table_schema = current_schema()`
      : sql`
        select t.name || '.' || c.name as name, c.type, c."notnull" = 0 and c.pk = 0 as nullable
        from sqlite_schema t join pragma_table_info(t.name) c
        where t.type = 'table' and t.name not like 'sqlite~_%' escape '~'`,
  )
  const kindOf = (type: string) => (/int/i.test(type) ? 'number' : type.toLowerCase())
  return rows.map(({ name, type, nullable }) => `${name} ${kindOf(type)}${nullable ? '?' : ''}`).sort()
}

async function indexesOf(db: Database): Promise<string[]> {
  const rows = await db.query<{ name: string }>(
    db.engine === 'postgres'
      ? sql`
        select tablename || ' ' || indexname as name from pg_indexes i
        where schemaname = current_schema() and not exists (select 1 from pg_constraint where conname = i.indexname)`
      : sql`select tbl_name || ' ' || name as name from sqlite_schema where type = 'index' and sql is not null`,
  )
  return rows.map(({ name }) => name).sort()
}

onBothEngines((engines) => {
  test('both engines have the same tables, columns and indexes', async () => {
    const [sqlite, postgres] = [await engines.sqlite.openDatabase(), await engines.postgres.openDatabase()]
    assert.deepEqual(await columnsOf(sqlite), await columnsOf(postgres))
    // On SQLite the primary key serves the beginning of a sub.
    const common = (await indexesOf(postgres)).filter((name) => name !== 'users users_by_sub')
    assert.deepEqual(await indexesOf(sqlite), common)
    assert.ok(common.includes('jobs jobs_by_owner'))
  })
})
