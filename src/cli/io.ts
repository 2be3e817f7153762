import type { Env } from '../config-reader.ts'

/** The parts of the process that a command may use. Only `main.ts` creates the real one. */
export interface CommandLine {
  env: Env
  args: readonly string[]
  print(line: string): void
  /** Prints a piece of text, without a line break. */
  write(piece: string): void
  printError(line: string): void
  readFile(path: string): string
  /** Aborts on SIGTERM or SIGINT, with the signal's name as the reason. */
  stopping: AbortSignal
  /** For `serve`: calls the listener on each SIGHUP, and at once if SIGHUP came during the start. */
  onReload(listener: () => void): void
}

/** The codes of sysexits.h, which service managers understand. */
export const EXIT = { ok: 0, failed: 1, usage: 64, unavailable: 69, config: 78 } as const

export type ExitCode = (typeof EXIT)[keyof typeof EXIT]

/** An error that the operator can fix: printed as one sentence, without a stack trace. */
export class CommandError extends Error {
  readonly exitCode: ExitCode

  constructor(message: string, exitCode: ExitCode = EXIT.failed, options?: ErrorOptions) {
    super(message, options)
    this.name = 'CommandError'
    this.exitCode = exitCode
  }
}

/** The command was called with wrong arguments: its usage is printed below the message. */
export class UsageError extends CommandError {
  constructor(message: string) {
    super(message, EXIT.usage)
    this.name = 'UsageError'
  }
}

export function untilStopping({ stopping }: CommandLine): Promise<void> {
  return new Promise((resolve) => {
    if (stopping.aborted) resolve()
    else stopping.addEventListener('abort', () => resolve(), { once: true })
  })
}
