import { chmodSync, copyFileSync, existsSync, rmSync } from 'node:fs'
import { open, rename } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { DatabaseSync } from 'node:sqlite'

/** The file is not a backup of this service, or it is damaged. */
export class BadBackup extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'BadBackup'
  }
}

/** The database and the files that SQLite keeps beside it. */
const ENDINGS = ['', '-wal', '-shm', '-journal']

/**
 * Writes the database as it is at one moment into a new file. The node that uses the database goes on: this process only
 * reads, from a snapshot. The file appears when it is complete, checked and on the disk.
 */
export async function writeBackup({ path, file }: { path: string; file: string }): Promise<void> {
  if (existsSync(file)) throw new BadBackup(`${file} exists already`)
  await appear(file, (partial) => {
    const connection = new DatabaseSync(path, { readOnly: true, timeout: 5_000 })
    try {
      connection.prepare('vacuum into ?').run(partial)
    } finally {
      connection.close()
    }
    checkBackup(partial)
  })
}

/** Puts a checked copy of a backup at a place where no database is. `prepare` changes the copy before it appears. */
export async function restoreBackup(
  { file, path }: { file: string; path: string },
  prepare: (copy: string) => Promise<void>,
): Promise<void> {
  if (!existsSync(file)) throw new BadBackup(`${file} does not exist`)
  // SQLite would apply a log that a lost database left behind to the restored one.
  const remains = ENDINGS.map((end) => `${path}${end}`).find((one) => existsSync(one))
  if (remains !== undefined) throw new BadBackup(`${remains} exists already: move it away first`)
  await appear(path, async (partial) => {
    copyFileSync(file, partial)
    checkBackup(partial, file)
    await prepare(partial)
  })
}

function checkBackup(file: string, nameShown = file): void {
  const connection = new DatabaseSync(file, { readOnly: true })
  try {
    const damage = connection.prepare('pragma integrity_check(1)').get()?.integrity_check
    if (damage !== 'ok') throw new BadBackup(`${nameShown} is damaged: ${damage}`)
    connection.prepare('select version from schema_migrations limit 1').get()
  } catch (error) {
    if (error instanceof BadBackup) throw error
    throw new BadBackup(`${nameShown} is not a backup of this service`, { cause: error })
  } finally {
    connection.close()
  }
}

/** A crash leaves at most the partial file, which the next attempt replaces. */
async function appear(file: string, write: (partial: string) => void | Promise<void>): Promise<void> {
  const partial = `${resolve(file)}.partial`
  rmSync(partial, { force: true })
  try {
    await write(partial)
    // The folder of the database is private. A backup may lie anywhere.
    chmodSync(partial, 0o600)
    await sync(partial)
    await rename(partial, file)
    await sync(dirname(partial))
  } finally {
    for (const end of ENDINGS) rmSync(`${partial}${end}`, { force: true })
  }
}

async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
