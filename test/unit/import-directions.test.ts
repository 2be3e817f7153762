import assert from 'node:assert/strict'
import { posix } from 'node:path'
import { test } from 'node:test'
import { readSources } from '../support/source-files.ts'

/** Every other file at the top of the folder. */
const OTHER_FILES = '*'

/**
 * The levels of each folder from the top down. A module is a file or a subfolder of the folder. It imports from lower
 * levels, never from a sibling on its level and never upwards.
 */
const LEVELS: Record<string, readonly (readonly string[])[]> = {
  'src/': [
    ['main'],
    ['cli'],
    ['app'],
    ['services'],
    ['people'],
    ['operations', 'stats'],
    ['ops', 'projects', 'users', 'service-accounts', 'jobs', 'webhooks'],
    ['usage', 'events', 'push', 'runtime'],
    ['audit', 'deliveries'],
    ['http'],
    ['auth', 'limits', 'egress'],
    ['db'],
    ['core'],
  ],
  'src/jobs/': [
    ['job-services'],
    ['api'],
    ['actions', 'callbacks'],
    ['worker'],
    ['runs'],
    ['leases'],
    ['settlement'],
    ['lists', 'live', 'retention'],
    [OTHER_FILES],
    ['schemas'],
  ],
  'src/push/': [['api'], ['outbox'], [OTHER_FILES], ['provider-registry'], ['fcm'], ['push-provider']],
  'src/http/': [['idempotency', 'unknown-route'], ['gate', 'streams'], ['admission', 'server'], [OTHER_FILES]],
  'console/src/': [['main'], ['app'], ['shell'], ['pages'], ['api'], ['session'], ['ui'], ['exact-json']],
}

/** Modules of `src/` outside its levels: what they may import, and which modules may import them. */
const SIDE_MODULES: Record<string, { imports: string[]; importedBy: string[] }> = {
  config: { imports: ['config-reader', 'settings'], importedBy: ['services', 'app', 'cli'] },
  settings: { imports: ['config-reader', 'auth', 'limits', 'core'], importedBy: ['config', 'cli'] },
  'config-reader': { imports: [], importedBy: ['config', 'settings', 'cli'] },
  version: { imports: [], importedBy: ['app', 'cli'] },
  'shipped-files': { imports: [], importedBy: ['cli', 'ops', 'db', 'sandbox'] },
  sandbox: { imports: ['core', 'shipped-files'], importedBy: ['cli'] },
  tracing: { imports: ['core'], importedBy: ['cli'] },
}

/** Folders that one file alone imports from: a push provider is known through its port. */
const PRIVATE_FOLDERS: Record<string, string> = { 'src/push/fcm/': 'src/push/provider-registry.ts' }

const OUTSIDE_SRC = new Set(['package.json'])
const ROOTS = ['src/', 'console/src/']
const ENVIRONMENT = /\bprocess\s*(?:\??\.\s*env\b|\[)|['"](?:node:)?process['"]/
const DEFAULT_EXPORT = /^\s*export\s+(?:default\b|\{[^}]*\bas\s+default\b)/m

type Sources = Record<string, string>

function findFaults(sources: Sources): string[] {
  const ofFiles = Object.entries(sources).flatMap(([file, text]) => [
    ...importFaults(file, text),
    ...(file !== 'src/main.ts' && ENVIRONMENT.test(text) ? [`${file} reads the environment: only main.ts may`] : []),
    ...(DEFAULT_EXPORT.test(text) ? [`${file} has a default export`] : []),
  ])
  return [...ofFiles, ...findCycles(sources)]
}

function importFaults(file: string, text: string): string[] {
  const folders = Object.keys(LEVELS).filter((folder) => file.startsWith(folder))
  const unknown = folders.find((folder) => !isKnown(folder, moduleOf(folder, file)))
  if (unknown) return [`${file} is in no known module: give ${unknown}${moduleOf(unknown, file)} its level`]
  const root = ROOTS.find((path) => file.startsWith(path)) ?? ''
  return specifiersIn(text).flatMap((specifier) => {
    if (specifier === null) return [`${file} imports by a computed name`]
    const target = targetOf(file, specifier)
    if (target === null || OUTSIDE_SRC.has(target)) return []
    if (!target.startsWith(root)) return [`${file} imports ${target}, outside of ${root.slice(0, -1)}`]
    const shared = folders.filter((folder) => target.startsWith(folder))
    return shared.every((folder) => mayImport(folder, file, target)) && isOpenTo(file, target)
      ? []
      : [`${file} must not import ${target}`]
  })
}

/** Files that import each other, types included, directly or through other files: one line for each cycle. */
function findCycles(sources: Sources): string[] {
  const cycles: string[] = []
  const done = new Set<string>()
  const visit = (file: string, path: readonly string[]) => {
    if (path.includes(file)) cycles.push([...path.slice(path.indexOf(file)), file].join(' imports '))
    if (path.includes(file) || done.has(file)) return
    for (const specifier of specifiersIn(sources[file] ?? '')) {
      const target = specifier === null ? null : targetOf(file, specifier)
      if (target !== null) visit(target, [...path, file])
    }
    done.add(file)
  }
  for (const file of Object.keys(sources)) visit(file, [])
  return cycles
}

/** Null for a package or a style sheet. */
function targetOf(file: string, specifier: string): string | null {
  return specifier.startsWith('.') && !specifier.endsWith('.css') ? posix.join(posix.dirname(file), specifier) : null
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

function mayImport(folder: string, file: string, target: string): boolean {
  const [from, to] = [moduleOf(folder, file), moduleOf(folder, target)]
  if (from === to) return true
  if (folder === 'src/') {
    const side = SIDE_MODULES[from]
    if (side) return side.imports.includes(to)
    const outsideLevels = SIDE_MODULES[to]
    if (outsideLevels) return outsideLevels.importedBy.includes(from)
  }
  return isKnown(folder, to) && levelOf(folder, from) < levelOf(folder, to)
}

function isOpenTo(file: string, target: string): boolean {
  const folder = Object.keys(PRIVATE_FOLDERS).find((path) => target.startsWith(path))
  return folder === undefined || file.startsWith(folder) || PRIVATE_FOLDERS[folder] === file
}

/** In `src/`, `src/http/gate/gate.ts` is in `http` and `src/app.ts` in `app`; in `src/http/`, the first is in `gate`. */
function moduleOf(folder: string, file: string): string {
  const path = file.slice(folder.length)
  const name = path.replace(/\/.*|\.tsx?$/, '')
  return path.includes('/') || levelOf(folder, name) >= 0 || levelOf(folder, OTHER_FILES) < 0 ? name : OTHER_FILES
}

function levelOf(folder: string, module: string): number {
  return LEVELS[folder]?.findIndex((level) => level.includes(module)) ?? -1
}

function isKnown(folder: string, module: string): boolean {
  return levelOf(folder, module) >= 0 || (folder === 'src/' && Object.hasOwn(SIDE_MODULES, module))
}

function readAll(): Sources {
  return { ...readSources(), ...readSources('.ts', 'console/src'), ...readSources('.tsx', 'console/src') }
}

test('imports of the service and of the console point one way', () => {
  assert.deepEqual(findFaults(readAll()), [])
})

test('the source is really read: known imports are seen, static and dynamic', () => {
  const sources = readAll()
  assert.ok(Object.keys(sources).length > 50)
  assert.ok(specifiersIn(sources['src/app.ts'] ?? '').includes('./http/gate/gate.ts'))
  assert.ok(specifiersIn(sources['src/main.ts'] ?? '').includes('./cli/command-line.ts'))
  assert.ok(specifiersIn(sources['src/cli/command-line.ts'] ?? '').includes('./dev.ts'))
  assert.ok(specifiersIn(sources['console/src/app.tsx'] ?? '').includes('./shell/shell.tsx'))
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
    fault: 'src/billing/a.ts is in no known module: give src/billing its level',
  },
  {
    what: 'an import that points upwards within jobs',
    file: 'src/jobs/settlement/a.ts',
    text: "import { b } from '../worker/b.ts'",
    fault: 'src/jobs/settlement/a.ts must not import src/jobs/worker/b.ts',
  },
  {
    what: 'an import between siblings within jobs',
    file: 'src/jobs/callbacks/a.ts',
    text: "import { b } from '../actions/b.ts'",
    fault: 'src/jobs/callbacks/a.ts must not import src/jobs/actions/b.ts',
  },
  {
    what: 'an import of a part of jobs by a file that all parts use',
    file: 'src/jobs/job-row.ts',
    text: "import type { B } from './settlement/b.ts'",
    fault: 'src/jobs/job-row.ts must not import src/jobs/settlement/b.ts',
  },
  {
    what: 'an import that points upwards within push',
    file: 'src/push/outbox/a.ts',
    text: "import { b } from '../api/b.ts'",
    fault: 'src/push/outbox/a.ts must not import src/push/api/b.ts',
  },
  {
    what: 'an import that points upwards within http',
    file: 'src/http/server/a.ts',
    text: "import { b } from '../gate/b.ts'",
    fault: 'src/http/server/a.ts must not import src/http/gate/b.ts',
  },
  {
    what: 'an import that points upwards within the console',
    file: 'console/src/ui/a.tsx',
    text: "import { b } from '../pages/b.tsx'",
    fault: 'console/src/ui/a.tsx must not import console/src/pages/b.tsx',
  },
  {
    what: 'an import of the service by the console',
    file: 'console/src/ui/a.tsx',
    text: "import { b } from '../../../src/core/b.ts'",
    fault: 'console/src/ui/a.tsx imports src/core/b.ts, outside of console/src',
  },
  {
    what: 'a subfolder without a level',
    file: 'src/jobs/billing/a.ts',
    text: '',
    fault: 'src/jobs/billing/a.ts is in no known module: give src/jobs/billing its level',
  },
  {
    what: 'a file of the console without a level',
    file: 'console/src/a.ts',
    text: '',
    fault: 'console/src/a.ts is in no known module: give console/src/a its level',
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

test('a cycle of imports is found, also one of types and one through other files', () => {
  const pair = { 'src/core/a.ts': "import { b } from './b.ts'", 'src/core/b.ts': "import type { A } from './a.ts'" }
  assert.deepEqual(findFaults(pair), ['src/core/a.ts imports src/core/b.ts imports src/core/a.ts'])
  const ring = {
    'src/jobs/live/start.ts': "import { a } from './a.ts'",
    'src/jobs/live/a.ts': "import { b } from './b.ts'",
    'src/jobs/live/b.ts': "import { c } from './c.ts'",
    'src/jobs/live/c.ts': "import { a } from './a.ts'",
  }
  assert.deepEqual(findFaults(ring), [
    'src/jobs/live/a.ts imports src/jobs/live/b.ts imports src/jobs/live/c.ts imports src/jobs/live/a.ts',
  ])
})

test('two ways to one file are not a cycle', () => {
  const sources = {
    'src/core/a.ts': "import { b } from './b.ts'\nimport { c } from './c.ts'",
    'src/core/b.ts': "import { c } from './c.ts'",
    'src/core/c.ts': '',
  }
  assert.deepEqual(findFaults(sources), [])
})

test('allowed imports are not a fault', () => {
  const sources = {
    'src/main.ts': "const { b } = await import('./cli/b.ts')\nconst { env } = process.env",
    'src/cli/a.ts': "import { b } from '../sandbox/b.ts'\nimport { c } from '../config-reader.ts'",
    'src/app.ts': "import type { Services } from './services.ts'\nimport fastify from 'fastify'",
    'src/version.ts': "import file from '../package.json' with { type: 'json' }",
    'src/jobs/a.ts': "import { b } from './b.ts'\nimport { c } from '../push/c.ts'\nimport { d } from '../core/d.ts'",
    'src/jobs/worker/a.ts': "import { b } from '../settlement/b.ts'\nimport { c } from '../job-row.ts'",
    'src/push/device-store.ts': "import { b } from './provider-registry.ts'",
    'console/src/main.tsx': "import './styles/base.css'\nimport { b } from './app.tsx'",
  }
  assert.deepEqual(findFaults(sources), [])
})
