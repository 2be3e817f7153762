import type { Engine, Transaction } from './database.ts'
import { EMPTY, type Sql, sql } from './sql.ts'

/**
 * Locks the selected rows until the transaction ends; of a join, only those of one table. On SQLite a transaction already
 * excludes all others: there the words are a comment, by which the simulation sees the order of locks.
 */
export function forUpdate(engine: Engine, of?: Sql): Sql {
  if (engine === 'sqlite') return sql`/* for update */`
  return sql`for update ${ofTable(of)}`
}

/** Like `forUpdate`, skipping rows that another transaction has locked. */
export function forUpdateSkipLocked(engine: Engine, of?: Sql): Sql {
  if (engine === 'sqlite') return sql`/* for update skip locked */`
  return sql`for update ${ofTable(of)} skip locked`
}

/**
 * Until the transaction ends, other transactions that lock the same name wait. On SQLite a transaction already excludes all
 * others.
 */
export async function lockName(tx: Transaction, name: string): Promise<void> {
  if (tx.engine === 'postgres')
    await tx.query(sql`select pg_advisory_xact_lock(hashtextextended(${name}, 0)) is null as locked`)
}

function ofTable(of: Sql | undefined): Sql {
  return of === undefined ? EMPTY : sql`of ${of}`
}
