import { freshFolder, type Settings } from './program.ts'
import { needsPostgres, sharedMigratedDatabase } from './services.ts'

/** Where a program keeps its data across restarts. */
export interface Home {
  folder: string
  settings: Settings
  drop?: () => Promise<void>
}

/** Each database engine with the homes of its programs. */
export const HOMES: { engine: string; options: { skip: string | false }; make: () => Promise<Home> }[] = [
  { engine: 'sqlite', options: { skip: false }, make: async () => ({ folder: freshFolder(), settings: {} }) },
  {
    engine: 'postgres',
    options: needsPostgres(),
    make: async () => {
      const { url, drop } = await sharedMigratedDatabase()
      return { folder: freshFolder(), settings: { DATABASE_URL: url }, drop }
    },
  },
]
