import { chmodSync, existsSync, mkdtempSync, rmSync, statfsSync } from 'node:fs'
import { join } from 'node:path'
import { migrate } from '../../src/db/migrate.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { findPostgres, findRedis } from './binaries.ts'
import { PATIENCE_MS } from './patience.ts'
import { createDatabase, dropDatabase, startPostgres } from './postgres.ts'
import { startRedis } from './redis.ts'

/** With CI set no test may be skipped: a missing program is a failure. */
export function isCi(): boolean {
  return Boolean(process.env.CI)
}

/** Options for a `test` or `describe` that needs PostgreSQL: `describe('…', needsPostgres(), () => …)`. */
export function needsPostgres(): { skip: string | false } {
  const missing = process.env.TEST_POSTGRES_URL === undefined && findPostgres() === undefined
  return { skip: missing && !isCi() && 'needs PostgreSQL, which is not installed' }
}

/** The same for Redis. */
export function needsRedis(): { skip: string | false } {
  const missing = process.env.TEST_REDIS_URL === undefined && findRedis() === undefined
  return { skip: missing && !isCi() && 'needs Redis, which is not installed' }
}

/** A fresh database on the server all test files share; a file that runs alone starts the server itself. */
export async function sharedPostgresDatabase(): Promise<{ url: string; drop: () => Promise<void> }> {
  const url = await createDatabase(await sharedPostgres())
  return { url, drop: () => dropDatabase(url) }
}

/** The same with this code's schema: a copy of a database that is migrated once for all test files. */
export async function sharedMigratedDatabase(): Promise<{ url: string; drop: () => Promise<void> }> {
  const url = await createDatabase(await sharedPostgres(), process.env.TEST_POSTGRES_TEMPLATE)
  // A file that runs alone has no such database to copy.
  if (process.env.TEST_POSTGRES_TEMPLATE === undefined) await migrateAt(url)
  return { url, drop: () => dropDatabase(url) }
}

async function migrateAt(url: string): Promise<void> {
  const db = await openPostgres({ url, connectTimeoutMs: PATIENCE_MS })
  await migrate(db)
  await db.close()
}

/** The Redis all test files share: a test keeps to keys and channels with a prefix of its own. */
export function sharedRedis(): Promise<{ url: string }> {
  const given = process.env.TEST_REDIS_URL
  ownRedis ??= given === undefined ? startRedis() : Promise.resolve({ url: given })
  return ownRedis
}

export interface SharedServices {
  /** For the child that runs the tests. */
  env: NodeJS.ProcessEnv
  stop: () => Promise<void>
}

/** Starts the servers that this machine has, once for all test files. */
export async function startSharedServices(): Promise<SharedServices> {
  const memory = keepTemporaryFilesInMemory()
  const env = { ...process.env }
  const started: { stop: () => Promise<void> }[] = []
  const stop = async () => {
    for (const server of started.splice(0)) await server.stop()
    if (memory !== null) rmSync(memory, { recursive: true, force: true, maxRetries: 5 })
  }
  try {
    if (env.TEST_POSTGRES_URL === undefined && findPostgres() !== undefined) {
      const postgres = await startPostgres()
      started.push(postgres)
      env.TEST_POSTGRES_URL = postgres.url
    }
    if (env.TEST_POSTGRES_URL !== undefined) {
      const template = await createDatabase(env.TEST_POSTGRES_URL)
      // A private server is removed as a whole.
      if (process.env.TEST_POSTGRES_URL !== undefined) started.push({ stop: () => dropDatabase(template) })
      await migrateAt(template)
      env.TEST_POSTGRES_TEMPLATE = new URL(template).pathname.slice(1)
    }
    if (env.TEST_REDIS_URL === undefined && findRedis() !== undefined) {
      const redis = await startRedis()
      started.push(redis)
      env.TEST_REDIS_URL = redis.url
    }
    return { env, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

const MEMORY_FOLDER = '/dev/shm'
const ENOUGH_BYTES = 4 * 1024 ** 3

/**
 * Puts the temporary files of the run into a folder in memory, where there is room, and answers with that folder. This
 * saves most of the time that a test needs for a fresh database. The servers still call `fsync`.
 */
function keepTemporaryFilesInMemory(): string | null {
  if (process.env.TMPDIR !== undefined || !existsSync(MEMORY_FOLDER)) return null
  const { bavail, bsize } = statfsSync(MEMORY_FOLDER)
  if (bavail * bsize < ENOUGH_BYTES) return null
  const folder = mkdtempSync(join(MEMORY_FOLDER, 'test-'))
  // PostgreSQL may run as another user.
  chmodSync(folder, 0o711)
  process.env.TMPDIR = folder
  return folder
}

let ownRedis: Promise<{ url: string }> | undefined
let ownPostgres: Promise<{ url: string }> | undefined

async function sharedPostgres(): Promise<string> {
  const given = process.env.TEST_POSTGRES_URL
  if (given !== undefined) return given
  ownPostgres ??= startPostgres()
  return (await ownPostgres).url
}
