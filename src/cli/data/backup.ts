import { statSync } from 'node:fs'
import { parseConfig } from '../../config.ts'
import { reasonOf } from '../../core/errors.ts'
import { BadBackup, writeBackup } from '../../db/sqlite/backup-file.ts'
import { readWords } from '../arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from '../io.ts'
import { databaseFile } from '../startup/open-database.ts'

/** Writes a consistent copy of the embedded database into a file, also while a node runs. */
export async function backup(line: CommandLine): Promise<ExitCode> {
  const [file, ...more] = readWords(line)
  if (file === undefined || more.length > 0) throw new UsageError('backup needs one file')
  const { database } = parseConfig(line.env, line.readFile)
  if (database.engine === 'postgres') throw new UsageError('backup is for the embedded database: use pg_dump')
  await writeBackup({ path: databaseFile(database.dataDir), file }).catch((error: unknown) => {
    const reason = error instanceof BadBackup ? error.message : `The backup failed: ${reasonOf(error)}`
    throw new CommandError(reason, EXIT.failed, { cause: error })
  })
  line.print(`${file}: ${statSync(file).size} bytes, checked`)
  return EXIT.ok
}
