import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** Installs the packages of a baseline from the lock file in its own folder, unless they are there. */
export function installPackages(folder: 'express' | 'firebase-admin' | 'queues'): void {
  const cwd = fileURLToPath(new URL(`./${folder}/`, import.meta.url))
  if (existsSync(`${cwd}node_modules`)) return
  process.stdout.write(`# installing verify/bench/${folder}\n`)
  const args = ['ci', '--ignore-scripts', '--no-audit', '--no-fund']
  execFileSync('npm', args, { cwd, stdio: ['ignore', 'ignore', 'inherit'], shell: process.platform === 'win32' })
}
