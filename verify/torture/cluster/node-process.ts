import { type ChildProcess, spawn } from 'node:child_process'
import { openSync } from 'node:fs'
import { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { systemClock } from '../../../src/core/clock.ts'
import { freePort } from '../../../test/support/server-process.ts'
import type { Target } from './fault-proxy.ts'

const LAUNCHER = fileURLToPath(new URL('../../../bin/project-api.js', import.meta.url))
const REAPER = fileURLToPath(new URL('../../../test/support/program-reaper.ts', import.meta.url))
const COMPILE_CACHE = join(tmpdir(), 'node-compile-cache')
const STOP_TIMEOUT_MS = 20_000
const BETWEEN_STARTS_MS = 300
/** The database was not there: worth another start, as a service manager makes it. */
const UNAVAILABLE = 69
/** Among other things: somebody has taken the port meanwhile. */
const CONFIG = 78

/**
 * One `serve` under a service manager: started again when it ends unasked, and that is noted unless the database was
 * away. It never outlives this process (see program-reaper.ts).
 */
export class NodeProcess implements Target {
  readonly name: string
  readonly unexpectedExits: string[] = []
  readonly #settings: Record<string, string>
  readonly #log: number
  #port = 0
  #child: ChildProcess | undefined
  #exited: Promise<number | null> = Promise.resolve(null)
  #wanted = false
  /** Which wish to run is the current one: a start that was put off belongs to an earlier one. */
  #wish = 0

  constructor(name: string, { settings, folder }: { settings: Record<string, string>; folder: string }) {
    this.name = name
    this.#settings = settings
    this.#log = openSync(join(folder, `${name}.log`), 'a')
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`
  }

  async start(): Promise<void> {
    if (this.#port === 0) this.#port = await freePort()
    this.#wanted = true
    this.#wish += 1
    this.#spawn()
  }

  /** At once, as a power cut would; false when it was not running. */
  kill(): boolean {
    this.#wanted = false
    return this.#child?.kill('SIGKILL') ?? false
  }

  /** Resolves once nothing is left of it. */
  async gone(): Promise<void> {
    await this.#exited
  }

  /** Asks it to end in good order; resolves with its exit code, null when it had to be killed. */
  async stop(): Promise<number | null> {
    this.#wanted = false
    this.#child?.kill('SIGTERM')
    const late = new AbortController()
    void systemClock.sleep(STOP_TIMEOUT_MS, late.signal).then(() => {
      if (!late.signal.aborted) this.#child?.kill('SIGKILL')
    })
    const code = await this.#exited
    late.abort()
    return code
  }

  #spawn(): void {
    const child = spawn(process.execPath, [LAUNCHER, 'serve'], {
      env: {
        PATH: process.env.PATH,
        NODE_COMPILE_CACHE: COMPILE_CACHE,
        NODE_ENV: 'test',
        ...this.#settings,
        PORT: String(this.#port),
      },
      stdio: ['ignore', this.#log, this.#log],
    })
    tellReaper(`+${child.pid}`)
    this.#child = child
    this.#exited = new Promise((resolve) => {
      child.once('exit', (code, signal) => {
        tellReaper(`-${child.pid}`)
        this.#child = undefined
        resolve(code)
        if (this.#wanted) void this.#startAgain(code ?? signal)
      })
    })
  }

  async #startAgain(exit: number | string | null): Promise<void> {
    if (exit === CONFIG) this.#port = await freePort()
    else if (exit !== UNAVAILABLE) this.unexpectedExits.push(`${this.name} ended with ${exit}`)
    const wish = this.#wish
    await systemClock.sleep(BETWEEN_STARTS_MS)
    if (this.#wanted && wish === this.#wish) this.#spawn()
  }
}

let reaper: ChildProcess | undefined

function tellReaper(line: string): void {
  reaper ??= startReaper()
  reaper.stdin?.write(`${line}\n`)
}

function startReaper(): ChildProcess {
  const child = spawn(process.execPath, [REAPER], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] })
  child.unref()
  if (child.stdin instanceof Socket) child.stdin.unref()
  return child
}
