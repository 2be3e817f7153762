import { parseConfig } from '../config.ts'
import { type CommandLine, EXIT, type ExitCode } from './io.ts'
import { buildIndexes, migrateDatabase } from './startup/open-database.ts'

/** Applies all pending migrations, then builds the indexes that are still missing, and prints the name of each. */
export async function migrateCommand(line: CommandLine): Promise<ExitCode> {
  const config = parseConfig(line.env, line.readFile)
  const applied = await migrateDatabase(config.database)
  for (const name of applied) line.print(`applied ${name}`)
  let built = 0
  const onBuilt = (name: string) => {
    built += 1
    line.print(`built index ${name}`)
  }
  await buildIndexes(config.database, { onBuilt, signal: line.stopping })
  const nothing = applied.length + built === 0
  line.print(nothing ? 'Nothing to do: the schema is up to date' : `${applied.length} applied`)
  return EXIT.ok
}
