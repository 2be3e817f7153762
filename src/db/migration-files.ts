import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import type { Engine } from './database.ts'

export interface Migration {
  version: number
  /** `0001_baseline`, as in the file name. */
  name: string
  script: string
  checksum: string
  /** The indexes that PostgreSQL builds after the migration, while the service runs. SQLite builds them in the script. */
  indexes: readonly IndexBuild[]
}

export interface IndexBuild {
  name: string
  /** `create index concurrently if not exists …` */
  statement: string
}

const FILE = /^(?<name>(?<version>\d{4})_[a-z0-9_]+)(?:\.(?<engine>sqlite|postgres))?\.sql$/
const INDEX_FILE = /^(?<name>\d{4}_[a-z0-9_]+)\.indexes(?:\.(?:sqlite|postgres))?\.sql$/
const INDEX = /^create index if not exists (?<name>[a-z0-9_]+) on [^;]+$/

/**
 * The migrations of a folder for one engine, in order. `NNNN_name.sql` is for both engines; `NNNN_name.sqlite.sql` or
 * `NNNN_name.postgres.sql` is for one engine. A step without a file for an engine is an error. Beside a step,
 * `NNNN_name.indexes.sql` holds its indexes, each as `create index if not exists name on …;`, or
 * `NNNN_name.indexes.sqlite.sql` and `NNNN_name.indexes.postgres.sql` do. A later migration drops one of those with `drop
 * index if exists name;`.
 */
export async function readMigrations(folder: URL, engine: Engine): Promise<Migration[]> {
  const files = (await readdir(folder)).filter((file) => file.endsWith('.sql')).sort()
  const indexFiles = files.filter((file) => INDEX_FILE.test(file))
  const steps = files.filter((file) => !INDEX_FILE.test(file))
  const chosen = new Map<number, { name: string; file: string | undefined }>()
  for (const file of steps) {
    const { name, version: digits, engine: only } = FILE.exec(file)?.groups ?? {}
    if (name === undefined) throw new Error(`${file} is not a migration: name it NNNN_name.sql`)
    const version = Number(digits)
    const seen = chosen.get(version)
    if (seen && seen.name !== name) throw new Error(`Two migrations have one number: ${seen.name} and ${name}`)
    const serves = only === engine || (only === undefined && seen?.file === undefined)
    chosen.set(version, { name, file: serves ? file : seen?.file })
  }
  const names = new Set(Array.from(chosen.values(), ({ name }) => name))
  const stray = indexFiles.find((file) => !names.has(INDEX_FILE.exec(file)?.groups?.name ?? ''))
  if (stray !== undefined) throw new Error(`${stray} belongs to no migration`)
  const migrations = await Promise.all(
    Array.from(chosen, async ([version, { name, file }]) => {
      if (file === undefined) throw new Error(`Migration ${name} has no file for ${engine}`)
      const own = await readFile(new URL(file, folder), 'utf8')
      const candidates = [`${name}.indexes.sql`, `${name}.indexes.${engine}.sql`]
      const indexFile = candidates.find((candidate) => indexFiles.includes(candidate))
      const indexScript = indexFile === undefined ? '' : await readFile(new URL(indexFile, folder), 'utf8')
      const indexes = readIndexes(indexFile ?? '', indexScript)
      const script = engine === 'sqlite' ? own + indexScript : own
      const checksum = createHash('sha256').update(script).digest('hex')
      return { version, name, script, checksum, indexes: engine === 'sqlite' ? [] : indexes }
    }),
  )
  return migrations.map((migration) => ({ ...migration, indexes: withoutDropped(migration, migrations) }))
}

/** An index that a later migration drops is not built any more. */
function withoutDropped({ version, indexes }: Migration, all: readonly Migration[]): IndexBuild[] {
  const later = all.filter((migration) => migration.version > version)
  return indexes.filter(({ name }) => !later.some(({ script }) => script.includes(`drop index if exists ${name};`)))
}

function readIndexes(file: string, script: string): IndexBuild[] {
  const statements = script
    .replaceAll(/--.*$/gm, '')
    .split(';')
    .map((text) => text.trim())
    .filter((text) => text !== '')
  return statements.map((text) => {
    const name = INDEX.exec(text)?.groups?.name
    if (name === undefined) throw new Error(`${file} may only have statements "create index if not exists name on …;"`)
    return { name, statement: text.replace('create index', 'create index concurrently') }
  })
}
