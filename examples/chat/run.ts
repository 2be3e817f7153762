import { type ChildProcess, execFileSync, type SpawnOptions, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const HERE = fileURLToPath(new URL('.', import.meta.url))
const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const INSTALL_TIMEOUT_MS = 5 * 60_000

/** Starts the service with its sandbox (`dev`), makes the sandbox lose every callback, and serves the chat. */
async function main(): Promise<void> {
  if (!existsSync(join(HERE, 'node_modules/vite'))) {
    // `npm ci` would fail: npm writes no packages of other platforms into a lock file with a linked package.
    execFileSync('npm', ['install', '--no-save', '--no-audit', '--no-fund'], {
      cwd: HERE,
      stdio: 'inherit',
      timeout: INSTALL_TIMEOUT_MS,
    })
  }
  execFileSync('npm', ['run', '-s', 'build', '-w', 'client'], {
    cwd: ROOT,
    stdio: 'inherit',
    timeout: INSTALL_TIMEOUT_MS,
  })
  try {
    const dev = start(['bin/project-api.js', 'dev'], { cwd: ROOT, stdio: ['ignore', 'pipe', 'inherit'] })
    const addresses = await addressesOf(dev)
    const faults = { drop_callbacks: 1, token_ms: 60 }
    await fetch(`${addresses.Runtime}/sandbox/faults`, {
      method: 'PATCH',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(faults),
      signal: AbortSignal.timeout(10_000),
    })
    process.stdout.write(`  The chat's service: ${addresses.API}, its fault settings: ${addresses.Runtime}\n`)
    const vite = start([join(HERE, 'node_modules/vite/bin/vite.js'), ...process.argv.slice(2)], {
      cwd: HERE,
      stdio: 'inherit',
      env: { ...process.env, VITE_API_URL: addresses.API, VITE_TOKENS_URL: addresses.Tokens },
    })
    await Promise.race([endOf(dev), endOf(vite)])
  } catch (error) {
    if (!isStopping) throw error
  } finally {
    stopAll()
    await Promise.all(children.map(endOf))
  }
}

const children: ChildProcess[] = []
let isStopping = false

/** Ends all processes on a signal, also if they are still starting. */
function start(args: string[], options: SpawnOptions): ChildProcess {
  const child = spawn(process.execPath, args, options)
  children.push(child)
  return child
}

function stopAll(): void {
  isStopping = true
  for (const child of children) child.kill('SIGTERM')
}

function endOf(child: ChildProcess): Promise<unknown> {
  const hasEnded = child.exitCode !== null || child.signalCode !== null
  return hasEnded ? Promise.resolve() : new Promise((resolve) => child.once('exit', resolve))
}

/** `dev` prints one address per line. */
function addressesOf(dev: ChildProcess): Promise<Record<string, string>> {
  return new Promise((resolve, reject) => {
    let printed = ''
    dev.once('exit', () => reject(new Error(`dev ended: ${printed}`)))
    dev.stdout?.on('data', (text) => {
      printed += text
      if (!printed.includes('Ctrl-C')) return
      const lines = printed.matchAll(/^ +([A-Z]\w+) +(http\S+)/gm)
      resolve(Object.fromEntries(Array.from(lines, ([, name = '', url = '']) => [name, url])))
    })
  })
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stopAll)
process.on('exit', stopAll)
await main()
