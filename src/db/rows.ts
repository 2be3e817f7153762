import type { ColumnType, Engine, Row } from './database.ts'
import { toBinaryArray } from './postgres/binary-array.ts'
import { join, Sql, type SqlValue, sql } from './sql.ts'

/** A longer text is bound separately: inside JSON it would have to be escaped and parsed again. */
const MAX_TEXT_IN_JSON = 64 * 1024

/**
 * Many rows as bound values, to select from in a statement: `from ${rowsOf(db.engine, rows, { id: 'text' })} as r`. One
 * statement then writes a batch of any length, and is prepared only once.
 */
export function rowsOf<Name extends string>(
  engine: Engine,
  rows: readonly Record<NoInfer<Name>, Row[string]>[],
  columns: Readonly<Record<Name, ColumnType>>,
): Sql {
  const names = Object.entries<ColumnType>(columns)
  return engine === 'postgres' ? rowsOfArrays(names, rows) : rowsOfJson(names, rows)
}

/** An array for each column. */
function rowsOfArrays(
  columns: readonly [string, ColumnType][],
  rows: readonly Readonly<Record<string, Row[string]>>[],
): Sql {
  const arrays = columns.map(([name, type]) => {
    const values = rows.map((row) => row[name] ?? null)
    return arrayOf(type, values)
  })
  const names = columns.map(([name]) => name).join(', ')
  return sql`(select ${raw(names)} from unnest(${join(arrays, ', ')}) as given(${raw(names)}))`
}

/**
 * The subquery hides the length of the array from PostgreSQL. A short array would otherwise seem cheaper than the cached
 * plan, and the statement would be planned again each time.
 */
function arrayOf(type: ColumnType, values: readonly SqlValue[]): Sql {
  return sql`(select ${toBinaryArray(type, values)}::${raw(type)}[])`
}

function rowsOfJson(
  names: readonly [string, ColumnType][],
  rows: readonly Readonly<Record<string, Row[string]>>[],
): Sql {
  const longTexts = new Map<string, string[]>()
  const json = JSON.stringify(rows.map((row) => takeRow(names, row, longTexts)))
  const list = join(
    names.map(([name]) => sql`${selectedValue(name, longTexts.get(name))} as ${raw(name)}`),
    ', ',
  )
  return sql`(select ${list} from json_each(${json}))`
}

/** Picks the named columns of a row. For a long text, the row contains its index in `longTexts`. */
function takeRow(
  names: readonly [string, ColumnType][],
  row: Readonly<Record<string, Row[string]>>,
  longTexts: Map<string, string[]>,
): Row {
  const taken: Row = {}
  for (const [name] of names) {
    const value = row[name] ?? null
    if (typeof value !== 'string' || value.length <= MAX_TEXT_IN_JSON) taken[name] = value
    else {
      const texts = longTexts.get(name) ?? []
      longTexts.set(name, texts)
      taken[`${name}_at`] = texts.push(value) - 1
    }
  }
  return taken
}

function selectedValue(name: string, texts: readonly string[] | undefined): Sql {
  const field = (of: string) => raw(`value ->> '$.${of}'`)
  if (texts === undefined) return field(name)
  // The number of values is a power of two, so that few different statements are prepared.
  const count = 2 ** Math.ceil(Math.log2(texts.length))
  const cases = Array.from(
    { length: count },
    (_, at) => sql`when ${raw(`${at}`)} then cast(${texts[at] ?? null} as text)`,
  )
  return sql`case ${field(`${name}_at`)} ${join(cases, ' ')} else ${field(name)} end`
}

/** SQL text. Call it only with names from the source code. */
function raw(text: string): Sql {
  return new Sql([text], [])
}

/** A condition that a column is one of many texts, with one bound value: `where ${isAmong(db.engine, sql`id`, ids)}`. */
export function isAmong(engine: Engine, column: Sql, texts: readonly string[]): Sql {
  if (engine === 'postgres') return sql`${column} = any(${arrayOf('text', texts)}::text[])`
  return sql`${column} in (select value from json_each(${JSON.stringify(texts)}))`
}
