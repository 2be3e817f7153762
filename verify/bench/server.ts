import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { openSync, readFileSync } from 'node:fs'
import { devNull } from 'node:os'
import { fileURLToPath } from 'node:url'
import packageJson from '../../package.json' with { type: 'json' }
import { freePort } from '../../test/support/server-process.ts'

export interface ServerSpec {
  /** The file to run, relative to `verify/bench/`. */
  script: string
  args?: readonly string[]
  nodeArgs?: readonly string[]
  env: ServerEnv
}

/** A function gets the port that the server listens on. */
type ServerEnv = Record<string, string> | ((port: number) => Record<string, string>)

export interface Server {
  port: number
  pid: number
  /** From the start of the process to the first 200 of `/healthz`. */
  readyMs: number
  /** CPU time of all threads so far; null if the system does not report it. */
  cpuMs(): number | null
  stop(): Promise<void>
}

const [, ...START] = packageJson.scripts.start.split(' ')

/** The service as `npm start` starts it, with the same flags of Node. */
export function serviceSpec(env: ServerEnv): ServerSpec {
  return {
    script: '../../bin/project-api.js',
    args: ['serve'],
    nodeArgs: START.filter((arg) => arg.startsWith('--')),
    env,
  }
}

const READY_TIMEOUT_MS = 15_000
const POLL_EVERY_MS = 5

/**
 * Starts a server in its own process, so that it does not share the event loop of the load generator. It writes its log to
 * the null device, so that no disk or terminal is measured.
 */
export async function startServer(spec: ServerSpec): Promise<Server> {
  const port = await freePort()
  const env = typeof spec.env === 'function' ? spec.env(port) : spec.env
  const script = fileURLToPath(new URL(spec.script, import.meta.url))
  const startedMs = performance.now()
  const child = spawn(process.execPath, [...(spec.nodeArgs ?? []), script, ...(spec.args ?? [])], {
    env: { PATH: process.env.PATH, PORT: String(port), ...env },
    stdio: ['ignore', openSync(devNull, 'w'), 'inherit'],
  })
  // When the benchmark crashes, its servers end too.
  const reap = () => child.kill('SIGKILL')
  process.once('exit', reap)
  try {
    await untilHealthy(port, child)
  } catch (error) {
    child.kill('SIGKILL')
    throw error
  }
  const readyMs = performance.now() - startedMs
  return {
    port,
    pid: child.pid ?? 0,
    readyMs,
    cpuMs: () => (process.platform === 'linux' ? linuxCpuMs(child.pid ?? 0) : null),
    stop: async () => {
      process.off('exit', reap)
      if (child.exitCode !== null || child.signalCode !== null) return
      child.kill('SIGINT')
      await once(child, 'exit')
    },
  }
}

async function untilHealthy(port: number, child: ChildProcess): Promise<void> {
  const deadline = AbortSignal.timeout(READY_TIMEOUT_MS)
  while (!(await isHealthy(port, deadline))) {
    if (child.exitCode !== null) throw new Error(`The server ended with ${child.exitCode}`)
    deadline.throwIfAborted()
    await new Promise((resolve) => setTimeout(resolve, POLL_EVERY_MS))
  }
}

function isHealthy(port: number, signal: AbortSignal): Promise<boolean> {
  return fetch(`http://127.0.0.1:${port}/healthz`, { signal }).then(
    (response) => response.arrayBuffer().then(() => response.status === 200),
    () => false,
  )
}

const LINUX_TICK_MS = 10

function linuxCpuMs(pid: number): number {
  const found = /\) \S(?: -?\d+){10} (?<user>\d+) (?<system>\d+) /.exec(
    readFileSync(`/proc/${pid}/stat`, 'utf8'),
  )?.groups
  return (Number(found?.user) + Number(found?.system)) * LINUX_TICK_MS
}
