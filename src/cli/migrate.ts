import { parseConfig } from '../config.ts'
import { type CommandLine, EXIT, type ExitCode } from './io.ts'
import { migrateDatabase } from './startup/open-database.ts'

/** Applies all pending migrations, and prints the name of each. */
export async function migrateCommand(line: CommandLine): Promise<ExitCode> {
  const config = parseConfig(line.env, line.readFile)
  const applied = await migrateDatabase(config.database)
  for (const name of applied) line.print(`applied ${name}`)
  line.print(applied.length === 0 ? 'Nothing to do: the schema is up to date' : `${applied.length} applied`)
  return EXIT.ok
}
