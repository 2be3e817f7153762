import type { Engine } from './database.ts'
import { EMPTY, type Sql, sql } from './sql.ts'

/**
 * Locks the selected rows until the transaction ends; of a join, only those of one table. On SQLite a transaction already
 * excludes all others.
 */
export function forUpdate(engine: Engine, of?: Sql): Sql {
  if (engine === 'sqlite') return EMPTY
  return of === undefined ? sql`for update` : sql`for update of ${of}`
}

/** Keeps the selected rows from being deleted until the transaction ends. A plain update of them does not wait. */
export function forKeyShare(engine: Engine): Sql {
  return engine === 'postgres' ? sql`for key share` : EMPTY
}

/** Like `forUpdate`, skipping rows that another transaction has locked: for workers that take any row. */
export function forUpdateSkipLocked(engine: Engine): Sql {
  return engine === 'postgres' ? sql`for update skip locked` : EMPTY
}
