import assert from 'node:assert/strict'
import { posix } from 'node:path'
import { test } from 'node:test'
import { readSources } from '../support/source-files.ts'

/** The levels from the top down. A module imports from lower levels, never from a sibling on its level and never upwards. */
const LEVELS = [
  ['main'],
  ['cli'],
  ['app'],
  ['services'],
  ['people'],
  ['operations', 'stats'],
  ['ops', 'projects', 'users', 'service-accounts', 'jobs'],
  ['usage', 'events', 'push', 'runtime'],
  ['audit'],
  ['http'],
  ['auth', 'limits'],
  ['db'],
  ['core'],
]

/** Modules outside the levels: what they may import, and which modules may import them. */
const SIDE_MODULES: Record<string, { imports: string[]; importedBy: string[] }> = {
  config: { imports: ['config-reader', 'settings'], importedBy: ['services', 'app', 'cli'] },
  settings: { imports: ['config-reader', 'limits', 'core'], importedBy: ['config', 'cli'] },
  'config-reader': { imports: [], importedBy: ['config', 'settings', 'cli'] },
  version: { imports: [], importedBy: ['app', 'cli'] },
  sandbox: { imports: ['core'], importedBy: ['cli'] },
  tracing: { imports: ['core'], importedBy: ['cli'] },
}

/** Folders that one file alone imports from: a push provider is known through its port. */
const PRIVATE_FOLDERS: Record<string, string> = { 'src/push/fcm/': 'src/push/provider-registry.ts' }

const OUTSIDE_SRC = new Set(['package.json'])
const ENVIRONMENT = /\bprocess\s*(?:\??\.\s*env\b|\[)|['"](?:node:)?process['"]/
const DEFAULT_EXPORT = /^\s*export\s+(?:default\b|\{[^}]*\bas\s+default\b)/m

type Sources = Record<string, string>

function findFaults(sources: Sources): string[] {
  return Object.entries(sources).flatMap(([file, text]) => [
    ...importFaults(file, text),
    ...(file !== 'src/main.ts' && ENVIRONMENT.test(text) ? [`${file} reads the environment: only main.ts may`] : []),
    ...(DEFAULT_EXPORT.test(text) ? [`${file} has a default export`] : []),
  ])
}

function importFaults(file: string, text: string): string[] {
  const module = moduleOf(file)
  if (!isKnown(module)) return [`${file} is in no known module: give ${module} its level`]
  return specifiersIn(text).flatMap((specifier) => {
    if (specifier === null) return [`${file} imports by a computed name`]
    if (!specifier.startsWith('.')) return []
    const target = posix.join(posix.dirname(file), specifier)
    if (OUTSIDE_SRC.has(target)) return []
    if (!target.startsWith('src/')) return [`${file} imports ${target}, outside of src`]
    return mayImport({ from: module, to: moduleOf(target) }) && isOpenTo(file, target)
      ? []
      : [`${file} must not import ${target}`]
  })
}

/** Every file and package that the text imports or re-exports from, types included; null for a name computed at run time. */
function specifiersIn(text: string): (string | null)[] {
  const fixed = text.matchAll(/^\s*(?:import|export)\b[^'"()=]*['"]([^'"]+)['"]|\}\s*from\s*['"]([^'"]+)['"]/gm)
  const called = text.matchAll(/\bimport\s*\(\s*(?:['"]([^'"]+)['"]\s*[),])?/g)
  return [
    ...Array.from(fixed, ([, whole, tail]) => whole ?? tail ?? null),
    ...Array.from(called, ([, literal]) => literal ?? null),
  ]
}

function mayImport({ from, to }: { from: string; to: string }): boolean {
  if (from === to) return true
  const side = SIDE_MODULES[from]
  if (side) return side.imports.includes(to)
  const outsideLevels = SIDE_MODULES[to]
  if (outsideLevels) return outsideLevels.importedBy.includes(from)
  return isKnown(to) && levelOf(from) < levelOf(to)
}

function isOpenTo(file: string, target: string): boolean {
  const folder = Object.keys(PRIVATE_FOLDERS).find((path) => target.startsWith(path))
  return folder === undefined || file.startsWith(folder) || PRIVATE_FOLDERS[folder] === file
}

/** `src/http/gate/gate.ts` is in `http`, `src/app.ts` in `app`. */
function moduleOf(file: string): string {
  return (file.split('/')[1] ?? '').replace(/\.ts$/, '')
}

function levelOf(module: string): number {
  return LEVELS.findIndex((level) => level.includes(module))
}

function isKnown(module: string): boolean {
  return Object.hasOwn(SIDE_MODULES, module) || levelOf(module) >= 0
}

test('imports of the source point one way', () => {
  assert.deepEqual(findFaults(readSources()), [])
})

test('the source is really read: known imports are seen, static and dynamic', () => {
  const sources = readSources()
  assert.ok(Object.keys(sources).length > 50)
  assert.ok(specifiersIn(sources['src/app.ts'] ?? '').includes('./http/gate/gate.ts'))
  assert.ok(specifiersIn(sources['src/main.ts'] ?? '').includes('./cli/command-line.ts'))
  assert.ok(specifiersIn(sources['src/cli/command-line.ts'] ?? '').includes('./dev.ts'))
})

const VIOLATIONS: { what: string; file: string; text: string; fault: string }[] = [
  {
    what: 'an import from the folder of a push provider',
    file: 'src/push/outbox/a.ts',
    text: "const { b } = await import('../fcm/b.ts')",
    fault: 'src/push/outbox/a.ts must not import src/push/fcm/b.ts',
  },
  {
    what: 'an import that points upwards',
    file: 'src/auth/a.ts',
    text: "import { b } from '../http/b.ts'",
    fault: 'src/auth/a.ts must not import src/http/b.ts',
  },
  {
    what: 'a type import that points upwards',
    file: 'src/core/a.ts',
    text: "import type { B } from '../db/b.ts'",
    fault: 'src/core/a.ts must not import src/db/b.ts',
  },
  {
    what: 'an import over several lines between siblings',
    file: 'src/projects/a.ts',
    text: "import {\n  b,\n  type C,\n} from '../users/b.ts'",
    fault: 'src/projects/a.ts must not import src/users/b.ts',
  },
  {
    what: 'an import for its effect alone',
    file: 'src/limits/a.ts',
    text: "import '../auth/b.ts'",
    fault: 'src/limits/a.ts must not import src/auth/b.ts',
  },
  {
    what: 'a re-export',
    file: 'src/db/a.ts',
    text: "export * from '../auth/b.ts'",
    fault: 'src/db/a.ts must not import src/auth/b.ts',
  },
  {
    what: 'a dynamic import',
    file: 'src/http/a.ts',
    text: "const { b } = await import('../ops/b.ts')",
    fault: 'src/http/a.ts must not import src/ops/b.ts',
  },
  {
    what: 'an import by a computed name',
    file: 'src/http/a.ts',
    text: 'const { b } = await import(name)',
    fault: 'src/http/a.ts imports by a computed name',
  },
  {
    what: 'the sandbox outside of the command line',
    file: 'src/app.ts',
    text: "import { b } from './sandbox/b.ts'",
    fault: 'src/app.ts must not import src/sandbox/b.ts',
  },
  {
    what: 'a sandbox that imports more than the core',
    file: 'src/sandbox/a.ts',
    text: "import { b } from '../auth/b.ts'",
    fault: 'src/sandbox/a.ts must not import src/auth/b.ts',
  },
  {
    what: 'settings read on a low level',
    file: 'src/db/a.ts',
    text: "import type { Config } from '../config.ts'",
    fault: 'src/db/a.ts must not import src/config.ts',
  },
  {
    what: 'a test module',
    file: 'src/core/a.ts',
    text: "import { b } from '../../test/support/b.ts'",
    fault: 'src/core/a.ts imports test/support/b.ts, outside of src',
  },
  {
    what: 'a folder without a level',
    file: 'src/billing/a.ts',
    text: '',
    fault: 'src/billing/a.ts is in no known module: give billing its level',
  },
  {
    what: 'a reader of the environment other than main.ts',
    file: 'src/config.ts',
    text: 'export const port = process.env.PORT',
    fault: 'src/config.ts reads the environment: only main.ts may',
  },
  {
    what: 'the environment by way of node:process',
    file: 'src/core/a.ts',
    text: "import { env } from 'node:process'",
    fault: 'src/core/a.ts reads the environment: only main.ts may',
  },
  {
    what: 'a default export',
    file: 'src/core/a.ts',
    text: 'export default function a() {}',
    fault: 'src/core/a.ts has a default export',
  },
]

for (const { what, file, text, fault } of VIOLATIONS) {
  test(`${what} is found`, () => {
    assert.deepEqual(findFaults({ [file]: text }), [fault])
  })
}

test('allowed imports are not a fault', () => {
  const sources = {
    'src/main.ts': "const { b } = await import('./cli/b.ts')\nconst { env } = process.env",
    'src/cli/a.ts': "import { b } from '../sandbox/b.ts'\nimport { c } from '../config-reader.ts'",
    'src/app.ts': "import type { Services } from './services.ts'\nimport fastify from 'fastify'",
    'src/version.ts': "import file from '../package.json' with { type: 'json' }",
    'src/jobs/a.ts': "import { b } from './b.ts'\nimport { c } from '../push/c.ts'\nimport { d } from '../core/d.ts'",
  }
  assert.deepEqual(findFaults(sources), [])
})
