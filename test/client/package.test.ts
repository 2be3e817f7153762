import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import { fingerprintOf, readDocument } from '../../client/codegen/document.ts'

const ROOT = new URL('../../client/', import.meta.url)
const BUNDLER = createRequire(import.meta.url).resolve('esbuild-wasm/bin/esbuild')
/** Gzipped. The least bytes show that nothing is missing. */
const SIZES = {
  index: { least: 2_000, most: 9 * 1024 },
  'react/index': { least: 2_000, most: 13 * 1024 },
  'ai-sdk/index': { least: 2_000, most: 13 * 1024 },
  'webhooks/index': { least: 500, most: 13 * 1024 },
}

/** Bundles the entries, each with all its imports except React. Runs the program, because the library never exits. */
function bundle(entries: readonly string[], folder: string): void {
  const args = [
    ...entries,
    `--outdir=${folder}`,
    '--outbase=src',
    '--bundle',
    '--log-level=warning',
    '--minify',
    '--format=esm',
    '--target=es2022',
    '--platform=browser',
    '--external:react',
  ]
  execFileSync(process.execPath, [BUNDLER, ...args], { cwd: fileURLToPath(ROOT), timeout: 120_000 })
}

test('the core has at most 9 KB and each other entry 13 KB, bundled, minified and gzipped', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'test-bundles-'))
  t.after(() => rmSync(folder, { recursive: true }))
  bundle(
    Object.keys(SIZES).map((entry) => `src/${entry}.ts`),
    folder,
  )
  for (const [entry, { least, most }] of Object.entries(SIZES)) {
    const bytes = gzipSync(readFileSync(join(folder, `${entry}.js`))).byteLength
    t.diagnostic(`${entry}: ${bytes} bytes`)
    assert.ok(bytes <= most, `${entry} has ${bytes} bytes`)
    assert.ok(bytes > least, `${entry} has only ${bytes} bytes: something is missing`)
  }
})

test('the generated types match the current OpenAPI document', async () => {
  const [, mark] = /^\/\/ document: ([0-9a-f]{64})$/m.exec(readFileSync(new URL('src/openapi.ts', ROOT), 'utf8')) ?? []
  const advice = 'The service has changed: run `npm run generate -w client` and commit client/src/openapi.ts'
  assert.equal(mark, fingerprintOf(await readDocument()), advice)
})

test('the package has the license of the project, and its README links to no file outside of the package', () => {
  const read = (path: string) => readFileSync(new URL(path, ROOT), 'utf8')
  assert.equal(read('LICENSE'), read('../LICENSE'))
  assert.doesNotMatch(read('README.md'), /\]\((?!https:)/)
})

test('the package contains the service worker for pushes as a file that a site serves unchanged', () => {
  const { files, exports, sideEffects } = JSON.parse(readFileSync(new URL('package.json', ROOT), 'utf8'))
  const name = 'push-worker.js'
  assert.ok(files.includes(name))
  assert.equal(exports[`./${name}`], `./${name}`)
  assert.deepEqual(sideEffects, [`./${name}`], 'a bundler must not drop it')
  assert.doesNotMatch(readFileSync(new URL(name, ROOT), 'utf8'), /^\s*(?:import|export)\b|importScripts\(/m)
})

test('the client needs no other package at run time', () => {
  const { dependencies, peerDependencies, peerDependenciesMeta } = JSON.parse(
    readFileSync(new URL('package.json', ROOT), 'utf8'),
  )
  assert.equal(dependencies, undefined)
  const optional = { optional: true }
  assert.deepEqual(peerDependenciesMeta, { '@ai-sdk/react': optional, ai: optional, react: optional })
  assert.deepEqual(peerDependencies, { '@ai-sdk/react': '^4.0.0', ai: '^7.0.0', react: '>=18' })
})

test('the example has one copy of `ai`: the version that its @ai-sdk/react needs', () => {
  const lock = readFileSync(new URL('../examples/chat/package-lock.json', ROOT), 'utf8')
  const { packages } = JSON.parse(lock) as { packages: Record<string, { version: string; dependencies?: object }> }
  const copies = Object.keys(packages).filter((path) => /(^|\/)node_modules\/ai$/.test(path))
  assert.deepEqual(copies, ['node_modules/ai'])
  const { ai } = (packages['node_modules/@ai-sdk/react']?.dependencies ?? {}) as { ai?: string }
  assert.equal(packages['node_modules/ai']?.version, ai)
})
