import { writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'

/**
 * How many processes run the files of a folder. Each process loads and compiles the application once for all its files.
 * The files of every other folder have a process of their own.
 */
const PROCESSES: Record<string, number> = { 'test/unit': 2, 'test/db': 3, 'test/http': 8, 'test/browser': 2 }

/**
 * Writes one module for each test process into the folder, and answers with their paths. A module runs each of its files
 * as a suite with the file's path as its name, so that the hooks of a file apply only to its own tests.
 */
export function writeTestGroups(files: readonly string[], folder: string): string[] {
  return groupsOf(files).map((group, n) => {
    const path = join(folder, `${String(n).padStart(3, '0')}.mjs`)
    writeFileSync(path, moduleOf(group))
    return path
  })
}

function groupsOf(files: readonly string[]): string[][] {
  const groups = new Map<string, string[]>()
  files.forEach((file, n) => {
    const folder = Object.keys(PROCESSES).find((name) => file.startsWith(`${name}/`))
    const key = folder === undefined ? file : `${folder} ${n % (PROCESSES[folder] ?? 1)}`
    const group = groups.get(key) ?? []
    groups.set(key, [...group, file])
  })
  return [...groups.values()]
}

function moduleOf(files: readonly string[]): string {
  const urlOf = (file: string) => JSON.stringify(pathToFileURL(resolve(file)).href)
  return [
    // First, so that its hook runs after all files.
    `import ${urlOf('test/support/at-end.ts')}`,
    "import { describe } from 'node:test'",
    ...files.map((file) => `describe(${JSON.stringify(file)}, async () => { await import(${urlOf(file)}) })`),
    '',
  ].join('\n')
}
