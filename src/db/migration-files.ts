import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import type { Engine } from './database.ts'

export interface Migration {
  version: number
  /** `0001_projects`, as in the file name. */
  name: string
  script: string
  checksum: string
}

const FILE = /^(?<name>(?<version>\d{4})_[a-z0-9_]+)(?:\.(?<engine>sqlite|postgres))?\.sql$/

/**
 * The migrations of a folder for one engine, in order. `NNNN_name.sql` is for both engines; `NNNN_name.sqlite.sql` or
 * `NNNN_name.postgres.sql` replaces it on one. A step that has no file for an engine is an error.
 */
export async function readMigrations(folder: URL, engine: Engine): Promise<Migration[]> {
  const files = (await readdir(folder)).filter((file) => file.endsWith('.sql')).sort()
  const chosen = new Map<number, { name: string; file: string | undefined }>()
  for (const file of files) {
    const { name, version: digits, engine: only } = FILE.exec(file)?.groups ?? {}
    if (name === undefined) throw new Error(`${file} is not a migration: name it NNNN_name.sql`)
    const version = Number(digits)
    const seen = chosen.get(version)
    if (seen && seen.name !== name) throw new Error(`Two migrations have one number: ${seen.name} and ${name}`)
    const serves = only === engine || (only === undefined && seen?.file === undefined)
    chosen.set(version, { name, file: serves ? file : seen?.file })
  }
  return Promise.all(
    Array.from(chosen, async ([version, { name, file }]) => {
      if (file === undefined) throw new Error(`Migration ${name} has no file for ${engine}`)
      // The same checksum everywhere, also where a checkout changes the line ends.
      const script = (await readFile(new URL(file, folder), 'utf8')).replaceAll('\r\n', '\n')
      return { version, name, script, checksum: createHash('sha256').update(script).digest('hex') }
    }),
  )
}
