import type { DatabaseSync } from 'node:sqlite'
import type { Row } from '../database.ts'
import type { Sql } from '../sql.ts'
import { openConnection } from './connection.ts'
import { translated } from './sqlite-errors.ts'
import { SqliteStatements } from './sqlite-statement.ts'

/** The connection for reads outside transactions: between `hold` and `release` it sees the database as it was at `hold`. */
export class ReadConnection {
  readonly #connection: DatabaseSync
  readonly #statements: SqliteStatements

  constructor(path: string) {
    this.#connection = openConnection(path)
    this.#connection.exec('pragma query_only = on')
    this.#statements = new SqliteStatements(this.#connection)
  }

  query({ positionalText, values }: Sql): Row[] {
    try {
      return this.#statements.run(positionalText, values)
    } catch (error) {
      throw translated(error)
    }
  }

  hold(): void {
    if (this.#connection.isTransaction) return
    this.#connection.exec('begin')
    // A transaction gets its snapshot with its first read.
    this.#statements.run('select 1 from sqlite_schema limit 1', [])
  }

  release(): void {
    if (this.#connection.isTransaction) this.#connection.exec('commit')
  }

  /** Call it after a change of the schema. */
  forget(): void {
    this.#statements.forget()
  }

  close(): void {
    this.#connection.close()
  }
}
