import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Config } from '../config.ts'
import { ConfigError } from '../config-reader.ts'
import { isLoopbackHost } from '../core/loopback.ts'
import type { IdentityProvider } from '../sandbox/identity-provider/identity-provider.ts'
import { type Sandbox, startSandbox } from '../sandbox/sandbox.ts'
import { welcome } from './dev-welcome.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, untilStopping } from './io.ts'
import { loadSettings } from './startup/load-job-types.ts'
import { openMigratedDatabase } from './startup/open-database.ts'
import { runService } from './startup/run-service.ts'

const DEFAULT_PORT = 8080

/** Runs the service with a temporary database and a sandbox of its dependencies, all on loopback. Nothing has to be installed. */
export async function dev(line: CommandLine): Promise<ExitCode> {
  if (line.env.NODE_ENV === 'production') {
    throw new CommandError('dev is not for production: its identity provider lets anyone in. Use serve.', EXIT.usage)
  }
  const port = await choosePort(line.env.PORT?.trim() || null)
  const sandbox = await startSandbox({ apiUrl: `http://127.0.0.1:${port}` })
  const dataDir = mkdtempSync(join(tmpdir(), 'project-api-dev-'))
  try {
    const { config, ...loaded } = loadSettings({ ...line, env: devEnvironment(line, { port, sandbox, dataDir }) })
    refuseRemoteDatabase(config.database, line.env.PGHOST)
    const opened = await openMigratedDatabase(config.database)
    const service = await runService(config, opened, { ...loaded, pushCa: sandbox.push.ca, loopbackOnly: true })
    await seedProjects(service.url, sandbox.identity)
    for (const text of welcome(service.url, sandbox)) line.print(text)
    await untilStopping(line)
    await service.stop({ lameDuck: false })
    return EXIT.ok
  } finally {
    await sandbox.close()
    rmSync(dataDir, { recursive: true, force: true })
  }
}

/** Settings for the sandbox. What the developer has set (a variant, a limit, a PostgreSQL) takes precedence. */
function devEnvironment(
  { env }: CommandLine,
  { port, sandbox, dataDir }: { port: string; sandbox: Sandbox; dataDir: string },
): Record<string, string | undefined> {
  const defaults: Record<string, string> = {
    LOG_LEVEL: 'warn',
    DATA_DIR: dataDir,
    JOB_TYPES_FILE: fileURLToPath(new URL('../../job-types.json', import.meta.url)),
    WEBHOOK_SECRET: randomBytes(24).toString('base64url'),
    RUNTIME_URL: sandbox.runtime.url,
    PUBLIC_URL: `http://127.0.0.1:${port}`,
    PUSH_PROJECT_ID: sandbox.push.credentials.projectId,
    PUSH_CLIENT_EMAIL: sandbox.push.credentials.clientEmail,
    PUSH_PRIVATE_KEY: sandbox.push.credentials.privateKey,
    PUSH_API_URL: sandbox.push.url,
    PUSH_TOKEN_URL: sandbox.push.tokenUrl,
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

/** Any page on this machine may sign in as any user, so the data of others must not be within reach. */
function refuseRemoteDatabase(database: Config['database'], defaultHost = ''): void {
  if (database.engine !== 'postgres') return
  const { hostname, searchParams } = new URL(database.url)
  // As the driver reads it: a host in the query wins, and a path is a socket of this machine.
  const host = searchParams.getAll('host').at(-1) || hostname.replaceAll(/%2f/gi, '/') || defaultHost || 'localhost'
  if (host.startsWith('/') || isLoopbackHost(host)) return
  throw new ConfigError(['DATABASE_URL must be a database on this machine: in dev anyone may be any user. Use serve.'])
}

/** Chosen before anything starts, because the sandbox needs the address of the service. */
async function choosePort(asked: string | null): Promise<string> {
  if (asked !== null && asked !== '0') return asked
  return String(await freePort(asked === null ? DEFAULT_PORT : 0))
}

/** The preferred port, or any free port when another program uses it. */
function freePort(preferred: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer()
    probe.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE' && preferred !== 0) resolve(freePort(0))
      else reject(error)
    })
    probe.listen(preferred, '127.0.0.1', () => {
      const { port } = probe.address() as { port: number }
      probe.close(() => resolve(port))
    })
  })
}

const SEEDS = [
  { name: 'Website relaunch', description: 'Copy, pictures, a new start page' },
  { name: 'Quarterly report', description: 'Numbers for the board', metadata: { team: 'finance' } },
  { name: 'Support bot', description: 'Answers what the handbook knows' },
]

/** Creates the first projects through the API. Idempotency keys prevent duplicates in a PostgreSQL that outlives this process. */
async function seedProjects(url: string, identity: IdentityProvider): Promise<void> {
  const token = identity.mint({ user: 'ada', expiresInSeconds: 60 })
  for (const project of SEEDS) {
    const response = await fetch(`${url}/v1/projects`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${token}`,
        'content-type': 'application/json',
        'idempotency-key': `seed ${project.name}`.replaceAll(' ', '-'),
      },
      body: JSON.stringify(project),
      signal: AbortSignal.timeout(10_000),
    })
    if (!response.ok) throw new Error(`Seeding failed: ${response.status} ${await response.text()}`)
  }
}
