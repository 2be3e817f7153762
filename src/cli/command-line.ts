import { ConfigError } from '../config-reader.ts'
import { ApiError } from '../core/errors.ts'
import { VERSION } from '../version.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode } from './io.ts'

type Command = (line: CommandLine) => Promise<ExitCode>

/** Loaded one by one: `serve` should not pay for what only `dev` or `doctor` needs. */
const COMMANDS: Record<string, { summary: string; load: () => Promise<Command> }> = {
  serve: { summary: 'run the service', load: async () => (await import('./serve.ts')).serve },
  dev: { summary: 'run everything on loopback, nothing to install', load: async () => (await import('./dev.ts')).dev },
  migrate: {
    summary: 'bring the database schema up to date',
    load: async () => (await import('./migrate.ts')).migrateCommand,
  },
  keys: { summary: 'create, list and revoke service accounts', load: async () => (await import('./keys.ts')).keys },
  jobs: { summary: 'reconcile unfinished jobs now', load: async () => (await import('./jobs.ts')).jobs },
  callbacks: { summary: 'replay stored callbacks', load: async () => (await import('./jobs.ts')).callbacks },
  doctor: {
    summary: 'check every dependency and say what to mend',
    load: async () => (await import('./doctor.ts')).doctor,
  },
}

export async function runCommandLine(line: CommandLine): Promise<ExitCode> {
  const [name = '--help', ...args] = line.args
  if (name === '--version' || name === '-v') return say(line, VERSION)
  if (name === '--help' || name === '-h' || name === 'help') return say(line, help())
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!command) {
    line.complain(`Unknown command "${name}"\n\n${help()}`)
    return EXIT.usage
  }
  try {
    const run = await command.load()
    return await run({ ...line, args })
  } catch (error) {
    return explain(error, line)
  }
}

function say(line: CommandLine, text: string): ExitCode {
  line.print(text)
  return EXIT.ok
}

function explain(error: unknown, line: CommandLine): ExitCode {
  if (error instanceof ConfigError) {
    line.complain(`${error.message}\nEvery setting: docs/configuration.md`)
    return EXIT.config
  }
  if (error instanceof CommandError) {
    line.complain(error.message)
    return error.exitCode
  }
  if (error instanceof ApiError) {
    line.complain(error.message)
    return EXIT.failed
  }
  line.complain(error instanceof Error ? (error.stack ?? error.message) : String(error))
  return EXIT.failed
}

function help(): string {
  const width = Math.max(...Object.keys(COMMANDS).map((name) => name.length))
  const rows = Object.entries(COMMANDS).map(([name, { summary }]) => `  ${name.padEnd(width)}  ${summary}`)
  return [
    'project-api <command>',
    '',
    ...rows,
    '',
    '  --help, --version',
    '',
    'Settings come from the environment: docs/configuration.md',
  ].join('\n')
}
