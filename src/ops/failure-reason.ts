import { UnavailableError } from '../core/errors.ts'

/** By the SQLSTATE of PostgreSQL, or the primary result code of SQLite. */
const REASONS: Readonly<Record<string, string>> = {
  '25006': 'the database is read-only',
  '53100': 'the disk is full',
  '53300': 'all connections of the server are in use',
  '55P03': 'another session holds a lock',
  '8': 'the database is read-only',
  '10': 'the disk fails',
  '13': 'the disk is full',
}

/** Why a change failed, in words that may be published: messages of the engines name files and addresses. */
export function failureReason(error: unknown): string {
  const cause = error instanceof UnavailableError ? error.cause : error
  const { code, errcode } = (cause ?? {}) as { code?: unknown; errcode?: unknown }
  // The low byte of an extended result code is the primary one.
  const key = typeof errcode === 'number' ? errcode & 0xff : code
  return REASONS[String(key)] ?? 'the log has the reason'
}
