import { existsSync } from 'node:fs'
import { type Config, parseConfig } from '../../config.ts'
import { CopyError, copyDatabase } from '../../db/copy/copy-database.ts'
import { removeAllNodes } from '../../db/nodes/node-store.ts'
import { readArguments } from '../arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from '../io.ts'
import {
  buildIndexes,
  databaseFile,
  migrateDatabase,
  openDatabase,
  refuseOtherSchema,
} from '../startup/open-database.ts'

/** On PostgreSQL a whole table is read by one statement. */
const STATEMENT_TIMEOUT_MS = 6 * 60 * 60_000

/** Copies everything into an empty database of the other engine, and prints each table with its rows and checksum. */
export async function copy(line: CommandLine): Promise<ExitCode> {
  const { to } = readArguments(line.args, { options: { to: { type: 'string' } }, allowPositionals: false }).values
  if (to === undefined)
    throw new UsageError('copy needs --to: a URL of PostgreSQL, or a folder for the embedded database')
  const source = parseConfig(line.env, line.readFile).database
  const target = targetOf(to)
  if (source.engine === target.engine)
    throw new UsageError(`Both databases are ${source.engine}: copy is from one engine to the other`)
  if (source.engine === 'sqlite' && !existsSync(databaseFile(source.dataDir)))
    throw new CommandError(`There is no database in DATA_DIR ${source.dataDir}`, EXIT.failed)
  const limits = { queryTimeoutMs: STATEMENT_TIMEOUT_MS }
  const from = await openDatabase(source, limits)
  await refuseOtherSchema(from)
  try {
    // The lock on the folder proves that no node runs on it.
    if (source.engine === 'sqlite') await removeAllNodes(from.db)
    await migrateDatabase(target)
    const into = await openDatabase(target, limits)
    try {
      await copyDatabase(from.db, into.db, {
        onCopied: ({ name, rows, checksum }) =>
          line.print(`${name.padEnd(20)} ${String(rows).padStart(10)}  ${checksum}`),
        signal: line.stopping,
      })
    } finally {
      await into.close()
    }
  } catch (error) {
    if (error instanceof CopyError) throw new CommandError(error.message, EXIT.failed, { cause: error })
    if (line.stopping.aborted) throw new CommandError('Stopped: the target is empty', EXIT.failed, { cause: error })
    throw error
  } finally {
    await from.close()
  }
  await buildIndexes(target, { onBuilt: (name) => line.print(`built index ${name}`), signal: line.stopping })
  line.print('Copied: every table has the same rows and the same checksum')
  return EXIT.ok
}

function targetOf(to: string): Config['database'] {
  if (/^postgres(?:ql)?:\/\//.test(to) && URL.canParse(to)) return { engine: 'postgres', url: to }
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(to))
    throw new UsageError('--to must be a URL that starts with postgres://, or a folder')
  return { engine: 'sqlite', dataDir: to }
}
