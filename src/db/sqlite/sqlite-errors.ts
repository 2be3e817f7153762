import { UnavailableError } from '../../core/errors.ts'
import { UniqueViolation } from '../database.ts'

const UNIQUE_CODES = new Set([1555, 2067]) // SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE
const UNAVAILABLE_CODES = new Set([5, 8, 10, 13, 14]) // SQLITE_BUSY, _READONLY, _IOERR, _FULL, _CANTOPEN

/** Translates SQLite's errors into the errors that both engines share. */
export function translated(error: unknown): unknown {
  const errcode = errcodeOf(error)
  if (errcode === undefined) return error
  if (UNIQUE_CODES.has(errcode)) return new UniqueViolation(error)
  // The low byte of an extended result code is the primary one.
  if (!UNAVAILABLE_CODES.has(errcode & 0xff)) return error
  return new UnavailableError('The database is unavailable', { cause: error })
}

/** SQLite's extended result code, if the error has one. */
function errcodeOf(error: unknown): number | undefined {
  return error instanceof Error && 'errcode' in error && typeof error.errcode === 'number' ? error.errcode : undefined
}
