import { type Config, parseConfig } from '../../config.ts'
import { reasonOf } from '../../core/errors.ts'
import type { Transaction } from '../../db/database.ts'
import { MigrationError, migrate } from '../../db/migrate.ts'
import { countRunningNodes } from '../../db/nodes/node-store.ts'
import { BadBackup, restoreBackup } from '../../db/sqlite/backup-file.ts'
import { openSqlite } from '../../db/sqlite/sqlite.ts'
import { skipPositions } from '../../events/event-store.ts'
import { skipWebhookCursor } from '../../webhooks/delivery-store.ts'
import { readArguments } from '../arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from '../io.ts'
import { databaseFile, lockOrExplain, migrateDatabase, openDatabase, unusable } from '../startup/open-database.ts'

/**
 * Makes the embedded database from a backup, in a folder without one. PostgreSQL restores itself; `--finish` does the rest
 * there. Clients whose cursors are from later times are reset.
 */
export async function restore(line: CommandLine): Promise<ExitCode> {
  const options = { finish: { type: 'boolean', default: false } } as const
  const { values, positionals } = readArguments(line.args, { options, allowPositionals: true })
  const { database } = parseConfig(line.env, line.readFile)
  if (database.engine === 'postgres') {
    if (!values.finish || positionals.length > 0)
      throw new UsageError('restore FILE is for the embedded database: use pg_restore, then restore --finish')
    return finish(line, database)
  }
  const [file, ...more] = positionals
  if (values.finish) throw new UsageError('restore --finish is for PostgreSQL')
  if (file === undefined || more.length > 0) throw new UsageError('restore needs one file')
  const lock = lockOrExplain(database.dataDir)
  try {
    await restoreBackup({ file, path: databaseFile(database.dataDir) }, prepare)
  } catch (error) {
    if (error instanceof MigrationError) throw unusable(error)
    const reason = error instanceof BadBackup ? error.message : `The restore failed: ${reasonOf(error)}`
    throw new CommandError(reason, EXIT.failed, { cause: error })
  } finally {
    lock.release()
  }
  line.print(`${file} is restored in ${database.dataDir}`)
  return EXIT.ok
}

async function finish(line: CommandLine, database: Config['database']): Promise<ExitCode> {
  await migrateDatabase(database)
  const { db, close } = await openDatabase(database)
  try {
    const running = await countRunningNodes(db)
    if (running > 0) throw new CommandError(`${running} nodes run on the database: stop them first`, EXIT.failed)
    await db.transaction(skipReadPositions)
  } finally {
    await close()
  }
  line.print('The restore is finished: clients with older cursors are reset')
  return EXIT.ok
}

async function prepare(path: string): Promise<void> {
  const db = await openSqlite({ path })
  try {
    await migrate(db)
    await db.transaction(skipReadPositions)
  } finally {
    await db.close()
  }
}

/** What was delivered to webhook endpoints before the backup stays delivered. */
async function skipReadPositions(tx: Transaction): Promise<void> {
  await skipWebhookCursor(tx, await skipPositions(tx))
}
