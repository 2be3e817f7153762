import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

interface Lockfile {
  packages: Record<string, { optionalDependencies?: Record<string, string> }>
}

/** The optional packages that a lockfile wants and does not contain. */
function missingPackages({ packages }: Lockfile): string[] {
  const locked = new Set(Object.keys(packages).map((path) => path.split('node_modules/').at(-1)))
  const wanted = Object.values(packages).flatMap(({ optionalDependencies = {} }) => Object.keys(optionalDependencies))
  return wanted.filter((name) => !locked.has(name))
}

const ROOT = fileURLToPath(new URL('../../', import.meta.url))

test('each lockfile has the packages of every platform, not only of the one it was made on', () => {
  const paths = globSync('**/package-lock.json', { cwd: ROOT, exclude: ['**/node_modules'] })
  assert.ok(paths.includes('package-lock.json') && paths.length > 5)
  for (const path of paths) {
    const lockfile = JSON.parse(readFileSync(`${ROOT}${path}`, 'utf8')) as Lockfile
    assert.deepEqual(missingPackages(lockfile), [], path)
  }
})

test('a package of another platform that is missing is found', () => {
  const optionalDependencies = { 'tool-linux-x64': '1.0.0', 'tool-linux-arm64': '1.0.0' }
  const packages = { 'node_modules/tool': { optionalDependencies }, 'node_modules/tool-linux-x64': {} }
  assert.deepEqual(missingPackages({ packages }), ['tool-linux-arm64'])
})
