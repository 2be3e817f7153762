import { execFile } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { join, relative } from 'node:path'
import { promisify } from 'node:util'

const INSTALL_TIMEOUT_MS = 5 * 60_000

/**
 * Installs the packages of a folder that has a lock file of its own, on first use. Installs into a temporary folder and
 * renames it, so that two test files may install at the same time.
 */
export async function installPackages(home: string): Promise<void> {
  const place = join(home, 'node_modules')
  if (existsSync(place)) return
  process.stderr.write(`Installing packages for the tests (npm ci in ${relative('', home)})\n`)
  mkdirSync(join(home, '.scratch'), { recursive: true })
  const aside = mkdtempSync(join(home, '.scratch', 'install-'))
  try {
    for (const file of ['package.json', 'package-lock.json', '.npmrc'])
      copyFileSync(join(home, file), join(aside, file))
    await promisify(execFile)('npm', ['ci'], { cwd: aside, timeout: INSTALL_TIMEOUT_MS })
    if (!existsSync(place)) renameSync(join(aside, 'node_modules'), place)
  } catch (error) {
    if (!existsSync(place)) throw error
  } finally {
    rmSync(aside, { recursive: true, force: true })
  }
}
