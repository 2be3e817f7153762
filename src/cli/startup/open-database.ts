import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../core/clock.ts'
import { reasonOf, UnavailableError } from '../../core/errors.ts'
import { buildNextIndex } from '../../db/build-indexes.ts'
import { type Database, LockTimeout } from '../../db/database.ts'
import { MigrationError, migrate, pendingMigrations } from '../../db/migrate.ts'
import { removeAllNodes } from '../../db/nodes/node-store.ts'
import { findObstacle } from '../../db/postgres/find-obstacle.ts'
import type { PostgresOptions } from '../../db/postgres/postgres.ts'
import { DataFolderInUse, isDiskFault, lockDataFolder } from '../../db/sqlite/data-folder.ts'
import { openSqliteToRead } from '../../db/sqlite/read-only.ts'
import { openSqlite } from '../../db/sqlite/sqlite.ts'
import { CommandError, EXIT } from '../io.ts'

const MIGRATION_TIMEOUT_MS = 30 * 60_000
const INDEX_TIMEOUT_MS = 6 * 60 * 60_000
/** How long to wait before the next attempt while another node builds. */
const BUSY_PAUSE_MS = 2_000

const LOCKED =
  'The database cannot be migrated: another session keeps a table in use, such as pg_dump or an open transaction (pg_locks names it). Start again when it has ended'

export interface OpenedDatabase {
  db: Database
  close(): Promise<void>
}

/** Opens the configured engine. The embedded one also locks its folder, so that only one process uses it. */
export async function openDatabase(
  config: Config['database'],
  limits: { queryTimeoutMs?: number } = {},
): Promise<OpenedDatabase> {
  if (config.engine === 'postgres') {
    const { engine: _engine, ...settings } = config
    return openServer({ ...settings, ...limits })
  }
  const lock = lockOrExplain(config.dataDir)
  try {
    const db = await openSqlite({ path: databaseFile(config.dataDir) })
    return {
      db,
      close: async () => {
        await db.close()
        lock.release()
      },
    }
  } catch (error) {
    lock.release()
    const message = `The database in ${config.dataDir} cannot be opened: ${reasonOf(error)}`
    throw new CommandError(message, EXIT.unavailable, { cause: error })
  }
}

/** Opens the database for a command that only reads, also beside a running service on the embedded database. */
export async function openToRead(config: Config['database']): Promise<OpenedDatabase> {
  try {
    return await openDatabase(config)
  } catch (error) {
    const isInUse = error instanceof CommandError && error.cause instanceof DataFolderInUse
    if (!isInUse || config.engine !== 'sqlite') throw error
    const db = openSqliteToRead(databaseFile(config.dataDir))
    const opened = { db, close: () => db.close() }
    await refuseOtherSchema(opened)
    return opened
  }
}

/** Opens the database and applies pending migrations. */
export async function openMigratedDatabase(config: Config['database']): Promise<OpenedDatabase> {
  if (config.engine === 'postgres') {
    await migrateDatabase(config)
    return openDatabase(config)
  }
  const opened = await openDatabase(config)
  await migrateOrClose(opened)
  // The lock on the folder proves that this is the only process: leases of a crashed one are free at once.
  await removeAllNodes(opened.db)
  return opened
}

/** Uses a separate connection on PostgreSQL: rewriting a large table may take longer than the timeout of a request. */
export async function migrateDatabase(config: Config['database']): Promise<string[]> {
  const opened = await openDatabase(config, { queryTimeoutMs: MIGRATION_TIMEOUT_MS })
  const applied = await migrateOrClose(opened)
  await opened.close()
  return applied
}

/** Builds the indexes that a migrated PostgreSQL database still lacks. Waits while another node builds. */
export async function buildIndexes(
  config: Config['database'],
  { onBuilt, signal }: { onBuilt: (name: string) => void; signal: AbortSignal },
): Promise<void> {
  if (config.engine !== 'postgres') return
  const { db, close } = await openDatabase(config, { queryTimeoutMs: INDEX_TIMEOUT_MS })
  try {
    while (!signal.aborted) {
      const round = await buildNextIndex(db)
      if (round === 'done') return
      if (round === 'busy') await systemClock.sleep(BUSY_PAUSE_MS, signal)
      else onBuilt(round.built)
    }
  } finally {
    await close()
  }
}

export function databaseFile(dataDir: string): string {
  return join(dataDir, 'project-api.db')
}

/** Closes the database and rejects if this release cannot use its schema. Pending migrations are allowed. */
export async function refuseOtherSchema(opened: OpenedDatabase): Promise<void> {
  try {
    await pendingMigrations(opened.db)
  } catch (error) {
    await opened.close()
    throw error instanceof MigrationError ? unusable(error) : error
  }
}

export function unusable(error: MigrationError): CommandError {
  return new CommandError(error.message, EXIT.config, { cause: error })
}

async function migrateOrClose(opened: OpenedDatabase): Promise<string[]> {
  try {
    return (await migrate(opened.db)).applied
  } catch (error) {
    const obstacle = await findObstacle(opened.db).catch(() => null)
    await opened.close()
    if (error instanceof MigrationError) throw unusable(error)
    if (obstacle) {
      const message = `The database cannot be migrated: ${obstacle.text}\n${obstacle.hint}`
      throw new CommandError(message, EXIT.config, { cause: error })
    }
    if (error instanceof LockTimeout) throw new CommandError(LOCKED, EXIT.unavailable, { cause: error })
    if (error instanceof UnavailableError) throw unreachable(error)
    throw error
  }
}

async function openServer(options: PostgresOptions): Promise<OpenedDatabase> {
  // Loaded only here: the embedded engine does not need the driver.
  const { openPostgres, UnfitServerError } = await import('../../db/postgres/postgres.ts')
  try {
    const db = await openPostgres(options)
    return { db, close: () => db.close() }
  } catch (error) {
    if (error instanceof UnfitServerError) throw new CommandError(error.message, EXIT.config, { cause: error })
    throw unreachable(error)
  }
}

export function lockOrExplain(dataDir: string): { release: () => void } {
  try {
    return lockDataFolder(dataDir)
  } catch (error) {
    if (error instanceof DataFolderInUse) throw new CommandError(error.message, EXIT.unavailable, { cause: error })
    const exitCode = isDiskFault(error) ? EXIT.unavailable : EXIT.config
    throw new CommandError(`DATA_DIR ${dataDir} cannot be used: ${reasonOf(error)}`, exitCode, { cause: error })
  }
}

function unreachable(cause: unknown): CommandError {
  const reason = reasonOf(cause instanceof UnavailableError ? (cause.cause ?? cause) : cause)
  return new CommandError(`The database cannot be reached: ${reason}`, EXIT.unavailable, { cause })
}
