import { chmodSync, closeSync, existsSync, openSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'

// No other process uses the file (see data-folder.ts), and waiting for a lock would block the event loop.
const BUSY_TIMEOUT_MS = 1_000

/** Opens a connection with the settings that every connection has. */
export function openConnection(path: string): DatabaseSync {
  const connection = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS, enableForeignKeyConstraints: true })
  // No memory map: with one, a failing disk kills the process (SIGBUS); without one, the read fails with an error.
  connection.exec('pragma cache_size = -32768; pragma mmap_size = 0; pragma temp_store = memory')
  return connection
}

/**
 * Lets only the owner of the database read it, in any folder. Call it before the file is opened: SQLite gives the log and
 * its index the mode of the database.
 */
export function keepPrivate(path: string): void {
  try {
    if (!existsSync(path)) closeSync(openSync(path, 'wx', 0o600))
    for (const file of [path, `${path}-wal`, `${path}-shm`]) if (existsSync(file)) chmodSync(file, 0o600)
  } catch {
    // SQLite says why the file cannot be used. A file of another owner keeps its mode.
  }
}

/** Prepares the connection that writes to a file; after that, its commits do not wait for the disk: see write-ahead-log.ts. */
export function useWriteAheadLog(writer: DatabaseSync, path: string): void {
  const mode = writer.prepare('pragma journal_mode = wal').get()?.journal_mode
  if (mode !== 'wal') throw new Error(`${path} cannot have a write-ahead log: is it on a network file system?`)
  // A log left by a crash may hold pages that a failed sync never wrote. New commits must not be appended after such pages.
  writer.exec('pragma synchronous = full; pragma wal_checkpoint(truncate)')
  writer.exec('pragma synchronous = normal; pragma wal_autocheckpoint = 0')
}
