import type { Engine } from './database.ts'
import { EMPTY, type Sql, sql } from './sql.ts'

/** Locks the selected rows until the transaction ends. On SQLite a transaction already excludes all others. */
export function forUpdate(engine: Engine): Sql {
  return engine === 'postgres' ? sql`for update` : EMPTY
}

/** The same, skipping rows that another transaction has locked: for workers that take any row. */
export function forUpdateSkipLocked(engine: Engine): Sql {
  return engine === 'postgres' ? sql`for update skip locked` : EMPTY
}
