import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { PATIENCE_MS } from './patience.ts'

/**
 * Signals a process and all its descendants, and returns their ids. PostgreSQL gives each child a session of its own, so a
 * process group would miss them.
 */
export function signalTree(root: number, signal: NodeJS.Signals): number[] {
  const before = descendantsOf(root)
  signalProcess(root, signal)
  // List the descendants again: the root may have forked before the signal arrived.
  const all = [...new Set([root, ...before, ...descendantsOf(root)])]
  for (const pid of all) if (pid !== root) signalProcess(pid, signal)
  return all
}

/** Stops the whole tree first, so that no part of it notices the death of another. */
export function killTree(root: number): void {
  for (const pid of signalTree(root, 'SIGSTOP')) signalProcess(pid, 'SIGKILL')
}

/** Asks a process to end, and waits until it and all below it are gone; past the time limit it kills them. */
export async function endTree(root: number, signal: NodeJS.Signals, timeoutMs = PATIENCE_MS): Promise<void> {
  const all = new Set(signalTree(root, 'SIGCONT'))
  if (signal === 'SIGKILL') killTree(root)
  else signalProcess(root, signal)
  const deadline = Date.now() + timeoutMs
  while (listProcesses().some(({ pid }) => all.has(pid))) {
    if (Date.now() > deadline) for (const pid of all) signalProcess(pid, 'SIGKILL')
    await sleep(10)
  }
}

export function descendantsOf(root: number): number[] {
  const processes = listProcesses()
  const family = [root]
  for (const pid of family) {
    for (const child of processes) if (child.parent === pid) family.push(child.pid)
  }
  return family.slice(1)
}

function signalProcess(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // It ended meanwhile.
  }
}

interface ListedProcess {
  pid: number
  parent: number
}

/** Without zombies: a container may have no process that collects them. */
function listProcesses(): ListedProcess[] {
  if (process.platform === 'linux') {
    return readdirSync('/proc')
      .filter((entry) => /^\d+$/.test(entry))
      .map(readLinuxProcess)
      .filter((found) => found !== undefined)
  }
  return execFileSync('ps', ['-A', '-o', 'pid=,ppid=,stat='], { encoding: 'utf8' })
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([, , state]) => state !== undefined && !state.startsWith('Z'))
    .map(([pid, parent]) => ({ pid: Number(pid), parent: Number(parent) }))
}

function readLinuxProcess(pid: string): ListedProcess | undefined {
  try {
    // The name, in parentheses, may hold anything; state and parent follow the last one.
    const found = /\) (?<state>\S) (?<parent>\d+)[^)]*$/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8'))?.groups
    if (found === undefined || found.state === 'Z') return undefined
    return { pid: Number(pid), parent: Number(found.parent) }
  } catch {
    return undefined // It ended meanwhile.
  }
}
