import type { Row, Transaction } from '../database.ts'
import { Sql, sql } from '../sql.ts'
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
  let after: string | number = key === 'rowid' ? Number.MIN_SAFE_INTEGER : ''
  for (;;) {
    const sizes = await tx.query<{ k: string | number; bytes: number }>(sql`
      select ${text(`${key} as k, ${bytesOf(table)} as bytes from ${name} where ${key} >`)} ${after}
      order by k limit ${MAX_ROWS}`)
    if (sizes.length === 0) return
    let taken = 0
    while (taken < sizes.length) {
      const count = countFitting(sizes.slice(taken))
      const upTo: string | number = sizes[taken + count - 1]?.k ?? after
      yield await tx.query(sql`
        select ${text(`${listOf(table)} from ${name} where ${key} >`)} ${after} and ${text(key)} <= ${upTo}`)
      after = upTo
      taken += count
    }
  }
}

/** A table without row ids is read by its key. */
async function findKey(tx: Transaction, table: string): Promise<string> {
  const [found] = await tx.query<{ wr: number }>(sql`select wr from pragma_table_list where name = ${table}`)
  if (found?.wr !== 1) return 'rowid'
  const keys = await tx.query<{ name: string }>(sql`select name from pragma_table_info(${table}) where pk > 0`)
  const [key] = keys
  if (key === undefined || keys.length > 1) throw new Error(`${table} has no row ids and no key of one column`)
  return key.name
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
