import type { Row, Transaction } from '../database.ts'
import { join, Sql, type SqlValue, sql } from '../sql.ts'
import type { Table } from './catalog.ts'

const MAX_ROWS = 1_000
const MAX_BYTES = 4 * 1024 * 1024

/** All rows of a table, in batches that are bounded in rows and bytes. A row larger than that is a batch of its own. */
export function readTable(tx: Transaction, table: Table): AsyncGenerator<Row[]> {
  return tx.engine === 'postgres' ? readFromPostgres(tx, table) : readFromSqlite(tx, table)
}

/** Two cursors in the same order: the first one says how many rows of the second one fit into a batch. */
async function* readFromPostgres(tx: Transaction, table: Table): AsyncGenerator<Row[]> {
  const { name } = table
  // Otherwise a scan may begin in the middle of the table, where another one is.
  await tx.exec('set local synchronize_seqscans = off')
  await tx.exec(`declare sizes_${name} no scroll cursor for select ${bytesOf(table)} as bytes from ${name}`)
  await tx.exec(`declare rows_${name} no scroll cursor for select ${listOf(table)} from ${name}`)
  for (;;) {
    const sizes = await tx.query<{ bytes: number }>(text(`fetch ${MAX_ROWS} from sizes_${name}`))
    if (sizes.length === 0) break
    let taken = 0
    while (taken < sizes.length) {
      const count = countFitting(sizes.slice(taken))
      yield await tx.query(text(`fetch ${count} from rows_${name}`))
      taken += count
    }
  }
  await tx.exec(`close sizes_${name}; close rows_${name}`)
}

async function* readFromSqlite(tx: Transaction, table: Table): AsyncGenerator<Row[]> {
  const { name } = table
  const key = await findKey(tx, name)
  const keyList = key.join(', ')
  const keyAndSize = [...key.map((column, at) => `${column} as k${at}`), `${bytesOf(table)} as bytes`].join(', ')
  // Smaller than every key: an empty text sorts before all others, but after every number.
  let after: SqlValue[] = key.map((column) => (table.columns[column] === 'text' ? '' : Number.MIN_SAFE_INTEGER))
  const isAbove = () => sql`${text(`(${keyList}) >`)} (${listOfValues(after)})`
  for (;;) {
    const rows = await tx.query<Row & { bytes: number }>(sql`
      select ${text(`${keyAndSize} from ${name}`)}
      where ${isAbove()} order by ${text(keyList)} limit ${MAX_ROWS}`)
    if (rows.length === 0) return
    let taken = 0
    while (taken < rows.length) {
      const count = countFitting(rows.slice(taken))
      const last = rows[taken + count - 1]
      const upTo = key.map((_, at) => last?.[`k${at}`] ?? null)
      yield await tx.query(sql`
        select ${text(`${listOf(table)} from ${name}`)} where ${isAbove()}
          and ${text(`(${keyList}) <=`)} (${listOfValues(upTo)})`)
      after = upTo
      taken += count
    }
  }
}

/** A table without row ids is read by its key. */
async function findKey(tx: Transaction, table: string): Promise<string[]> {
  const [found] = await tx.query<{ wr: number }>(sql`select wr from pragma_table_list where name = ${table}`)
  if (found?.wr !== 1) return ['rowid']
  const keys = await tx.query<{ name: string }>(sql`
    select name from pragma_table_info(${table}) where pk > 0 order by pk`)
  return keys.map(({ name }) => name)
}

function listOfValues(values: readonly SqlValue[]): Sql {
  return join(
    values.map((value) => sql`${value}`),
    ', ',
  )
}

function countFitting(sizes: readonly { bytes: number }[]): number {
  let bytes = 0
  const end = sizes.findIndex((row) => {
    bytes += row.bytes
    return bytes > MAX_BYTES
  })
  return end < 0 ? sizes.length : Math.max(1, end)
}

function bytesOf({ columns }: Table): string {
  const texts = Object.keys(columns).filter((name) => columns[name] === 'text')
  return texts.map((name) => `coalesce(octet_length(${name}), 0)`).join(' + ') || '0'
}

function listOf({ columns }: Table): string {
  return Object.keys(columns).join(', ')
}

/** Names come from the catalog of a database that our migrations made. */
function text(statement: string): Sql {
  return new Sql([statement], [])
}
