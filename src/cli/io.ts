import type { Env } from '../config-reader.ts'

/** What a command may touch of the process it runs in; `main.ts` alone hands out the real one. */
export interface CommandLine {
  env: Env
  args: readonly string[]
  print(line: string): void
  complain(line: string): void
  readFile(path: string): string
  /** Aborts on SIGTERM or SIGINT, with the signal's name as the reason. */
  stopping: AbortSignal
}

/** From sysexits.h, which service managers understand. */
export const EXIT = { ok: 0, failed: 1, usage: 64, unavailable: 69, config: 78 } as const

export type ExitCode = (typeof EXIT)[keyof typeof EXIT]

/** A fault the operator can mend: said in one sentence, without a stack. */
export class CommandError extends Error {
  readonly exitCode: ExitCode

  constructor(message: string, exitCode: ExitCode = EXIT.failed, options?: ErrorOptions) {
    super(message, options)
    this.name = 'CommandError'
    this.exitCode = exitCode
  }
}

/** Wrong use: how the command is meant to be used is said below it. */
export class UsageError extends CommandError {
  constructor(message: string) {
    super(message, EXIT.usage)
    this.name = 'UsageError'
  }
}

/** In one line; a refused dual-stack connection is an AggregateError without a message. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.message || (error as NodeJS.ErrnoException).code || error.name
}
