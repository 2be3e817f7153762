import { readArguments } from './arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode } from './io.ts'

const OPTIONS = { open: { type: 'boolean' }, keep: { type: 'boolean' } } as const

/** Runs the service with its own database and a sandbox of its dependencies, all on loopback. Nothing has to be installed. */
export async function dev(line: CommandLine): Promise<ExitCode> {
  const { open = false, keep = false } = readArguments(line.args, { options: OPTIONS, allowPositionals: false }).values
  if (line.env.NODE_ENV === 'production') {
    throw new CommandError(
      'dev is not for production: its identity provider signs in every user without a password. Use serve.',
      EXIT.usage,
    )
  }
  line.print('Starting the service and its sandbox …')
  // Loaded after this line: in a fresh clone, loading takes seconds.
  const { runDev } = await import('./dev/run-dev.ts')
  return runDev(line, { open, keep })
}
