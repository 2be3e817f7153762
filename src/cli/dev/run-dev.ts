import { fileURLToPath } from 'node:url'
import type { Config } from '../../config.ts'
import { ConfigError } from '../../config-reader.ts'
import { isLoopbackHost } from '../../core/loopback.ts'
import { type Sandbox, startSandbox } from '../../sandbox/sandbox.ts'
import { shippedFile } from '../../shipped-files.ts'
import { type CommandLine, EXIT, type ExitCode, untilStopping } from '../io.ts'
import { buildConsole } from '../startup/build-console.ts'
import { loadSettings } from '../startup/load-job-types.ts'
import { openMigratedDatabase } from '../startup/open-database.ts'
import { runService } from '../startup/run-service.ts'
import { type DevData, openDevData } from './data-folder.ts'
import { openBrowser } from './open-browser.ts'
import { choosePort, portNotices, sandboxPorts } from './ports.ts'
import { seedProjects } from './seed-projects.ts'
import { welcome } from './welcome.ts'

/** Runs until the process is asked to stop. Without `keep`, nothing is left behind. */
export async function runDev(line: CommandLine, { open, keep }: { open: boolean; keep: boolean }): Promise<ExitCode> {
  const building = buildConsole({ onBuild: () => line.print('Building the console. This takes about 20 s …') })
  const asked = line.env.PORT?.trim() || undefined
  const port = await choosePort(asked ?? null)
  const data = openDevData({ keep, dataDir: line.env.DATA_DIR?.trim() || undefined })
  const { signingKey } = data
  const apiUrl = `http://127.0.0.1:${port}`
  const sandbox = await startSandbox({ apiUrl, ports: sandboxPorts(asked), ...(signingKey && { signingKey }) })
  try {
    const { config, ...loaded } = loadSettings({ ...line, env: devEnvironment(line, { port, sandbox, data }) })
    refuseRemoteDatabase(config.database, line.env.PGHOST)
    const opened = await openMigratedDatabase(config.database)
    const service = await runService(config, opened, {
      ...loaded,
      pushCa: sandbox.push.ca,
      loopbackOnly: true,
      consoleDev: { user: 'admin', links: linksOf(sandbox) },
      readableLog: true,
    })
    await seedProjects(service.url, sandbox.identity)
    const problem = await building
    if (problem !== null) line.printError(problem)
    const lines = welcome(service.url, sandbox, {
      hasConsole: config.console !== null,
      notices: portNotices(asked, service.url, sandbox),
      end: keep ? `. The data stays in ${data.folder}` : ' and leaves nothing behind.',
    })
    for (const text of lines) line.print(text)
    if (open) openBrowser(sandbox.start.url, () => line.printError('No program for links was found. Open the address.'))
    await untilStopping(line)
    await service.stop({ lameDuck: false })
    return EXIT.ok
  } finally {
    await sandbox.close()
    data.release()
  }
}

function linksOf({ start, identity, runtime, push, receiver }: Sandbox): Record<string, string> {
  return {
    'Start page': start.url,
    Tokens: identity.url,
    'Runtime faults': runtime.url,
    'Push messages': push.plainUrl,
    'Webhook receiver': receiver.url,
  }
}

/** Settings for the sandbox. Settings of the developer (a variant, a limit, a PostgreSQL) take precedence. */
function devEnvironment(
  { env }: CommandLine,
  { port, sandbox, data }: { port: string; sandbox: Sandbox; data: DevData },
): Record<string, string | undefined> {
  const defaults: Record<string, string> = {
    LOG_LEVEL: 'warn',
    DATA_DIR: data.folder,
    JOB_TYPES_FILE: fileURLToPath(shippedFile('job-types.json')),
    WEBHOOK_SECRET: data.webhookSecret,
    RUNTIME_URL: sandbox.runtime.url,
    PUBLIC_URL: `http://127.0.0.1:${port}`,
    PUSH_PROJECT_ID: sandbox.push.credentials.projectId,
    PUSH_CLIENT_EMAIL: sandbox.push.credentials.clientEmail,
    PUSH_PRIVATE_KEY: sandbox.push.credentials.privateKey,
    PUSH_API_URL: sandbox.push.url,
    PUSH_TOKEN_URL: sandbox.push.tokenUrl,
    CONSOLE_CLIENT_ID: 'console',
    TOKEN_AUDIENCE: 'none',
    EGRESS_ALLOW: '127.0.0.0/8,::1',
  }
  // A setting and its `_FILE` form must not both be given.
  const applicable = Object.entries(defaults).filter(([name]) => !env[`${name}_FILE`])
  return {
    ...Object.fromEntries(applicable),
    ...env,
    NODE_ENV: 'development',
    HOST: '127.0.0.1',
    PORT: port,
    ISSUER_URL: sandbox.identity.issuer,
  }
}

/** In `dev` any page on this machine may sign in as any user, so a shared database must not be used. */
function refuseRemoteDatabase(database: Config['database'], defaultHost = ''): void {
  if (database.engine !== 'postgres') return
  const { hostname, searchParams } = new URL(database.url)
  // Read the URL as the driver does: a host in the query takes precedence, and a path is a socket of this machine.
  const host = searchParams.getAll('host').at(-1) || hostname.replaceAll(/%2f/gi, '/') || defaultHost || 'localhost'
  if (host.startsWith('/') || isLoopbackHost(host)) return
  throw new ConfigError(['DATABASE_URL must be a database on this machine: in dev anyone may be any user. Use serve.'])
}
