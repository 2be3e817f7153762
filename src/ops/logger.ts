import { type DestinationStream, pino } from 'pino'
import { toRfc3339 } from '../core/clock.ts'
import type { Log } from '../core/log.ts'

export interface FlushableLog extends Log {
  /** Calls back once every line so far is written. */
  flush(done: () => void): void
}

/**
 * Structured lines on standard output. Only named fields of an error are written, because drivers hang statements,
 * parameters and whole requests on theirs.
 */
export function createLogger(level: string, destination: DestinationStream): FlushableLog {
  return pino({ level, base: null, timestamp, serializers: { err: describeError } }, destination)
}

const timestamp = () => `,"time":"${toRfc3339(Date.now())}"`

export interface DescribedError {
  name: string
  message: string
  code?: string
  stack?: string
  cause?: DescribedError
}

const MAX_CAUSES = 5

export function describeError(error: unknown, depth = 0): DescribedError {
  if (!(error instanceof Error)) return { name: 'NonError', message: String(error).slice(0, 500) }
  const described: DescribedError = { name: error.name, message: error.message }
  const { code } = error as { code?: unknown }
  if (typeof code === 'string') described.code = code
  if (error.stack) described.stack = error.stack
  if (error.cause !== undefined && depth < MAX_CAUSES) described.cause = describeError(error.cause, depth + 1)
  return described
}
