import type { DatabaseSync } from 'node:sqlite'
import type { Row } from '../database.ts'
import { kindOf, type Sql } from '../sql.ts'
import { translated } from './sqlite-errors.ts'
import { SqliteStatements } from './sqlite-statement.ts'

const CONTROL = {
  save: 'savepoint member',
  keep: 'release member',
  undo: 'rollback to member; release member',
  commit: 'commit',
} as const

/**
 * The connection that writes, with one SQLite transaction for each group of transactions. A group commits as a whole or
 * not at all: after an error that made SQLite roll back, all further steps of the group fail with that error.
 */
export class WriteConnection {
  readonly #connection: DatabaseSync
  readonly #statements: SqliteStatements
  #begun = false
  #lost: unknown
  #wrote = false
  #schemaChanged = false

  constructor(connection: DatabaseSync) {
    this.#connection = connection
    this.#statements = new SqliteStatements(connection)
  }

  /** Whether the group has changed anything. */
  get wrote(): boolean {
    return this.#wrote
  }

  get schemaChanged(): boolean {
    return this.#schemaChanged
  }

  /** A statement of the group. */
  query(statement: Sql): Row[] {
    this.#begin()
    return this.#step(() => this.#run(statement), 'statement')
  }

  /** Runs a statement outside any transaction; some SQLite statements require that. */
  queryAlone(statement: Sql): Row[] {
    try {
      return this.#run(statement)
    } catch (error) {
      throw translated(error)
    }
  }

  script(script: string): void {
    this.#begin()
    this.#step(() => {
      this.#forgetSchema()
      this.#connection.exec(script)
      if (!this.#connection.isTransaction) throw new Error('A script must not end the transaction it runs in')
    })
  }

  /** Until `keep` or `undo`, the changes of this member can be undone without those of earlier members. */
  save(): void {
    this.#begin()
    this.#control('save')
  }

  keep(): void {
    this.#control('keep')
  }

  undo(): void {
    if (this.#lost === undefined) this.#control('undo')
    if (this.#schemaChanged) this.#statements.forget()
  }

  /** Readers see the changes from now on, but they are not on the disk yet. */
  commit(): void {
    if (this.#begun) this.#control('commit')
  }

  /** Call it after the commit or its failure: the next step begins a new group. */
  endGroup(): void {
    if (this.#schemaChanged) this.#statements.forget()
    this.#begun = false
    this.#lost = undefined
    this.#wrote = false
    this.#schemaChanged = false
  }

  close(): void {
    this.#connection.close()
  }

  #begin(): void {
    if (this.#begun) return
    this.#begun = true
    this.#step(() => this.#connection.exec('begin immediate'))
  }

  #control(name: keyof typeof CONTROL): void {
    this.#step(() => this.#connection.exec(CONTROL[name]))
  }

  #run({ positionalText: text, values }: Sql): Row[] {
    const kind = kindOf(text)
    if (kind !== 'read') this.#wrote = true
    try {
      return this.#statements.run(text, values)
    } finally {
      if (kind === 'schema') this.#forgetSchema()
    }
  }

  #forgetSchema(): void {
    this.#wrote = true
    this.#schemaChanged = true
    this.#statements.forget()
  }

  #step<T>(step: () => T, kind?: 'statement'): T {
    if (this.#lost !== undefined) throw this.#lost
    try {
      return step()
    } catch (error) {
      const cause = translated(error)
      // A failed statement does not fail its group, unless SQLite has rolled back more than the statement.
      if (kind !== 'statement' || !this.#connection.isTransaction) this.#lose(cause)
      throw cause
    }
  }

  #lose(error: unknown): void {
    this.#lost = error
    // After a full disk or an I/O error SQLite has rolled back on its own.
    if (this.#connection.isTransaction) this.#connection.exec('rollback')
  }
}
