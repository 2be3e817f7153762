import { type DestinationStream, pino } from 'pino'
import { toRfc3339 } from '../core/clock.ts'
import type { Log } from '../core/log.ts'

export interface FlushableLog extends Log {
  /** Calls `done` when every line so far is written. */
  flush(done: () => void): void
}

/**
 * Writes structured lines. Only the fields of `LoggedError` are written for an error: drivers attach statements, parameters
 * and whole requests to their errors, which may contain secrets.
 */
export function createLogger({ destination, base = null, ...options }: LoggerOptions): FlushableLog {
  return pino({ ...options, base, timestamp, serializers: { err: toLoggedError } }, destination)
}

interface LoggerOptions {
  level: string
  destination: DestinationStream
  /** Fields of every line. */
  base?: object | null
  /** Fields of one line, read when it is written. */
  mixin?: () => object
}

const timestamp = () => `,"time":"${toRfc3339(Date.now())}"`

interface LoggedError {
  name: string
  message: string
  code?: string
  stack?: string
  cause?: LoggedError
}

const MAX_CAUSES = 5

function toLoggedError(error: unknown, depth = 0): LoggedError {
  if (!(error instanceof Error)) return { name: 'NonError', message: String(error).slice(0, 500) }
  const logged: LoggedError = { name: error.name, message: error.message }
  const { code } = error as { code?: unknown }
  if (typeof code === 'string') logged.code = code
  if (error.stack) logged.stack = error.stack
  if (error.cause !== undefined && depth < MAX_CAUSES) logged.cause = toLoggedError(error.cause, depth + 1)
  return logged
}
