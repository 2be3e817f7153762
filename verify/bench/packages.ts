import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** The opponents' packages, kept apart from the project's own; from the lock file of a folder of `bench/`, once. */
export function installPackages(folder: 'express' | 'firebase-admin'): void {
  const cwd = fileURLToPath(new URL(`./${folder}/`, import.meta.url))
  if (existsSync(`${cwd}node_modules`)) return
  process.stdout.write(`# installing bench/${folder}\n`)
  const args = ['ci', '--ignore-scripts', '--no-audit', '--no-fund']
  execFileSync('npm', args, { cwd, stdio: ['ignore', 'ignore', 'inherit'], shell: process.platform === 'win32' })
}
