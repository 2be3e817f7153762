import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { Row, SqlValue } from '../database.ts'

/** `read` cannot change anything; `schema` is whatever is neither a read nor a plain change of rows. */
export type StatementKind = 'read' | 'write' | 'schema'

interface Prepared {
  statement: StatementSync
  columns: string[] | undefined
}

/** One statement text: judged once, prepared once on each connection that runs it. */
export class SqliteStatement {
  readonly kind: StatementKind
  readonly #text: string
  readonly #prepared = new Map<DatabaseSync, Prepared>()

  constructor(text: string) {
    // SQLite peeks at a bare bound limit to plan by it, and so plans anew on every run: 45 µs instead of 7 for a lease.
    this.#text = text.replaceAll(/\blimit \?/gi, 'limit 0 + ?')
    this.kind = kindOf(text)
  }

  run(connection: DatabaseSync, values: readonly SqlValue[]): Row[] {
    let prepared = this.#prepared.get(connection)
    if (!prepared) {
      prepared = prepare(connection, this.#text)
      this.#prepared.set(connection, prepared)
    }
    const rows = prepared.statement.all(...values.map(toBound)) as unknown as SqlValue[][]
    // Asked only after a run: a connection notices a schema changed by another when it runs a statement, not before.
    prepared.columns ??= prepared.statement.columns().map((column) => column.name)
    const { columns } = prepared
    // Rows come as arrays and become objects here: half the time of node:sqlite's own, which have no prototype besides.
    return rows.map((cells) => {
      const row: Row = {}
      for (let at = 0; at < columns.length; at++) row[columns[at] as string] = cells[at] as SqlValue
      return row
    })
  }
}

/**
 * Errs on the side of `write`: a read taken for a write only waits its turn, while a write taken for a read is refused by
 * the connection that serves reads.
 */
export function kindOf(text: string): StatementKind {
  if (/^\s*(?:select|values)\b/i.test(text)) return 'read'
  if (/^\s*with\b/i.test(text)) return /\b(?:insert|update|delete|replace)\b/i.test(text) ? 'write' : 'read'
  return /^\s*(?:insert|update|delete|replace)\b/i.test(text) ? 'write' : 'schema'
}

function prepare(connection: DatabaseSync, text: string): Prepared {
  const statement = connection.prepare(text)
  statement.setReturnArrays(true)
  return { statement, columns: undefined }
}

/** node:sqlite binds every number as a float, which makes `7 / $1` and `cast($1 as text)` differ from PostgreSQL. */
function toBound(value: SqlValue): string | number | bigint | null {
  if (typeof value !== 'number') return value
  if (Number.isSafeInteger(value)) return BigInt(value)
  // SQLite would store NaN as null without a word.
  if (!Number.isFinite(value)) throw new TypeError(`${value} cannot be stored`)
  return value
}
