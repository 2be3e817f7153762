import { type ParseArgsOptionsConfig, parseArgs } from 'node:util'
import { type CommandLine, UsageError } from './io.ts'

/** Reads a command's arguments. An argument that the command does not take is a `UsageError` of one line. */
export function readArguments<const Options extends ParseArgsOptionsConfig>(
  args: readonly string[],
  config: { options: Options; allowPositionals: boolean },
) {
  try {
    return parseArgs({ args: [...args], ...config })
  } catch (error) {
    // Node adds advice on positional arguments that begin with a dash. No command takes those, so only the first sentence is kept.
    const [what] = (error as Error).message.split(/\.(?:\s|$)/)
    throw new UsageError(what ?? '')
  }
}

/** The arguments of a command that takes a subcommand and ids, but no options. */
export function readWords(line: CommandLine): readonly string[] {
  return readArguments(line.args, { options: {}, allowPositionals: true }).positionals
}

const DEFAULT_LIMIT = 20
const MAX_LIMIT = 100

/** The option `--limit` of lists. */
export function readLimit(text: string | undefined): number {
  if (text === undefined) return DEFAULT_LIMIT
  const limit = Number(text)
  if (!Number.isInteger(limit) || limit < 1 || limit > MAX_LIMIT) {
    throw new UsageError(`--limit must be a number from 1 to ${MAX_LIMIT}`)
  }
  return limit
}
