import { DatabaseError } from 'pg'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import { LockTimeout, TransactionConflict, UniqueViolation } from '../database.ts'

const UNIQUE_VIOLATION = '23505'
const LOCK_NOT_AVAILABLE = '55P03'
/** Serialization failure and deadlock: the server aborted one of two transactions, which should be retried. */
const COLLISIONS = new Set(['40001', '40P01'])
/**
 * Connection failure, rejected login, no such database, no resources, shutdown, server error, statement timeout,
 * read-only standby.
 */
const UNAVAILABLE = [/^08/, /^28/, /^3D/, /^53/, /^57/, /^58/, /^XX/, /^25006$/, /^25P0[23]$/]

/** An error that is not the server's answer to a statement means that the server cannot be reached. */
export function translatedPostgresError(error: unknown): unknown {
  if (error instanceof ApiError) return error
  if (!(error instanceof DatabaseError)) return new UnavailableError('The database is unavailable', { cause: error })
  const code = error.code ?? ''
  if (code === UNIQUE_VIOLATION) return new UniqueViolation(error)
  if (code === LOCK_NOT_AVAILABLE) return new LockTimeout(error)
  const unavailable = COLLISIONS.has(code) || UNAVAILABLE.some((pattern) => pattern.test(code))
  return unavailable ? new UnavailableError('The database is unavailable', { cause: error }) : error
}

/**
 * Whether the server does not know the statement by its name, or knows it already: it has not run. When the first of
 * several equal pipelined statements fails before it is prepared, those behind it find no statement of that name.
 */
export function isNotPrepared(error: unknown): boolean {
  return error instanceof DatabaseError && (error.code === '26000' || error.code === '42P05')
}

/** Whether a translated error means that the transaction should be retried. */
export function isCollision(error: unknown): boolean {
  if (error instanceof TransactionConflict) return true
  const cause = error instanceof UnavailableError ? error.cause : undefined
  return cause instanceof DatabaseError && COLLISIONS.has(cause.code ?? '')
}
