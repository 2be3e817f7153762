import { ConfigError } from '../config-reader.ts'
import { didYouMean } from '../core/did-you-mean.ts'
import { ApiError, reasonOf, UnavailableError } from '../core/errors.ts'
import { VERSION } from '../version.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'

type RunCommand = (line: CommandLine) => Promise<ExitCode>

interface Command {
  summary: string
  /** Absent for a command without arguments. */
  usage?: string
  load: () => Promise<RunCommand>
}

const SERVICE = `
       [--url URL] [--key SERVICE_KEY] [--json]     with each of them; defaults: PROJECT_API_URL and PROJECT_API_KEY,
       else the service that runs on DATA_DIR`

/** Each command is loaded when it runs, so that `serve` does not load code that only `dev` or `doctor` needs. */
const COMMANDS: Record<string, Command> = {
  serve: { summary: 'run the service', load: async () => (await import('./serve.ts')).serve },
  dev: {
    summary: 'run the service with a sandbox of its dependencies on this machine',
    usage: `dev [--open] [--keep]
       --open   opens the start page in the browser
       --keep   data, keys and tokens survive a restart, in data/dev or DATA_DIR`,
    load: async () => (await import('./dev.ts')).dev,
  },
  'dev-env': {
    summary: 'print API, ADA, ADMIN and RUNTIME of a running dev, for eval',
    usage: 'dev-env [--url URL]     the start page; default: the usual one',
    load: async () => (await import('./dev/dev-env.ts')).devEnv,
  },
  migrate: {
    summary: 'bring the database schema up to date',
    load: async () => (await import('./migrate.ts')).migrateCommand,
  },
  backup: {
    summary: 'write a copy of the embedded database into a file, also while a node runs',
    usage: 'backup FILE',
    load: async () => (await import('./data/backup.ts')).backup,
  },
  restore: {
    summary: 'make the embedded database from a backup, or finish a restore of PostgreSQL',
    usage: `restore FILE
       restore --finish     on PostgreSQL, after pg_restore and before the service starts`,
    load: async () => (await import('./data/restore.ts')).restore,
  },
  copy: {
    summary: 'copy everything into an empty database of the other engine, and verify it',
    usage: 'copy --to postgres://…     or a folder, from PostgreSQL to the embedded database',
    load: async () => (await import('./data/copy.ts')).copy,
  },
  keys: {
    summary: 'create, list and revoke service accounts',
    usage: `keys create --name NAME --scopes "SCOPE SCOPE" [--expires RFC3339]
       keys list
       keys revoke ID${SERVICE}; where none runs, the database`,
    load: async () => (await import('./keys.ts')).keys,
  },
  jobs: {
    summary: 'list, show, cancel, repeat and follow jobs, and ask the runtime about them',
    usage: `jobs list [--status STATUS] [--type TYPE] [--user SUB] [--limit 1..100]
       jobs get JOB_ID
       jobs cancel JOB_ID …
       jobs retry JOB_ID … [--again]     --again: also a job that was retried already
       jobs tail            until it is interrupted
       jobs reconcile [JOB_ID …]     without an id: every job whose run may be active${SERVICE}`,
    load: async () => (await import('./jobs.ts')).jobs,
  },
  users: {
    summary: 'block and unblock users, export everything about one, erase one',
    usage: `users block SUB
       users unblock SUB
       users export SUB
       users erase SUB     where no service runs, on the database${SERVICE}`,
    load: async () => (await import('./users.ts')).users,
  },
  audit: {
    summary: 'print the newest entries of the audit trail',
    usage: `audit [--actor ID] [--action ACTION] [--object ID] [--limit 1..100]${SERVICE}`,
    load: async () => (await import('./audit.ts')).audit,
  },
  callbacks: {
    summary: 'process stored callbacks again',
    usage: `callbacks replay CALLBACK_ID …${SERVICE}`,
    load: async () => (await import('./callbacks.ts')).callbacks,
  },
  types: {
    summary: 'print TypeScript types of the job types',
    usage: `types [--file JOB_TYPES_FILE]
       types --url URL [--key SERVICE_KEY]     default of the key: PROJECT_API_KEY`,
    load: async () => (await import('./types.ts')).types,
  },
  doctor: {
    summary: 'check every dependency and tell you how to fix problems',
    usage: 'doctor [--url URL]     with --url: ask a running service for its own view',
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
    const meant = didYouMean(name, Object.keys(COMMANDS))
    line.printError(`Unknown command "${name}"${meant ? `. Did you mean ${meant}?` : ''}\n\n${help()}`)
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
  if (error instanceof UnavailableError) {
    const cause = error.cause === undefined ? '' : `: ${reasonOf(error.cause)}`
    line.printError(`${error.message}${cause}`)
    return EXIT.unavailable
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
