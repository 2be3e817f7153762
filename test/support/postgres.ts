import { execFile, execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chownSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { findPostgres } from './binaries.ts'
import { PATIENCE_MS, START_PATIENCE_MS } from './patience.ts'
import { ServerProcess, startOnFreePort } from './server-process.ts'

const run = promisify(execFile)

export interface PostgresServer {
  /** Of the database `postgres`, which stays empty: tests use `createDatabase`. */
  url: string
  createDatabase(): Promise<string>
  stop(): Promise<void>
  /** Kills the server like a power cut; `restart` then recovers from the log. */
  kill(): Promise<void>
  restart(): Promise<void>
  /** It neither answers nor closes connections until `resume`. */
  pause(): void
  resume(): void
}

export interface PostgresOptions {
  /** Server settings beyond the usual ones, such as `{ max_connections: '20' }`. */
  settings?: Record<string, string>
}

/** A private PostgreSQL from the machine's own binaries, as durable as one in production: `fsync` stays on. */
export async function startPostgres(options: PostgresOptions = {}): Promise<PostgresServer> {
  const bin = findPostgres()
  if (bin === undefined) throw new Error('PostgreSQL is not installed (looked for initdb, postgres and psql)')
  const server = new ServerProcess('test-postgres')
  const data = join(server.folder, 'data')
  try {
    const user = serverUser()
    if (user) chownSync(server.folder, user.uid, user.gid)
    await initialize({ bin, data, folder: server.folder, user })
    const settings = {
      listen_addresses: '127.0.0.1',
      unix_socket_directories: server.folder,
      max_connections: '400',
      shared_buffers: '32MB',
      fsync: 'on',
      ...options.settings,
    }
    const port = await startOnFreePort((port) =>
      server.start({
        command: join(bin, 'postgres'),
        args: [
          '-D',
          data,
          '-p',
          String(port),
          ...Object.entries(settings).map(([name, value]) => `--${name}=${value}`),
        ],
        ready: /ready to accept connections/,
        stopSignal: 'SIGINT',
        user,
      }),
    )
    const url = `postgres://postgres@127.0.0.1:${port}/postgres`
    let killed = false
    return {
      url,
      createDatabase: () => createDatabase(url),
      stop: async () => {
        if (killed) releaseSharedMemory(data)
        await server.stop()
      },
      kill: async () => {
        await server.kill()
        killed = true
      },
      restart: async () => {
        await server.restart()
        killed = false
      },
      pause: () => server.pause(),
      resume: () => server.resume(),
    }
  } catch (error) {
    await server.stop()
    throw error
  }
}

/** A copy of a database on the server of the given address, by default an empty one; answers with its own address. */
export async function createDatabase(serverUrl: string, template = 'template0'): Promise<string> {
  const name = `test_${randomBytes(8).toString('hex')}`
  await execute(serverUrl, `create database ${name} template ${template}`)
  const url = new URL(serverUrl)
  url.pathname = `/${name}`
  return url.href
}

/** Also while clients are connected. */
export async function dropDatabase(url: string): Promise<void> {
  const server = new URL(url)
  const name = server.pathname.slice(1)
  server.pathname = '/postgres'
  await execute(server.href, `drop database if exists ${name} with (force)`)
}

/** Over a connection of its own, which takes less time than to start `psql`. */
async function execute(url: string, statement: string): Promise<void> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: PATIENCE_MS })
  await client.connect()
  try {
    await client.query(statement)
  } finally {
    await client.end()
  }
}

/** Runs one statement and answers with what `psql` prints: rows as lines, columns separated by `|`. */
export async function psql(url: string, statement: string): Promise<string> {
  const args = ['-X', '-q', '-A', '-t', '-v', 'ON_ERROR_STOP=1', '-d', url, '-c', statement]
  const { stdout } = await run(join(findPostgres() ?? '', 'psql'), args, { timeout: PATIENCE_MS })
  return stdout.trim()
}

interface ServerUser {
  uid: number
  gid: number
}

/** PostgreSQL refuses to run as root, so root starts it as another user. */
export function serverUser(): ServerUser | undefined {
  if (process.getuid?.() !== 0) return undefined
  const users = new Map<string | undefined, ServerUser>()
  for (const line of readFileSync('/etc/passwd', 'utf8').split('\n')) {
    const [name, , uid, gid] = line.split(':')
    users.set(name, { uid: Number(uid), gid: Number(gid) })
  }
  const user = users.get('postgres')
  if (user) return user
  throw new Error('Root needs a user named postgres to run PostgreSQL as')
}

interface Cluster {
  bin: string
  data: string
  folder: string
  user: ServerUser | undefined
}

async function initialize({ bin, data, folder, user }: Cluster): Promise<void> {
  const access = ['-U', 'postgres', '-A', 'trust']
  const args = ['-D', data, ...access, '-E', 'UTF8', '--locale=C', '--no-sync', '--no-instructions']
  await run(join(bin, 'initdb'), args, { cwd: folder, env: { LC_ALL: 'C' }, timeout: START_PATIENCE_MS, ...user })
}

/** A killed server leaves a tiny segment to the next start on its folder; without one, the segment would stay for good. */
function releaseSharedMemory(data: string): void {
  try {
    const [, segment] = readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n')[6]?.trim().split(/\s+/) ?? []
    if (segment) execFileSync('ipcrm', ['-m', segment], { stdio: 'ignore' })
  } catch {
    // Already gone, or no ipcrm here: it is 56 bytes.
  }
}
