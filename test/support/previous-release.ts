import { execFileSync } from 'node:child_process'
import { symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { freshFolder } from './program.ts'

/**
 * The release before this one, with migrations up to 0013. It moves forward with each release, to the commit of the
 * tag.
 */
const COMMIT = '37257b2593adb42cdb637c9fec27d4bb80cc9c87'
const ROOT = fileURLToPath(new URL('../../', import.meta.url))

/** The previous release in a folder of its own, taken from the history, with the packages of this one. */
export function previousRelease(): { main: string; jobTypesFile: string } {
  const folder = freshFolder()
  const archive = join(folder, 'release.tar')
  try {
    const parts = ['src', 'package.json', 'job-types.json']
    execFileSync('git', ['archive', '--output', archive, COMMIT, ...parts], { cwd: ROOT, stdio: 'pipe' })
  } catch (error) {
    const hint = 'This test needs the whole history: git fetch --unshallow'
    throw new Error(`The previous release, commit ${COMMIT}, is not at hand. ${hint}`, { cause: error })
  }
  execFileSync('tar', ['--extract', '--file', archive, '--directory', folder])
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  return { main: join(folder, 'src/main.ts'), jobTypesFile: join(folder, 'job-types.json') }
}
