import { DatabaseError } from 'pg'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import { UniqueViolation } from '../database.ts'

const UNIQUE_VIOLATION = '23505'
/** Two transactions got in each other's way; the server undid one, and doing it again is right. */
const COLLISIONS = new Set(['40001', '40P01'])
/**
 * Connection trouble, no entry, no such database, no resources, shutdown, a server error, a statement cut off by its
 * timeout, a read-only standby.
 */
const TROUBLE = [/^08/, /^28/, /^3D/, /^53/, /^57/, /^58/, /^XX/, /^25006$/, /^25P0[23]$/, /^55P03$/]

/** Whatever did not come from the server in answer to a statement is trouble with reaching it. */
export function translatedPostgresError(error: unknown): unknown {
  if (error instanceof ApiError) return error
  if (!(error instanceof DatabaseError)) return new UnavailableError('The database is unavailable', { cause: error })
  const code = error.code ?? ''
  if (code === UNIQUE_VIOLATION) return new UniqueViolation(error)
  const unavailable = COLLISIONS.has(code) || TROUBLE.some((pattern) => pattern.test(code))
  return unavailable ? new UnavailableError('The database is unavailable', { cause: error }) : error
}

/** Whether a translated error stands for a transaction that only has to be done again. */
export function isCollision(error: unknown): boolean {
  const cause = error instanceof UnavailableError ? error.cause : undefined
  return cause instanceof DatabaseError && COLLISIONS.has(cause.code ?? '')
}
