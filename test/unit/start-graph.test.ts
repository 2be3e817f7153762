import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

const IMPORT = /^(?:import|export) (?!type\b)[^'"()=]*?from '([^']+)'/gm

/** What `serve` loads before it can answer: the files and packages that its imports lead to, those for types alone aside. */
function loadedBy(entry: URL): { files: Set<string>; packages: Set<string> } {
  const files = new Set<string>()
  const packages = new Set<string>()
  const visit = (file: URL): void => {
    if (files.has(file.href)) return
    files.add(file.href)
    for (const [, specifier = ''] of readFileSync(file, 'utf8').matchAll(IMPORT)) {
      if (!specifier.startsWith('.')) packages.add(specifier)
      else if (specifier.endsWith('.ts')) visit(new URL(specifier, file))
    }
  }
  visit(entry)
  return { files, packages }
}

const { files, packages } = loadedBy(new URL('../../src/cli/serve.ts', import.meta.url))

test('a start loads two packages; all others wait for their first use, for each would make it noticeably longer', () => {
  assert.ok(files.size > 100, 'the imports are really followed')
  const installed = [...packages].filter((name) => !name.startsWith('node:'))
  assert.deepEqual(installed.sort(), ['fastify', 'pino'])
})

test('a start loads no sender of pushes: only credentials do', () => {
  assert.deepEqual(
    [...files].filter((file) => file.endsWith('/push/fcm/fcm-sender.ts')),
    [],
  )
})

test('a start imports no part of Node whose exports, read one by one, load a whole HTTP client', () => {
  assert.ok(!packages.has('node:http'), 'node:http is for Fastify to require')
})
