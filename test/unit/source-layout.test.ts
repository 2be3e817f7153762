import assert from 'node:assert/strict'
import { posix } from 'node:path'
import { test } from 'node:test'
import { readSources } from '../support/source-files.ts'

const MAX_FILES = 14
const EXPORT = /^export (?:declare )?(?:abstract )?(?:async )?(?:class|function\*?|const|let|interface|type) (\w+)/gm

/** Folders with more files than a reader can take in at once: the fix is a subfolder for each of their parts. */
function crowdedFolders(files: readonly string[]): string[] {
  const byFolder = Object.groupBy(files, (file) => posix.dirname(file))
  return Object.entries(byFolder).flatMap(([folder, inside = []]) =>
    inside.length > MAX_FILES ? [`${folder} has ${inside.length} files, more than ${MAX_FILES}`] : [],
  )
}

/** Names that two files export. A value and its type may share a name within one file, as a schema and its type do. */
function sharedNames(sources: Record<string, string>): string[] {
  const exports = Object.entries(sources).flatMap(([file, text]) =>
    [...new Set(exportedNames(text))].map((name) => ({ name, file })),
  )
  const byName = Object.groupBy(exports, ({ name }) => name)
  return Object.entries(byName).flatMap(([name, places = []]) =>
    places.length > 1 ? [`${name} is exported by ${places.map(({ file }) => file).join(' and ')}`] : [],
  )
}

/** Exported names that no other file mentions. */
function unusedExports(sources: Record<string, string>, users: Record<string, string>): string[] {
  const filesByWord = new Map<string, Set<string>>()
  for (const [file, text] of Object.entries({ ...users, ...sources })) {
    for (const word of new Set(text.match(/\w+/g))) {
      const files = filesByWord.get(word) ?? new Set()
      filesByWord.set(word, files.add(file))
    }
  }
  return Object.entries(sources).flatMap(([file, text]) =>
    exportedNames(text).flatMap((name) => ((filesByWord.get(name)?.size ?? 0) > 1 ? [] : [`${file}: ${name}`])),
  )
}

function exportedNames(text: string): string[] {
  return Array.from(text.matchAll(EXPORT), ([, name = '']) => name)
}

test('no folder has more files than a reader can take in at once', () => {
  assert.deepEqual(crowdedFolders(Object.keys(readSources())), [])
})

test('each exported name is declared in one file, in the service and in its verification', () => {
  assert.deepEqual(sharedNames(readSources()), [])
  assert.deepEqual(sharedNames(readSources('.ts', 'verify')), [])
})

test('an exported name has a user in another file', () => {
  const users = { ...readSources('.ts', 'test'), ...readSources('.ts', 'verify') }
  assert.deepEqual(unusedExports(readSources(), users), [])
})

test('no file re-exports a name of another: imports lead to its declaration', () => {
  const reexport = /^export (?:type )?(?:\{[^}]*\}|\*.*) from '\./m
  assert.ok(reexport.test("export { a } from './a.ts'") && reexport.test("export * from '../a.ts'"))
  const files = Object.entries(readSources()).flatMap(([file, text]) => (reexport.test(text) ? [file] : []))
  assert.deepEqual(files, [])
})

test('the source is really read: known exports of each kind are seen', () => {
  const sources = readSources()
  const namesIn = (file: string) => exportedNames(sources[file] ?? '')
  assert.ok(namesIn('src/services.ts').includes('createServices'), 'an async function')
  assert.ok(namesIn('src/services.ts').includes('Dependencies'), 'an interface')
  assert.ok(namesIn('src/config.ts').includes('Variant'), 'a type')
  assert.ok(namesIn('src/core/errors.ts').includes('ApiError'), 'a class')
  assert.ok(namesIn('src/version.ts').includes('VERSION'), 'a constant')
})

test('a folder with too many files is found, also within another folder', () => {
  const filesIn = (folder: string, count: number) => Array.from({ length: count }, (_, n) => `${folder}/file-${n}.ts`)
  const files = [...filesIn('src/jobs', 14), ...filesIn('src/jobs/worker', 15)]
  assert.deepEqual(crowdedFolders(files), ['src/jobs/worker has 15 files, more than 14'])
})

test('an export that no other file mentions is found', () => {
  const sources = { 'src/a.ts': 'export const used = 1\nexport const own = used', 'src/b.ts': 'import { used }' }
  assert.deepEqual(unusedExports(sources, {}), ['src/a.ts: own'])
  assert.deepEqual(unusedExports(sources, { 'test/a.test.ts': 'own()' }), [])
})

test('a name that two files export is found, whatever it names', () => {
  const sources = {
    'src/a.ts': 'export interface Run {}\nexport const Schema = 1\nexport type Schema = typeof Schema',
    'src/b.ts': 'export abstract class Run {}\nconst Schema = 2',
    'src/c.ts': 'export async function run() {}',
  }
  assert.deepEqual(sharedNames(sources), ['Run is exported by src/a.ts and src/b.ts'])
})
