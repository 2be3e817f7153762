import { UnavailableError } from '../core/errors.ts'
import type { Topic, TopicListener } from './announcements.ts'
import type { Sql, SqlValue } from './sql.ts'

export type Engine = 'sqlite' | 'postgres'

export type Row = Record<string, SqlValue>
/** The types of columns, in the words of both engines. */
export type ColumnType = 'text' | 'bigint'

export interface Queryable {
  readonly engine: Engine
  query<R extends Row>(statement: Sql): Promise<R[]>
}

export interface Transaction extends Queryable {
  /**
   * Locks a name until the transaction ends, without waiting; false if another transaction, on any node, holds the lock. On
   * SQLite it always succeeds, because only one transaction runs at a time.
   */
  tryLock(name: string): Promise<boolean>
  /**
   * Runs a statement that does not wait for locks. False if another transaction holds one that it needs: nothing of the
   * statement stays then, and the transaction goes on. On SQLite it always succeeds.
   */
  tryQuery(statement: Sql): Promise<boolean>
  /** Runs a script of several statements, without values; for migrations. It must not begin or end a transaction. */
  exec(script: string): Promise<void>
  /** After the commit, the listeners get this topic as a hint to check. */
  announce(topic: Topic): void
}

/**
 * One durable store with one behaviour on either engine. `query` is for reads and single-statement writes, `transaction`
 * for everything that must commit together; a resolved promise means the data survives a crash. Errors: `UnavailableError`
 * if the store cannot be reached; `UniqueViolation` for a violated unique key; `LockTimeout`, on PostgreSQL only, if
 * another transaction keeps a row locked.
 *
 * `work` must use only its `tx`: if it awaits a `query` or `transaction` of the database, it may deadlock with its own
 * transaction. A failed statement aborts its transaction, as on PostgreSQL, except for `tryQuery`: even if `work` catches the error, everything is
 * rolled back and `transaction` rejects with it. A `tx` cannot be used after the end. PostgreSQL may abort a transaction
 * that conflicts with another. Then `work` runs again, so it must have no effects except those of `tx`.
 */
export interface Database extends Queryable {
  /** The database's own time in a statement, as epoch milliseconds. */
  readonly now: Sql
  transaction<T>(work: (tx: Transaction) => Promise<T>, options?: TransactionOptions): Promise<T>
  /** Calls the listener for each topic that a commit of this process announced; returns a function that unsubscribes. */
  listen(listener: TopicListener): () => void
  /** Rejects with an `UnavailableError` when the store does not answer. */
  ping(): Promise<void>
  close(): Promise<void>
}

export interface TransactionOptions {
  /**
   * On PostgreSQL, uses a few reserved connections instead of the queue for the others, and waits for a locked row a
   * quarter of the usual time, so that it does not hold up the transactions behind it. SQLite has one queue.
   */
  urgent?: boolean
  /**
   * On PostgreSQL, waits for a locked row a quarter of the usual time, because the rows of other callers are locked
   * meanwhile. It does not change the connections.
   */
  waitsBriefly?: boolean
}

/** Another transaction held a row's lock for too long. The store itself is available: only the change of that row failed. */
export class LockTimeout extends UnavailableError {
  constructor(cause: unknown) {
    super('The record is in use by another change', { cause })
    this.name = 'LockTimeout'
  }
}

/** Another transaction changed what this one has read. `work` runs again from the beginning. */
export class TransactionConflict extends UnavailableError {
  constructor() {
    super('Another change came first')
    this.name = 'TransactionConflict'
  }
}

export class UniqueViolation extends Error {
  constructor(cause: unknown) {
    super('A unique key already exists', { cause })
    this.name = 'UniqueViolation'
  }
}
