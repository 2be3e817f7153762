import { readdirSync, readFileSync } from 'node:fs'

/** The text of every file in `src/` of one kind, by its path from the root of the repository. */
export function readSources(extension: '.ts' | '.sql' = '.ts'): Record<string, string> {
  const root = new URL('../../src/', import.meta.url)
  const files = readdirSync(root, { recursive: true, encoding: 'utf8' }).map((file) => file.replaceAll('\\', '/'))
  const modules = files.filter((file) => file.endsWith(extension))
  return Object.fromEntries(modules.map((file) => [`src/${file}`, readFileSync(new URL(file, root), 'utf8')]))
}
