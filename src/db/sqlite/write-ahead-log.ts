import { once } from 'node:events'
import { closeSync, fdatasync, openSync } from 'node:fs'
import { promisify } from 'node:util'
import { Worker } from 'node:worker_threads'

/** The write-ahead log of a file. Both steps wait for the disk without blocking the event loop. */
export interface WriteAheadLog {
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
    sync: () => syncFile(fd).catch(endProcess),
    checkpoint: () => checkpointOnThread(path),
    close: () => closeSync(fd),
  }
}

async function checkpointOnThread(path: string): Promise<void> {
  await once(new Worker(new URL('./checkpoint-thread.js', import.meta.url), { workerData: path }), 'exit')
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
