import { ApiError, UnavailableError } from '../core/errors.ts'
import { TransactionConflict } from '../db/database.ts'

/** The message for the client. An internal error or an error of the database is thrown again and fails the batch. */
export function sentenceOf(error: unknown): string {
  const isOfDatabase =
    error instanceof TransactionConflict || (error instanceof UnavailableError && error.cause !== undefined)
  if (error instanceof ApiError && !isOfDatabase) return error.message
  throw error
}
