import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { atEnd } from './at-end.ts'
import { COMPILE_CACHE } from './compile-cache.ts'
import { PATIENCE_MS, START_PATIENCE_MS } from './patience.ts'
import { PROGRAM } from './program-file.ts'

export type Settings = Record<string, string>

export interface ProgramOptions {
  settings?: Settings
  /** Where it runs; a fresh, empty folder unless given. */
  folder?: string
  /** The program's main file; that of this checkout unless given. */
  main?: string
}

export interface Ending {
  /** Null when a signal ended it. */
  code: number | null
  output: string
  errors: string
}

/**
 * The program as an operator runs it: a separate process with only the given settings. It never outlives the test process
 * (see program-reaper.ts).
 */
export class Program {
  readonly folder: string
  readonly #child: ChildProcess
  readonly #ended: Promise<Ending>
  readonly #watchers = new Set<() => void>()
  #output = ''
  #errors = ''

  constructor(args: readonly string[], options: ProgramOptions = {}) {
    this.folder = options.folder ?? freshFolder()
    this.#child = spawn(process.execPath, [options.main ?? PROGRAM, ...args], {
      cwd: this.folder,
      env: { PATH: process.env.PATH, TMPDIR: scratch(), NODE_COMPILE_CACHE: COMPILE_CACHE, ...options.settings },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.#child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.#output += text
      for (const look of this.#watchers) look()
    })
    this.#child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#errors += text
    })
    this.#ended = this.#ending()
    programs.add(this)
    tellReaper(`+${this.pid}`)
  }

  get pid(): number {
    return this.#child.pid ?? Number.NaN
  }

  /** All it has written to its standard output so far. */
  get output(): string {
    return this.#output
  }

  get isRunning(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null
  }

  signal(name: NodeJS.Signals): void {
    this.#child.kill(name)
  }

  /** Resolves once its output matches; rejects when it ends without, or takes too long. */
  async untilSaid(pattern: RegExp): Promise<RegExpExecArray> {
    const { promise, resolve, reject } = Promise.withResolvers<RegExpExecArray>()
    const look = () => {
      const found = pattern.exec(this.#output)
      if (found) resolve(found)
    }
    this.#watchers.add(look)
    look()
    void this.#ended.then(({ code }) => reject(new Error(`It ended with ${code}: ${this.#said()}`)))
    try {
      return await this.#patiently(`to say ${pattern}`, promise, START_PATIENCE_MS)
    } finally {
      this.#watchers.delete(look)
    }
  }

  /** Resolves once it has ended by itself; rejects when that takes too long. */
  untilEnded(timeoutMs = PATIENCE_MS): Promise<Ending> {
    return this.#patiently('to end', this.#ended, timeoutMs)
  }

  async kill(): Promise<void> {
    if (!this.isRunning) return
    this.#child.kill('SIGKILL')
    await once(this.#child, 'close')
  }

  async #ending(): Promise<Ending> {
    const [code] = (await once(this.#child, 'close')) as [number | null]
    programs.delete(this)
    tellReaper(`-${this.pid}`)
    return { code, output: this.#output, errors: this.#errors }
  }

  async #patiently<T>(what: string, outcome: Promise<T>, timeoutMs: number): Promise<T> {
    const { promise: late, reject } = Promise.withResolvers<never>()
    const timer = setTimeout(() => reject(new Error(`Waited too long for it ${what}: ${this.#said()}`)), timeoutMs)
    try {
      return await Promise.race([outcome, late])
    } finally {
      clearTimeout(timer)
    }
  }

  #said(): string {
    return `\n${this.#output.slice(-4096)}${this.#errors.slice(-4096)}`
  }
}

/** Runs a command that ends by itself, and returns its exit code and output. Its time includes that of its start. */
export function runProgram(args: readonly string[], options: ProgramOptions = {}): Promise<Ending> {
  return new Program(args, options).untilEnded(START_PATIENCE_MS)
}

/** An empty folder that is deleted after the tests. */
export function freshFolder(): string {
  return mkdtempSync(join(scratch(), 'program-'))
}

const programs = new Set<Program>()
atEnd(async () => {
  await Promise.all([...programs].map((program) => program.kill()))
})

let reaper: { process: ChildProcess; folder: string } | undefined

function scratch(): string {
  reaper ??= startReaper()
  return reaper.folder
}

function startReaper(): { process: ChildProcess; folder: string } {
  const folder = mkdtempSync(join(tmpdir(), 'test-programs-'))
  const script = fileURLToPath(new URL('./program-reaper.ts', import.meta.url))
  const child = spawn(process.execPath, [script, folder], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] })
  child.unref()
  if (child.stdin instanceof Socket) child.stdin.unref()
  return { process: child, folder }
}

function tellReaper(line: string): void {
  reaper?.process.stdin?.write(`${line}\n`)
}
