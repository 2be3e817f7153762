import { readdirSync, readFileSync } from 'node:fs'

/** The text of every file of one kind in a folder, by its path from the root of the repository. */
export function readSources(
  extension: '.ts' | '.tsx' | '.sql' = '.ts',
  folder: 'src' | 'test' | 'verify' | 'console/src' = 'src',
): Record<string, string> {
  const root = new URL(`../../${folder}/`, import.meta.url)
  const files = readdirSync(root, { recursive: true, encoding: 'utf8' }).map((file) => file.replaceAll('\\', '/'))
  const modules = files.filter((file) => file.endsWith(extension) && !file.includes('node_modules/'))
  return Object.fromEntries(modules.map((file) => [`${folder}/${file}`, readFileSync(new URL(file, root), 'utf8')]))
}
