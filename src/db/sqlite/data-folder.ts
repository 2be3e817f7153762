import { accessSync, constants, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'

/**
 * Creates the folder and locks it for this process: two processes on one embedded database would both do its background
 * work. It is a lock of the operating system, so it ends with the process, even after a crash.
 */
export function lockDataFolder(folder: string): { release: () => void } {
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const pidFile = join(folder, 'lock.pid')
  // Node has no file locks, so an exclusive SQLite transaction serves as one.
  const lock = openLock(folder)
  try {
    lock.exec('begin exclusive')
    writeFileSync(pidFile, `${process.pid}\n`)
  } catch (error) {
    lock.close()
    if (isBusy(error)) throw new DataFolderInUse(folder, readPid(pidFile))
    throw error
  }

  let held = true
  return {
    release: () => {
      if (!held) return
      held = false
      removePid(pidFile)
      lock.close()
    },
  }
}

/** SQLite does not tell that the disk is read-only if it cannot create the file; the file system does. */
function openLock(folder: string): DatabaseSync {
  try {
    return new DatabaseSync(join(folder, 'lock.db'), { timeout: 0 })
  } catch (error) {
    accessSync(folder, constants.W_OK)
    throw error
  }
}

const DISK_CODES = new Set(['EROFS', 'EIO', 'ENOSPC', 'EDQUOT'])
const DISK_ERRCODES = new Set([8, 10, 13]) // SQLITE_READONLY, _IOERR, _FULL

/** Whether the disk is read-only, full or broken. Then a later start may succeed with the same settings. */
export function isDiskFault(error: unknown): boolean {
  const { code = '', errcode = 0 } = error as { code?: string; errcode?: number }
  return DISK_CODES.has(code) || DISK_ERRCODES.has(errcode & 0xff)
}

export class DataFolderInUse extends Error {
  constructor(folder: string, holderPid: number | undefined) {
    const holder = holderPid === undefined ? 'another process' : `process ${holderPid}`
    super(`The data folder ${folder} is in use by ${holder}; stop it, or choose another folder`)
    this.name = 'DataFolderInUse'
  }
}

const SQLITE_BUSY = 5

function isBusy(error: unknown): boolean {
  return error instanceof Error && 'errcode' in error && error.errcode === SQLITE_BUSY
}

function removePid(pidFile: string): void {
  try {
    rmSync(pidFile, { force: true })
  } catch {
    // The disk has become read-only.
  }
}

/** Only used in the error message: the file may be missing, stale, or from another process namespace. */
function readPid(pidFile: string): number | undefined {
  try {
    const pid = Number(readFileSync(pidFile, 'utf8'))
    return Number.isSafeInteger(pid) && pid > 0 ? pid : undefined
  } catch {
    return undefined
  }
}
