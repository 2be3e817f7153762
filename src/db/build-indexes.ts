import type { Database, Queryable } from './database.ts'
import { MIGRATIONS } from './migrate.ts'
import { type IndexBuild, readMigrations } from './migration-files.ts'
import { isAmong } from './rows.ts'
import { Sql, sql } from './sql.ts'

/** `busy`: another node is building. */
type IndexRound = { built: string } | 'done' | 'busy'

/** The names of the indexes that a migrated database still lacks. Always empty on SQLite: its migrations build them. */
export async function pendingIndexes(db: Queryable, folder: URL = MIGRATIONS): Promise<string[]> {
  return (await findPending(db, folder)).map(({ name }) => name)
}

/**
 * Builds the next missing index of a migrated PostgreSQL database without blocking writes; call it until it is `done`. One
 * node builds at a time. An interrupted build leaves an invalid index, which is dropped and built again. The statement
 * timeout must be longer than the longest build.
 */
export function buildNextIndex(db: Database, folder: URL = MIGRATIONS): Promise<IndexRound> {
  return db.transaction(async (tx) => {
    // Never waits for the lock: the build of the other node would wait for the snapshot of a waiting statement.
    if (!(await tx.tryLock('indexes'))) return 'busy'
    const [next] = await findPending(tx, folder)
    if (!next) return 'done'
    // Ends the snapshot of the last query, which the build would wait for.
    await tx.exec('select 1')
    // These statements run outside of this transaction, which only holds the lock: a concurrent build cannot run inside a
    // transaction.
    if (next.invalid) await db.query(new Sql([`drop index concurrently if exists ${next.name}`], []))
    await db.query(new Sql([next.statement], []))
    return { built: next.name }
  })
}

async function findPending(db: Queryable, folder: URL): Promise<(IndexBuild & { invalid: boolean })[]> {
  const wanted = (await readMigrations(folder, db.engine)).flatMap(({ indexes }) => indexes)
  if (wanted.length === 0) return []
  const names = wanted.map(({ name }) => name)
  const rows = await db.query<{ name: string; valid: number }>(sql`
    select c.relname as name, i.indisvalid::int as valid
    from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
    where c.relnamespace = current_schema()::regnamespace and ${isAmong(db.engine, sql`c.relname::text`, names)}`)
  const valid = new Map(rows.map((row) => [row.name, row.valid === 1]))
  return wanted
    .filter(({ name }) => valid.get(name) !== true)
    .map((build) => ({ ...build, invalid: valid.get(build.name) === false }))
}
