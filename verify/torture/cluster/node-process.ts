import { type ChildProcess, spawn } from 'node:child_process'
import { openSync } from 'node:fs'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { systemClock } from '../../../src/core/clock.ts'
import { COMPILE_CACHE } from '../../../test/support/compile-cache.ts'
import { PROGRAM } from '../../../test/support/program-file.ts'
import { freePort } from '../../../test/support/server-process.ts'
import type { Target } from './fault-proxy.ts'

const REAPER = fileURLToPath(new URL('../../../test/support/program-reaper.ts', import.meta.url))
const STOP_TIMEOUT_MS = 20_000
const BETWEEN_STARTS_MS = 300
/** Exit code when the database is unavailable: a service manager starts the node again. */
const UNAVAILABLE = 69
/** Exit code when, among others, another process has taken the port. */
const CONFIG = 78

/**
 * One `serve` under a service manager, which starts it again when it ends by itself. That counts as unexpected unless the
 * database was unavailable. It never outlives this process (see program-reaper.ts).
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
  /** Counts calls of `start`: a delayed restart of an earlier `start` must not run. */
  #starts = 0

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
    this.#starts += 1
    this.#spawn()
  }

  /** SIGKILL; false when it was not running. */
  kill(): boolean {
    this.#wanted = false
    return this.#child?.kill('SIGKILL') ?? false
  }

  /** Resolves once the process has ended. */
  async gone(): Promise<void> {
    await this.#exited
  }

  /** SIGTERM; resolves with its exit code, null when it had to be killed. */
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
    const child = spawn(process.execPath, [PROGRAM, 'serve'], {
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
    const starts = this.#starts
    await systemClock.sleep(BETWEEN_STARTS_MS)
    if (this.#wanted && starts === this.#starts) this.#spawn()
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
