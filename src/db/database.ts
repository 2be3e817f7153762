import type { Topic, TopicListener } from './announcements.ts'
import type { Sql } from './sql.ts'

export type Engine = 'sqlite' | 'postgres'

/** What both engines take and give: times are epoch milliseconds, flags 0 or 1, documents JSON text. */
export type SqlValue = string | number | null
export type Row = Record<string, SqlValue>

export interface Queryable {
  readonly engine: Engine
  query<R extends Row>(statement: Sql): Promise<R[]>
}

export interface Transaction extends Queryable {
  /**
   * Takes a lock on a name until the transaction ends, without waiting; false when another transaction, on any node,
   * holds it. On SQLite a transaction excludes all others anyway, so it is always granted.
   */
  tryLock(name: string): Promise<boolean>
  /** Runs a script of several statements, without values; for migrations. It must not begin or end a transaction. */
  exec(script: string): Promise<void>
  /** Once this has committed, those who listen for the topic are told to look. */
  announce(topic: Topic): void
}

/**
 * One durable store with one behaviour on either engine. `query` is for reads and single-statement writes, `transaction`
 * for everything that must commit together; a resolved promise means the data survives a crash.
 * Trouble in reaching the store is an `UnavailableError`; a violated unique key is a `UniqueViolation`.
 *
 * `work` uses its `tx` alone: a `query` or `transaction` of the database itself, awaited inside `work`, may wait for the
 * very transaction that awaits it. A statement that failed dooms its transaction, as on PostgreSQL: whatever `work` makes
 * of the error, everything is rolled back and `transaction` rejects with it. A `tx` kept after the end is refused.
 * PostgreSQL may undo one transaction for the sake of another, and `work` is then run again: it acts through `tx` only.
 */
export interface Database extends Queryable {
  transaction<T>(work: (tx: Transaction) => Promise<T>, options?: TransactionOptions): Promise<T>
  /** Hears what the transactions of this process announce; returns how to stop hearing. */
  listen(listener: TopicListener): () => void
  /** Rejects with an `UnavailableError` when the store does not answer. */
  ping(): Promise<void>
  close(): Promise<void>
}

export interface TransactionOptions {
  /** It does not queue behind others, where there can be a queue; for few, or they queue behind each other. */
  urgent?: boolean
}

export class UniqueViolation extends Error {
  constructor(cause: unknown) {
    super('A unique key already exists', { cause })
    this.name = 'UniqueViolation'
  }
}
