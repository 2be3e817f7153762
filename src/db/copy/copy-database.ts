import { hash } from 'node:crypto'
import type { Database, Row, Transaction } from '../database.ts'
import { MigrationError, pendingMigrations } from '../migrate.ts'
import { countRunningNodes } from '../nodes/node-store.ts'
import { rowsOf } from '../rows.ts'
import { Sql, sql } from '../sql.ts'
import { readSeededTables, readSequences, readTables, type Table, writeSequences } from './catalog.ts'
import { readTable } from './read-table.ts'

/** The copy cannot be made, and nothing was changed. */
export class CopyError extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'CopyError'
  }
}

interface CopiedTable {
  name: string
  rows: number
  checksum: string
}

/**
 * Copies everything into an empty, migrated database of the other engine, in one transaction of the target. It commits
 * only if every table of the target, read again, has the rows and the checksum of the source. Memory is bounded.
 * `onCopied` is awaited after each table.
 */
export async function copyDatabase(
  source: Database,
  target: Database,
  { onCopied, signal }: { onCopied: (table: CopiedTable) => unknown; signal: AbortSignal },
): Promise<void> {
  await refuseUnfit(source, target)
  await source.transaction(async (from) => {
    // All tables are read as they are at one moment. This must be the first statement.
    if (from.engine === 'postgres') await from.exec('set transaction isolation level repeatable read')
    await target.transaction(async (to) => {
      await copyAll(from, to, { onCopied, signal })
      // Changes of a node that started in the meantime would be missing. The embedded database is locked.
      if (source.engine === 'postgres') await refuseRunning(source, 'source')
      // Last: on PostgreSQL this is not undone with the transaction.
      await writeSequences(to, await readSequences(from))
    })
  })
}

async function refuseUnfit(source: Database, target: Database): Promise<void> {
  if (source.engine === target.engine) {
    throw new CopyError(`Both databases are ${source.engine}: use that engine's own tools`)
  }
  for (const [name, db] of Object.entries({ source, target })) {
    const pending = await pendingMigrations(db).catch((error: unknown) => {
      throw error instanceof MigrationError ? new MigrationError(`The ${name}: ${error.message}`) : error
    })
    if (pending.length > 0) throw new CopyError(`The ${name} has an older schema: run migrate on it first`)
    await refuseRunning(db, name)
  }
}

async function refuseRunning(db: Database, name: string): Promise<void> {
  const running = await countRunningNodes(db)
  if (running > 0) throw new CopyError(`${running} nodes run on the ${name}: stop them first`)
}

async function copyAll(
  from: Transaction,
  to: Transaction,
  { onCopied, signal }: { onCopied: (table: CopiedTable) => unknown; signal: AbortSignal },
): Promise<void> {
  const tables = await readTables(to)
  await refuseDifferent(from, tables)
  await refuseFilled(to, tables)
  // PostgreSQL checks references at once, so tables that others refer to come first.
  if (to.engine === 'sqlite') await to.exec('pragma defer_foreign_keys = on')
  const sums = new Map<string, Checksum>()
  for (const table of tables) sums.set(table.name, await copyTable(from, to, { table, signal }))
  for (const table of tables) {
    const { rows, text } = sums.get(table.name) ?? new Checksum()
    const written = await sumUp(to, { table, signal })
    if (written.rows !== rows || written.text !== text) {
      throw new CopyError(`The copy of ${table.name} differs: ${written.rows} rows for ${rows}`)
    }
    await onCopied({ name: table.name, rows, checksum: text })
  }
}

async function refuseDifferent(from: Transaction, tables: readonly Table[]): Promise<void> {
  const shape = (list: readonly Table[]) =>
    JSON.stringify(list.map(({ name, columns }) => [name, Object.keys(columns)]).sort())
  if (shape(await readTables(from)) !== shape(tables)) {
    throw new CopyError('The tables of the two databases differ: are both of this release?')
  }
}

async function refuseFilled(to: Transaction, tables: readonly Table[]): Promise<void> {
  const seeded = await readSeededTables(to)
  for (const { name } of tables) {
    if (seeded.includes(name)) continue
    const rows = await to.query(new Sql([`select 1 as found from ${name} limit 1`], []))
    if (rows.length > 0) throw new CopyError(`The target is not empty: ${name} has rows`)
  }
}

async function copyTable(
  from: Transaction,
  to: Transaction,
  { table, signal }: { table: Table; signal: AbortSignal },
): Promise<Checksum> {
  const { name, columns } = table
  // Rows of a migration, and rows that a trigger wrote for a table before this one.
  await to.query(new Sql([`delete from ${name}`], []))
  const list = Object.keys(columns).join(', ')
  const numbered = to.engine === 'postgres' ? 'overriding system value' : ''
  const insert = new Sql([`insert into ${name} (${list}) ${numbered} select ${list} from`], [])
  const sum = new Checksum()
  for await (const rows of readTable(from, table)) {
    signal.throwIfAborted()
    sum.add(rows)
    await to.query(sql`${insert} ${rowsOf(to.engine, rows, columns)} as r where true`)
  }
  return sum
}

async function sumUp(to: Transaction, { table, signal }: { table: Table; signal: AbortSignal }): Promise<Checksum> {
  const sum = new Checksum()
  for await (const rows of readTable(to, table)) {
    signal.throwIfAborted()
    sum.add(rows)
  }
  return sum
}

const WORDS = 8

/** Counts rows and adds up their hashes: the same for the same rows in any order, on both engines. */
class Checksum {
  rows = 0
  readonly #sums = new Uint32Array(WORDS)

  add(rows: readonly Row[]): void {
    for (const row of rows) {
      const cells = Object.keys(row)
        .sort()
        .map((name) => row[name])
      const digest = hash('sha256', JSON.stringify(cells), 'buffer')
      for (let word = 0; word < WORDS; word++) {
        this.#sums[word] = ((this.#sums[word] ?? 0) + digest.readUInt32LE(word * 4)) >>> 0
      }
    }
    this.rows += rows.length
  }

  get text(): string {
    return Buffer.from(this.#sums.buffer).toString('hex').slice(0, 32)
  }
}
