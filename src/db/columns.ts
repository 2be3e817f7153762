import type { ColumnType, Engine, Row } from './database.ts'
import { rowsOf } from './rows.ts'
import { join, Sql, type SqlValue, sql } from './sql.ts'

interface Column<Value> {
  type: ColumnType
  /** Written only by the insert; updates do not change it. */
  fixed?: boolean
  /** May hold megabytes. */
  large?: boolean
  /** The value in a new row. Without one, the code that makes the row must give it. */
  initial?: Value
}

export type ColumnTable<R extends Row> = { readonly [Name in keyof R]: Column<R[Name]> }

/** The parts of SQL statements that name a table's columns, derived from one table of them. */
export class Columns<R extends Row> {
  /** `id, type, status`: for `select` and `insert`. */
  readonly list: Sql
  /** The columns that may hold megabytes. */
  readonly large: readonly Sql[]
  /** `status = r.status, output = r.output`: for `update … set`, with the rows of `changes` as `r`. */
  readonly assignments: Sql
  readonly #types: Record<string, ColumnType>
  readonly #changeTypes: Record<string, ColumnType>

  constructor(columns: ColumnTable<R>) {
    const all = Object.entries<Column<SqlValue>>(columns)
    const changing = all.filter(([, { fixed }]) => fixed !== true)
    this.list = join(
      all.map(([name]) => identifier(name)),
      ', ',
    )
    this.large = all.filter(([, { large }]) => large === true).map(([name]) => identifier(name))
    this.assignments = assignmentsOf(changing.map(([name]) => name))
    this.#types = typesOf(all)
    this.#changeTypes = typesOf(all.filter(([name, { fixed }]) => name === 'id' || fixed !== true))
  }

  /** One row as bound values, in the order of `list`: for `values (…)`. */
  values(row: R): Sql {
    return join(
      Object.keys(this.#types).map((name) => sql`${row[name] ?? null}`),
      ', ',
    )
  }

  /** Many rows as bound values: for `insert … select ${list} from ${rows} as r`. */
  rows(engine: Engine, rows: readonly R[]): Sql {
    return rowsOf(engine, rows, this.#types)
  }

  /** The id and the columns an update writes, of many rows: for `update … from ${changes} as r`. */
  changes(engine: Engine, rows: readonly R[]): Sql {
    return rowsOf(engine, rows, this.#changeTypes)
  }

  /**
   * The parts of an update that writes only some columns: for `update … set ${set} from ${rows} as r`. PostgreSQL then
   * adds no index entries, and SQLite touches no index, of the columns that stay the same.
   */
  changesOf(
    engine: Engine,
    names: readonly (keyof R & string)[],
    rows: readonly Partial<R>[],
  ): { set: Sql; rows: Sql } {
    const types = Object.fromEntries(['id', ...names].map((name) => [name, this.#types[name] ?? 'text'] as const))
    return { set: assignmentsOf(names), rows: rowsOf(engine, rows as readonly Record<string, SqlValue>[], types) }
  }
}

function assignmentsOf(names: readonly string[]): Sql {
  return join(
    names.map((name) => sql`${identifier(name)} = r.${identifier(name)}`),
    ', ',
  )
}

/** The values that a new row has by default. */
export function initialValues<Table extends ColumnTable<Row>>(columns: Table): InitialValues<Table> {
  const initial = Object.entries(columns).filter(([, column]) => 'initial' in column)
  return Object.fromEntries(initial.map(([name, column]) => [name, column.initial])) as InitialValues<Table>
}

type InitialValues<Table> = {
  [Name in keyof Table as Table[Name] extends { initial: unknown } ? Name : never]: Table[Name] extends {
    initial: infer Value
  }
    ? Value
    : never
}

/** A column's name as SQL text. Call it only with names from the source code. */
function identifier(name: string): Sql {
  return new Sql([name], [])
}

function typesOf(columns: readonly [string, Column<SqlValue>][]): Record<string, ColumnType> {
  return Object.fromEntries(columns.map(([name, { type }]) => [name, type]))
}
