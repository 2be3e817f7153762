import type { Engine, Row } from './database.ts'
import { join, Sql, sql } from './sql.ts'

export type ColumnType = 'text' | 'bigint'

/** A longer text is bound separately: inside JSON it would have to be escaped and parsed again. */
const MAX_TEXT_IN_JSON = 64 * 1024

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
  const longTexts = new Map<string, string[]>()
  const json = JSON.stringify(rows.map((row) => takeRow(names, row, longTexts)))
  const field = engine === 'postgres' ? (name: string) => name : (name: string) => `value ->> '$.${name}'`
  const list = join(
    names.map(([name]) => sql`${selectedValue(name, field, longTexts.get(name))} as ${raw(name)}`),
    ', ',
  )
  if (engine === 'sqlite') return sql`(select ${list} from json_each(${json}))`
  const places = [...longTexts.keys()].map((name) => `, ${name}_at bigint`)
  const types = names.map(([name, type]) => `${name} ${type}`).join(', ') + places.join('')
  return sql`(select ${list} from json_to_recordset(${json}::json) as given(${raw(types)}))`
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

function selectedValue(name: string, field: (name: string) => string, texts: readonly string[] | undefined): Sql {
  if (texts === undefined) return raw(field(name))
  // The number of values is a power of two, so that few different statements are prepared.
  const count = 2 ** Math.ceil(Math.log2(texts.length))
  const cases = Array.from(
    { length: count },
    (_, at) => sql`when ${raw(`${at}`)} then cast(${texts[at] ?? null} as text)`,
  )
  return sql`case ${raw(field(`${name}_at`))} ${join(cases, ' ')} else ${raw(field(name))} end`
}

/** SQL text. Call it only with names from the source code. */
function raw(text: string): Sql {
  return new Sql([text], [])
}

/** A condition that a column is one of many texts, with one bound value: `where ${isAmong(db.engine, sql`id`, ids)}`. */
export function isAmong(engine: Engine, column: Sql, texts: readonly string[]): Sql {
  if (engine === 'postgres') return sql`${column} = any(${arrayLiteral(texts)}::text[])`
  return sql`${column} in (select value from json_each(${JSON.stringify(texts)}))`
}

function arrayLiteral(texts: readonly string[]): string {
  return `{${texts.map((text) => `"${text.replace(/["\\]/g, '\\$&')}"`).join(',')}}`
}
