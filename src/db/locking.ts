import type { Engine } from './database.ts'
import { EMPTY, type Sql, sql } from './sql.ts'

/** Holds the selected rows until the transaction ends. On SQLite a transaction holds everything already. */
export function forUpdate(engine: Engine): Sql {
  return engine === 'postgres' ? sql`for update` : EMPTY
}

/** The same, passing over what another transaction holds: for those who want any of the work, not this piece of it. */
export function forUpdateSkipLocked(engine: Engine): Sql {
  return engine === 'postgres' ? sql`for update skip locked` : EMPTY
}
