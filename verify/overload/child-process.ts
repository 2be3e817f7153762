import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { openSync } from 'node:fs'
import { devNull } from 'node:os'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import packageJson from '../../package.json' with { type: 'json' }

const READY_TIMEOUT_MS = 20_000

/** Starts a child process of the environment, which ends with this process. */
export function startChild(script: string): ChildProcess {
  return fork(fileURLToPath(new URL(script, import.meta.url)), { execArgv: [] })
}

/** The next message of the child; rejects when the child ends. */
export async function nextMessageOf<Message>(child: ChildProcess): Promise<Message> {
  const over = new AbortController()
  const ended = once(child, 'exit', { signal: over.signal }).then(([code]) => {
    throw new Error(`A child process of the environment ended with ${code}`)
  })
  try {
    const said = once(child, 'message', { signal: over.signal }).then(([message]) => message as Message)
    return await Promise.race([said, ended])
  } finally {
    over.abort()
    ended.catch(() => {})
  }
}

/** Starts `serve` with the flags of `npm start`. It writes its log to the null device, so that no disk is measured. */
export async function startServe(url: string, env: Record<string, string>): Promise<ChildProcess> {
  const [, ...args] = packageJson.scripts.start.split(' ')
  const child = spawn(process.execPath, args, {
    cwd: fileURLToPath(new URL('../..', import.meta.url)),
    env: { PATH: process.env.PATH, ...env },
    stdio: ['ignore', openSync(devNull, 'w'), 'inherit'],
  })
  process.once('exit', () => child.kill('SIGKILL'))
  const deadline = AbortSignal.timeout(READY_TIMEOUT_MS)
  while (!(await isHealthy(url, deadline))) {
    if (child.exitCode !== null) throw new Error(`serve ended with ${child.exitCode}`)
    await pause(20)
  }
  return child
}

export async function stopChild(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

function isHealthy(url: string, signal: AbortSignal): Promise<boolean> {
  signal.throwIfAborted()
  return fetch(`${url}/healthz`, { signal }).then(
    (response) => response.arrayBuffer().then(() => response.status === 200),
    () => false,
  )
}
