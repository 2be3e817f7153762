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
const MAX_GZIPPED_BYTES = 12 * 1024

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

test('each entry is under 12 KB, bundled, minified and gzipped', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'test-bundles-'))
  t.after(() => rmSync(folder, { recursive: true }))
  const entries = ['index', 'react/index', 'ai-sdk/index']
  bundle(
    entries.map((entry) => `src/${entry}.ts`),
    folder,
  )
  for (const entry of entries) {
    const bytes = gzipSync(readFileSync(join(folder, `${entry}.js`))).byteLength
    assert.ok(bytes < MAX_GZIPPED_BYTES, `${entry} has ${bytes} bytes`)
    assert.ok(bytes > 2_000, `${entry} has only ${bytes} bytes: it is not the whole client`)
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

test('the client needs no other package at run time', () => {
  const { dependencies, peerDependenciesMeta } = JSON.parse(readFileSync(new URL('package.json', ROOT), 'utf8'))
  assert.equal(dependencies, undefined)
  assert.deepEqual(peerDependenciesMeta, { ai: { optional: true }, react: { optional: true } })
})
