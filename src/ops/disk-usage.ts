import { stat, statfs } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { Queryable } from '../db/database.ts'
import { sql } from '../db/sql.ts'

export interface DiskRoom {
  freeBytes: number
  sizeBytes: number
}

/** The space on the disk of the embedded database. Null on PostgreSQL: the disk of its server cannot be read from here. */
export async function readDiskRoom(db: Queryable): Promise<DiskRoom | null> {
  const file = await findFile(db)
  if (file === null) return null
  const { blocks, bfree, bavail, bsize } = await statfs(dirname(file))
  // As `df` counts: without the blocks that only root may use.
  return { freeBytes: bavail * bsize, sizeBytes: (blocks - bfree + bavail) * bsize }
}

/** The size of the database, and on SQLite that of its write-ahead log. */
export async function readDatabaseSizes(db: Queryable): Promise<{ data: number; wal?: number }> {
  if (db.engine === 'postgres') {
    const [row] = await db.query<{ bytes: number }>(sql`select pg_database_size(current_database()) as bytes`)
    return { data: row?.bytes ?? 0 }
  }
  const file = await findFile(db)
  return file === null ? { data: 0 } : { data: (await stat(file)).size, wal: await sizeIfPresent(`${file}-wal`) }
}

/** Null on PostgreSQL, and for a database in memory. */
async function findFile(db: Queryable): Promise<string | null> {
  if (db.engine === 'postgres') return null
  const [row] = await db.query<{ file: string }>(sql`select file from pragma_database_list where name = 'main'`)
  return row?.file || null
}

async function sizeIfPresent(file: string): Promise<number> {
  return stat(file).then(
    ({ size }) => size,
    () => 0,
  )
}
