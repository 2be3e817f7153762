import { type ParseArgsOptionsConfig, parseArgs } from 'node:util'
import { UsageError } from './io.ts'

/** Reads a command's arguments; whatever it does not know is wrong use, said in one line. */
export function readArguments<const Options extends ParseArgsOptionsConfig>(
  args: readonly string[],
  config: { options: Options; allowPositionals: boolean },
) {
  try {
    return parseArgs({ args: [...args], ...config })
  } catch (error) {
    // Node goes on with advice on positional arguments that begin with a dash; none of ours do.
    const [what] = (error as Error).message.split(/\.(?:\s|$)/)
    throw new UsageError(what ?? '')
  }
}
