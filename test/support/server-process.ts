import { type ChildProcess, spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { createServer, Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { START_PATIENCE_MS } from './patience.ts'
import { endTree, signalTree } from './process-tree.ts'

export interface ServerCommand {
  command: string
  args: string[]
  /** Printed once the server takes connections. */
  ready: RegExp
  /** The signal for an orderly stop. */
  stopSignal: NodeJS.Signals
  user?: { uid: number; gid: number } | undefined
}

/**
 * A real server in a temporary folder of its own that a test may stop, kill, pause and restart. It never outlives the
 * test process (see reaper.ts), and never keeps it alive either.
 */
export class ServerProcess {
  readonly folder: string
  readonly #reaper: ChildProcess
  #command: ServerCommand | undefined
  #child: ChildProcess | undefined

  constructor(name: string) {
    this.folder = mkdtempSync(join(tmpdir(), `${name}-`))
    const reaper = fileURLToPath(new URL('./reaper.ts', import.meta.url))
    this.#reaper = spawn(process.execPath, [reaper, this.folder], {
      detached: true,
      stdio: ['pipe', 'ignore', 'ignore'],
    })
    this.#reaper.unref()
    unref(this.#reaper.stdin)
  }

  async start(command: ServerCommand): Promise<void> {
    this.#command = command
    const child = spawn(command.command, command.args, {
      cwd: this.folder,
      // None of the caller's settings; the ready line is matched in English.
      env: { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C' },
      stdio: ['ignore', 'pipe', 'pipe'],
      ...command.user,
    })
    this.#child = child
    this.#tellReaper(`${child.pid} ${command.stopSignal}`)
    try {
      await untilReady(child, command)
    } catch (error) {
      await this.kill()
      throw error
    }
    child.unref()
    unref(child.stdout)
    unref(child.stderr)
  }

  async restart(): Promise<void> {
    if (!this.#command) throw new Error('The server was never started')
    await this.#end(this.#command.stopSignal)
    await this.start(this.#command)
  }

  /** Kills all processes of the server at once, like a power cut. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL')
  }

  /** The server neither answers nor closes its connections, as if the network lost all packets. */
  pause(): void {
    if (this.#child?.pid) signalTree(this.#child.pid, 'SIGSTOP')
  }

  resume(): void {
    if (this.#child?.pid) signalTree(this.#child.pid, 'SIGCONT')
  }

  async stop(): Promise<void> {
    await this.#end(this.#command?.stopSignal ?? 'SIGKILL')
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 })
    this.#reaper.stdin?.end()
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const pid = this.#child?.pid
    if (pid === undefined) return
    await endTree(pid, signal)
    this.#child = undefined
    this.#tellReaper('none')
  }

  #tellReaper(line: string): void {
    this.#reaper.stdin?.write(`${line}\n`)
  }
}

/**
 * Above the last port that browsers refuse, and below those that systems use for connections. Steps of ten leave room for
 * the sandbox, which uses the five ports after the one of its service.
 */
const PORTS = { first: 12_000, step: 10, count: 2_000 }
const MAX_TRIES = 10_000

/** A free port. Within `npm test` no other caller gets the same, so it stays free until the caller's process listens. */
export async function freePort(): Promise<number> {
  for (let tries = 0; tries < MAX_TRIES; tries++) {
    const port = PORTS.first + PORTS.step * randomInt(PORTS.count)
    if (reserve(port) && (await isFree(port))) return port
  }
  throw new Error('No port is free')
}

/** Reserves the port for the caller, for the rest of the run; false if another caller has it. */
function reserve(port: number): boolean {
  const folder = process.env.TEST_PORTS
  if (folder === undefined) return true
  try {
    mkdirSync(join(folder, String(port)))
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  }
}

async function isFree(port: number): Promise<boolean> {
  const probe = createServer().listen(port, '127.0.0.1')
  try {
    await once(probe, 'listening')
  } catch {
    return false
  }
  probe.close()
  await once(probe, 'close')
  return true
}

/** Starts on a free port, and on another one when the port was taken meanwhile. */
export async function startOnFreePort(start: (port: number) => Promise<void>): Promise<number> {
  for (let attempt = 1; ; attempt++) {
    const port = await freePort()
    try {
      await start(port)
      return port
    } catch (error) {
      if (attempt === 3) throw error
    }
  }
}

function untilReady(child: ChildProcess, { command, ready }: ServerCommand): Promise<void> {
  return new Promise((resolve, reject) => {
    let said = ''
    const fail = (reason: string) => {
      clearTimeout(timer)
      reject(new Error(`${command} ${reason}:\n${said}`))
    }
    const timer = setTimeout(() => fail('did not get ready in time'), START_PATIENCE_MS)
    const listen = (chunk: Buffer) => {
      said = (said + chunk.toString()).slice(-8_192)
      if (!ready.test(said)) return
      clearTimeout(timer)
      resolve()
    }
    // The listeners stay: unread output would in the end block the server.
    child.stdout?.on('data', listen)
    child.stderr?.on('data', listen)
    child.once('error', (error) => fail(error.message))
    child.once('exit', (code, signal) => fail(`ended with ${code ?? signal}`))
  })
}

function unref(stream: unknown): void {
  if (stream instanceof Socket) stream.unref()
}
