import { execFile } from 'node:child_process'
import { existsSync, globSync, rmSync, statSync } from 'node:fs'
import { rename } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { shippedFile } from '../../shipped-files.ts'

const run = promisify(execFile)
const ROOT = fileURLToPath(shippedFile('.'))
const SOURCES = ['console/src/**/*', 'console/*.{html,json,ts}', 'client/src/**/*.ts', 'docs/runbooks/*.md']
const TIMEOUT_MS = 60_000

/**
 * Builds the console when its sources are newer than its build, and calls `onBuild` before. An installation without the
 * sources or the build tool keeps its build. Returns why the build failed; null: the build is up to date.
 */
export async function buildConsole({ root = ROOT, onBuild = () => {} } = {}): Promise<string | null> {
  const folder = join(root, 'console')
  const vite = existsSync(join(folder, 'package.json')) ? findVite(folder) : null
  if (vite === null || !isStale(root)) return null
  onBuild()
  // Build into a temporary folder, then rename it, so that no process ever serves half a build.
  const made = `dist-${process.pid}`
  try {
    await run(process.execPath, [vite, 'build', '--outDir', made, '--logLevel', 'error'], {
      cwd: folder,
      timeout: TIMEOUT_MS,
    })
    rmSync(join(folder, 'dist'), { recursive: true, force: true })
    await rename(join(folder, made), join(folder, 'dist')).catch(keepOther)
    return null
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string }
    return `The console could not be built: ${stderr?.trim() || message}`
  } finally {
    rmSync(join(folder, made), { recursive: true, force: true })
  }
}

/** Another process has finished the same build first. */
function keepOther(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error
}

function findVite(folder: string): string | null {
  try {
    return join(dirname(createRequire(join(folder, 'package.json')).resolve('vite/package.json')), 'bin/vite.js')
  } catch {
    return null
  }
}

function isStale(root: string): boolean {
  const built = statSync(join(root, 'console/dist/index.html'), { throwIfNoEntry: false })
  if (!built) return true
  return globSync(SOURCES, { cwd: root }).some((file) => statSync(join(root, file)).mtimeMs > built.mtimeMs)
}
