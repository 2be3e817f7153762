import { once } from 'node:events'
import { closeSync, fdatasync, openSync, readSync } from 'node:fs'
import { promisify } from 'node:util'
import { Worker } from 'node:worker_threads'
import { UnavailableError } from '../../core/errors.ts'
import { shippedFile } from '../../shipped-files.ts'

/** The write-ahead log of a file. `sync` and `checkpoint` wait for the disk without blocking the event loop. */
export interface WriteAheadLog {
  /** Whether the log has at least this many pages. */
  hasPage(page: number): boolean
  /** Resolves when everything committed before is on the disk. */
  sync(): Promise<void>
  /** Moves the log into the database file and starts a new one. No other write may run at the same time. */
  checkpoint(): Promise<void>
  /** Call it after the connections are closed. */
  close(): void
}

const syncFile = promisify(fdatasync)

/** Opens the log of a file that a connection has open. A log that cannot be synced ends the process. */
export function openWriteAheadLog(path: string): WriteAheadLog {
  const fd = openSync(`${path}-wal`, 'r+')
  return {
    hasPage: (page) => hasPage(fd, page),
    sync: () => syncFile(fd).catch(endProcess),
    checkpoint: () => checkpointOnThread(path),
    close: () => closeSync(fd),
  }
}

// The format of the file: https://sqlite.org/fileformat2.html#the_write_ahead_log
const LOG_HEADER = { bytes: 32, pageSizeAt: 8, saltsAt: 16 }
const PAGE_HEADER = { bytes: 24, saltsAt: 8 }
const SALTS_BYTES = 8

/**
 * Reads the file, because only SQLite 3.51 and newer can tell the length of the log without a checkpoint. The size of the
 * file is not the length: a new log overwrites the former one from its beginning, and the file does not shrink. A page
 * belongs to this log if it has the salts of the log's header.
 */
function hasPage(fd: number, page: number): boolean {
  const log = readAt(fd, 0, LOG_HEADER.bytes)
  if (log === undefined) return false
  const pageBytes = PAGE_HEADER.bytes + log.readUInt32BE(LOG_HEADER.pageSizeAt)
  const header = readAt(fd, LOG_HEADER.bytes + (page - 1) * pageBytes, PAGE_HEADER.bytes)
  return header !== undefined && saltsIn(header, PAGE_HEADER.saltsAt).equals(saltsIn(log, LOG_HEADER.saltsAt))
}

function saltsIn(header: Buffer, at: number): Buffer {
  return header.subarray(at, at + SALTS_BYTES)
}

/** Undefined if the file ends before. */
function readAt(fd: number, position: number, bytes: number): Buffer | undefined {
  const buffer = Buffer.allocUnsafe(bytes)
  try {
    return readSync(fd, buffer, 0, bytes, position) === bytes ? buffer : undefined
  } catch (error) {
    throw new UnavailableError('The database is unavailable', { cause: error })
  }
}

async function checkpointOnThread(path: string): Promise<void> {
  await once(new Worker(shippedFile('src/db/sqlite/checkpoint-thread.js'), { workerData: path }), 'exit')
}

/**
 * After a failed sync the content of the disk is unknown, and a second sync may wrongly succeed. The next start uses only
 * data that can be read back; no other data was ever confirmed to a client.
 */
function endProcess(error: unknown): never {
  setImmediate(() => {
    throw error
  })
  throw error
}
