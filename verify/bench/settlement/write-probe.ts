import { execFileSync } from 'node:child_process'
import { statSync } from 'node:fs'
import { join } from 'node:path'
import type { Database } from '../../../src/db/database.ts'
import { Sql, sql } from '../../../src/db/sql.ts'
import { findPostgres } from '../../../test/support/binaries.ts'

/** The writes between `begin` and `end`. */
export interface Cost {
  rows: number
  /** Rows that PostgreSQL updated without an index entry. SQLite has no such difference. */
  hotUpdates: number
  /** Entries added to indexes, those of primary keys included. */
  indexEntries: number
  walBytes: number
  /** The bytes without full-page images, which PostgreSQL logs once after each checkpoint. */
  walBytesWithoutImages: number
}

export interface Probe {
  begin(): Promise<void>
  end(): Promise<Cost>
}

/** Counts the records of the write-ahead log with `pg_waldump`. */
export function postgresProbe(db: Database): Probe {
  const position = async () => {
    const [row] = await db.query<{ lsn: string; folder: string }>(
      sql`select pg_current_wal_insert_lsn()::text as lsn, current_setting('data_directory') as folder`,
    )
    return row ?? { lsn: '', folder: '' }
  }
  let from = ''
  return {
    begin: async () => {
      await db.query(sql`checkpoint`)
      from = (await position()).lsn
    },
    end: async () => {
      const { lsn, folder } = await position()
      const program = join(findPostgres() ?? '', 'pg_waldump')
      const args = ['-p', join(folder, 'pg_wal'), '-s', from, '-e', lsn, '--stats=record']
      const records = readStatistics(execFileSync(program, args, { encoding: 'utf8' }))
      const sum = (pattern: RegExp, field: 'count' | 'bytes' | 'imageBytes') =>
        records.filter(({ name }) => pattern.test(name)).reduce((total, record) => total + record[field], 0)
      return {
        rows: sum(/^Heap\/(INSERT|UPDATE|HOT_UPDATE|DELETE)/, 'count'),
        hotUpdates: sum(/^Heap\/HOT_UPDATE/, 'count'),
        indexEntries: sum(/^Btree\/(INSERT_LEAF|INSERT_POST|SPLIT)/, 'count'),
        walBytes: sum(/./, 'bytes') + sum(/./, 'imageBytes'),
        walBytesWithoutImages: sum(/./, 'bytes'),
      }
    },
  }
}

const LINE = /^(?<name>\w+\/\S+(?:\+INIT)?) +(?<count>\d+) \([^)]*\) +(?<bytes>\d+) \([^)]*\) +(?<imageBytes>\d+) \(/gm

function readStatistics(text: string): { name: string; count: number; bytes: number; imageBytes: number }[] {
  return Array.from(text.matchAll(LINE), ({ groups = {} }) => ({
    name: groups.name ?? '',
    count: Number(groups.count),
    bytes: Number(groups.bytes),
    imageBytes: Number(groups.imageBytes),
  }))
}

/** Counts the rows and the entries of each index, and the growth of the log. Its log must not be checkpointed meanwhile. */
export function sqliteProbe(db: Database, path: string): Probe {
  let before: Awaited<ReturnType<typeof read>> | undefined
  const read = async () => ({
    rows: await db.transaction(
      async (tx) => (await tx.query<{ n: number }>(sql`select total_changes() as n`))[0]?.n ?? 0,
    ),
    entries: await countEntries(db),
    bytes: statSync(`${path}-wal`).size,
  })
  return {
    begin: async () => {
      before = await read()
    },
    end: async () => {
      const after = await read()
      const added = Array.from(after.entries, ([name, count]) => Math.max(0, count - (before?.entries.get(name) ?? 0)))
      const walBytes = after.bytes - (before?.bytes ?? 0)
      return {
        rows: after.rows - (before?.rows ?? 0),
        hotUpdates: 0,
        indexEntries: added.reduce((total, count) => total + count, 0),
        walBytes,
        walBytesWithoutImages: walBytes,
      }
    },
  }
}

/** An index has an entry for each row of its table, a partial one for each row that its condition holds for. */
async function countEntries(db: Database): Promise<Map<string, number>> {
  const indexes = await db.query<{ name: string; tbl_name: string; sql: string | null }>(
    sql`select name, tbl_name, sql from sqlite_schema where type = 'index'`,
  )
  const counts = new Map<string, number>()
  for (const { name, tbl_name, sql: text } of indexes) {
    const condition = /\bwhere\b(?<condition>.*)$/is.exec(text ?? '')?.groups?.condition ?? '1 = 1'
    const [row] = await db.query<{ n: number }>(
      new Sql([`select count(*) as n from ${tbl_name} where ${condition}`], []),
    )
    counts.set(name, row?.n ?? 0)
  }
  return counts
}
