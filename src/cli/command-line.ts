import { ConfigError } from '../config-reader.ts'
import { ApiError } from '../core/errors.ts'
import { VERSION } from '../version.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'

type RunCommand = (line: CommandLine) => Promise<ExitCode>

interface Command {
  summary: string
  /** Absent for a command without arguments. */
  usage?: string
  load: () => Promise<RunCommand>
}

/** Each command is loaded when it runs, so that `serve` does not load what only `dev` or `doctor` needs. */
const COMMANDS: Record<string, Command> = {
  serve: { summary: 'run the service', load: async () => (await import('./serve.ts')).serve },
  dev: {
    summary: 'run the service and a sandbox on loopback; nothing to install',
    load: async () => (await import('./dev.ts')).dev,
  },
  migrate: {
    summary: 'bring the database schema up to date',
    load: async () => (await import('./migrate.ts')).migrateCommand,
  },
  keys: {
    summary: 'create, list and revoke service accounts',
    usage: `keys create --name NAME --scopes "SCOPE SCOPE" [--expires RFC3339]
       keys list
       keys revoke ID`,
    load: async () => (await import('./keys.ts')).keys,
  },
  jobs: {
    summary: 'ask the runtime about active jobs now',
    usage: 'jobs reconcile [JOB_ID …]     without an id: every job whose run may be active',
    load: async () => (await import('./jobs.ts')).jobs,
  },
  callbacks: {
    summary: 'process stored callbacks again',
    usage: 'callbacks replay CALLBACK_ID …',
    load: async () => (await import('./callbacks.ts')).callbacks,
  },
  doctor: {
    summary: 'check every dependency and tell you how to fix problems',
    load: async () => (await import('./doctor.ts')).doctor,
  },
}

/** Runs one command and returns its exit code. Every error becomes a message on standard error. */
export async function runCommandLine(line: CommandLine): Promise<ExitCode> {
  const [name = '--help', ...args] = line.args
  if (name === '--version' || name === '-v') return say(line, VERSION)
  if (asksForHelp(name) || name === 'help') return say(line, help())
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!command) {
    line.printError(`Unknown command "${name}"\n\n${help()}`)
    return EXIT.usage
  }
  const usage = `usage: ${command.usage ?? name}`
  if (args.some(asksForHelp)) return say(line, `${usage}\n\n  ${command.summary}`)
  try {
    if (!command.usage && args.length > 0) throw new UsageError(`${name} takes no arguments, not "${args.join(' ')}"`)
    const run = await command.load()
    return await run({ ...line, args })
  } catch (error) {
    if (!(error instanceof UsageError)) return explain(error, line)
    line.printError(`${error.message}\n${usage}`)
    return error.exitCode
  }
}

function asksForHelp(arg: string): boolean {
  return arg === '--help' || arg === '-h'
}

function say(line: CommandLine, text: string): ExitCode {
  line.print(text)
  return EXIT.ok
}

function explain(error: unknown, line: CommandLine): ExitCode {
  if (error instanceof ConfigError) {
    line.printError(`${error.message}\nEvery setting: docs/configuration.md`)
    return EXIT.config
  }
  if (error instanceof CommandError) {
    line.printError(error.message)
    return error.exitCode
  }
  if (error instanceof ApiError) {
    line.printError(error.message)
    return EXIT.failed
  }
  line.printError(error instanceof Error ? (error.stack ?? error.message) : String(error))
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
