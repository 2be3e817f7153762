import type { Engine, Row } from './database.ts'
import { Sql, sql } from './sql.ts'

export type ColumnType = 'text' | 'bigint'

/**
 * Many rows as one bound value, to select from in a statement: `from ${rowsOf(db.engine, rows, { id: 'text' })} as r`.
 * One statement then writes a batch of any length, and is prepared only once.
 */
export function rowsOf<Name extends string>(
  engine: Engine,
  rows: readonly Record<NoInfer<Name>, Row[string]>[],
  columns: Readonly<Record<Name, ColumnType>>,
): Sql {
  const names = Object.entries<ColumnType>(columns)
  const values = [JSON.stringify(rows.map((row) => only(names, row)))]
  if (engine === 'postgres') {
    const list = names.map(([name, type]) => `${name} ${type}`).join(', ')
    return new Sql(['(select * from json_to_recordset(', `::json) as given(${list}))`], values)
  }
  const list = names.map(([name]) => `value ->> '$.${name}' as ${name}`).join(', ')
  return new Sql([`(select ${list} from json_each(`, '))'], values)
}

/** A condition that a column is one of many texts, with one bound value: `where ${isAmong(db.engine, sql`id`, ids)}`. */
export function isAmong(engine: Engine, column: Sql, texts: readonly string[]): Sql {
  if (engine === 'postgres') return sql`${column} = any(${arrayLiteral(texts)}::text[])`
  return sql`${column} in (select value from json_each(${JSON.stringify(texts)}))`
}

function arrayLiteral(texts: readonly string[]): string {
  return `{${texts.map((text) => `"${text.replace(/["\\]/g, '\\$&')}"`).join(',')}}`
}

/** Rows may have further columns, some of them large: only the named ones are sent. */
function only(names: readonly [string, ColumnType][], row: Readonly<Record<string, Row[string]>>): Row {
  const picked: Row = {}
  for (const [name] of names) picked[name] = row[name] ?? null
  return picked
}
