import { DatabaseError, type PoolClient, type QueryResult } from 'pg'
import { UnavailableError } from '../../core/errors.ts'
import type { Topic } from '../announcements.ts'
import { LockTimeout, type Row, type Transaction } from '../database.ts'
import { type Sql, sql } from '../sql.ts'
import { translatedPostgresError } from './postgres-errors.ts'
import { prepared } from './postgres-statement.ts'

/** One transaction on its own connection. A failed statement aborts it, even if the caller catches the error. */
export class PostgresTransaction implements Transaction {
  readonly engine = 'postgres'
  readonly topics = new Set<Topic>()
  readonly #client: PoolClient
  readonly #isNamed: boolean
  /** Absent: that of the connection. */
  readonly #lockTimeoutMs: number | undefined
  #begun: Promise<unknown> | undefined
  #failure: unknown
  #ended = false

  constructor(client: PoolClient, options: { isNamed: boolean; lockTimeoutMs: number | undefined }) {
    this.#client = client
    this.#isNamed = options.isNamed
    this.#lockTimeoutMs = options.lockTimeoutMs
  }

  begin(): void {
    const limit = this.#lockTimeoutMs === undefined ? '' : `; set local lock_timeout = ${this.#lockTimeoutMs}`
    this.#begun = this.#client.query(`begin isolation level read committed${limit}`)
    // The next statement reports the failure; this only prevents an unhandled rejection.
    this.#begun.catch(() => {})
  }

  async query<R extends Row>(statement: Sql): Promise<R[]> {
    const { rows } = await this.#send(() => this.#client.query<R>(prepared(statement, this.#isNamed)))
    return rows
  }

  async exec(script: string): Promise<void> {
    await this.#send(() => this.#client.query(script))
  }

  async tryLock(name: string): Promise<boolean> {
    const [row] = await this.query<{ locked: number }>(
      sql`select pg_try_advisory_xact_lock(hashtextextended(${name}, 0))::int as locked`,
    )
    return row?.locked === 1
  }

  async tryQuery(statement: Sql): Promise<boolean> {
    // The shortest timeout: 0 would be none.
    await this.exec('savepoint attempt; set local lock_timeout = 1')
    try {
      await this.#client.query(prepared(statement, this.#isNamed))
    } catch (error) {
      const failure = translatedPostgresError(error)
      if (failure instanceof LockTimeout) {
        await this.exec('rollback to savepoint attempt; release savepoint attempt')
        return false
      }
      this.#failure ??= failure
      throw this.#failure
    }
    await this.exec(`release savepoint attempt; set local lock_timeout = ${this.#lockTimeoutMs ?? 'default'}`)
    return true
  }

  announce(topic: Topic): void {
    this.topics.add(topic)
  }

  async commit(): Promise<void> {
    this.#ended = true
    if (this.#failure) throw this.#failure
    try {
      await Promise.all([this.#begun, this.#client.query('commit')])
    } catch (error) {
      this.#failure = translatedPostgresError(error)
      throw this.#failure
    }
  }

  /** Resolves with the reason when the connection cannot be used again. */
  async rollback(): Promise<Error | undefined> {
    this.#ended = true
    const lost = lostConnection(this.#failure)
    if (lost) return lost
    try {
      await this.#client.query('rollback')
      return undefined
    } catch (error) {
      return error as Error
    }
  }

  async #send<T extends QueryResult | QueryResult[]>(statement: () => Promise<T>): Promise<T> {
    if (this.#ended) throw new Error('The transaction has ended')
    if (this.#failure) throw this.#failure
    try {
      const [result] = await Promise.all([statement(), this.#begun])
      return result
    } catch (error) {
      this.#failure ??= translatedPostgresError(error)
      throw this.#failure
    }
  }
}

/** On a dead connection a rollback would only wait for a second timeout; the server rolls back by itself. */
function lostConnection(failure: unknown): Error | undefined {
  if (!(failure instanceof UnavailableError) || failure.cause instanceof DatabaseError) return undefined
  return failure
}
