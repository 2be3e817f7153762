import { isLoopbackHost } from '../../core/loopback.ts'
import { readArguments } from '../arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from '../io.ts'
import { startPortOf } from './ports.ts'

const NAMES = ['API', 'ADA', 'ADMIN', 'RUNTIME']
/** The shell runs the output, so it may contain only addresses and tokens. */
const SAFE = /^[\w.:/-]+$/

/** Prints shell variables with the addresses and tokens of a running `dev`: `eval "$(npx project-api dev-env)"`. */
export async function devEnv(line: CommandLine): Promise<ExitCode> {
  const { values } = readArguments(line.args, { options: { url: { type: 'string' } }, allowPositionals: false })
  const url = URL.parse(values.url ?? `http://127.0.0.1:${startPortOf(line.env.PORT)}`)
  if (!url || !isLoopbackHost(url.hostname)) throw new UsageError('--url must be the address of the start page of dev')
  const variables = await readVariables(url)
  const isSafe = (value: unknown) => typeof value === 'string' && SAFE.test(value)
  if (!NAMES.every((name) => isSafe(variables[name])))
    throw new CommandError(`The program at ${url.origin} is not the start page of dev`)
  for (const name of NAMES) line.print(`export ${name}='${variables[name]}'`)
  return EXIT.ok
}

async function readVariables(url: URL): Promise<Record<string, unknown>> {
  try {
    const response = await fetch(new URL('/environment', url), { signal: AbortSignal.timeout(5_000) })
    return (await response.json()) as Record<string, unknown>
  } catch (error) {
    const message = `No dev is running at ${url.origin}. Start it with: npm run dev`
    throw new CommandError(message, EXIT.unavailable, { cause: error })
  }
}
