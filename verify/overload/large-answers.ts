import { connect, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import type { Engine } from '../../src/db/database.ts'
import { type OverloadEnvironment, startOverloadEnvironment } from './environment.ts'
import { type LoadResult, ordinaryLatencies, quantile, total } from './load-result.ts'
import { startMonitor } from './service-monitor.ts'

/** The load of the other users: much less than the service can handle. */
const OTHERS = { ratePerSecond: 100, mix: { read: 9, start: 1, callback: 0 } }
const JOBS = 8
const JOB_BYTES = 1_000_000
const PAGE = `/jobs?limit=${JOBS}`
/** The rate limit of a user: 1,000 requests a minute. */
const EVERY_MS = 60
const READERS = 20
const MEMORY_MB = 600

/** Sends requests until it is stopped; returns how many were answered with each status, as far as it reads them. */
type Caller = (target: { url: string; token: string }, signal: AbortSignal) => Promise<Record<string, number>>

const CALLERS: Record<string, Caller> = {
  'no other caller': async () => ({}),
  'a user who reads nothing': askAndReadNothing,
  'a user with large pages': readPages,
}

/** What one user with eight jobs of 1 MB does to the others. Returns the limits that are exceeded. */
export async function measureLargeAnswers(options: {
  engine: Engine
  phaseMs: number
  print: (line: string) => void
}): Promise<string[]> {
  const { engine, phaseMs, print } = options
  const environment = await startOverloadEnvironment({ runs: 1, mix: OTHERS.mix, engine })
  const faults: string[] = []
  try {
    const target = { url: environment.url, token: environment.mint('large') }
    await startLargeJobs(target)
    await environment.send({ ratePerSecond: OTHERS.ratePerSecond, durationMs: phaseMs / 2 })
    print(`\n| ${engine}, besides the others | others sent | p50 / p99 ms | failed | RSS MB | the caller got |`)
    print('|---|---|---|---|---|---|')
    for (const [name, caller] of Object.entries(CALLERS)) {
      const { result, rssMaxMb, got } = await measureBeside(environment, { caller, target, phaseMs })
      const failed = total(result.offered) - total(result.succeeded)
      const latencies = [0.5, 0.99].map((share) => quantile(ordinaryLatencies(result), share).toFixed(0)).join(' / ')
      const shown = Object.entries(got).map(([status, count]) => `${count} × ${status}`)
      const cells = [name, total(result.offered), latencies, failed, rssMaxMb.toFixed(0), shown.join(', ') || '–']
      print(`| ${cells.join(' | ')} |`)
      if (failed > 0) faults.push(`${failed} requests of the others failed beside ${name} on ${engine}`)
      if (rssMaxMb > MEMORY_MB) faults.push(`${rssMaxMb.toFixed(0)} MB beside ${name} on ${engine}`)
    }
    return faults
  } finally {
    await environment.close()
  }
}

async function measureBeside(
  environment: OverloadEnvironment,
  { caller, target, phaseMs }: { caller: Caller; target: { url: string; token: string }; phaseMs: number },
): Promise<{ result: LoadResult; rssMaxMb: number; got: Record<string, number> }> {
  const over = new AbortController()
  const monitor = startMonitor(environment.url)
  const calling = caller(target, over.signal)
  const result = await environment.send({ ratePerSecond: OTHERS.ratePerSecond, durationMs: phaseMs })
  over.abort()
  const got = await calling
  await monitor.stop()
  return { result, rssMaxMb: monitor.rssMaxMb, got }
}

async function startLargeJobs({ url, token }: { url: string; token: string }): Promise<void> {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const body = JSON.stringify({ type: 'report', input: { title: 'Large', text: 'x'.repeat(JOB_BYTES) } })
  for (let n = 0; n < JOBS; n++) {
    const response = await fetch(`${url}/jobs`, { method: 'POST', headers, body })
    if (response.status !== 202) throw new Error(`A large job was answered ${response.status}`)
    await response.arrayBuffer()
  }
}

/** A connection for each request, as many a minute as the rate limit allows. */
async function askAndReadNothing(
  { url, token }: { url: string; token: string },
  signal: AbortSignal,
): Promise<Record<string, number>> {
  const { port } = new URL(url)
  const sockets: Socket[] = []
  while (!signal.aborted) {
    const socket = connect({ port: Number(port), host: '127.0.0.1' })
    socket.on('error', () => {})
    socket.write(`GET ${PAGE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token}\r\n\r\n`)
    sockets.push(socket)
    await pause(EVERY_MS)
  }
  for (const socket of sockets) socket.destroy()
  return { 'not read': sockets.length }
}

async function readPages(
  { url, token }: { url: string; token: string },
  signal: AbortSignal,
): Promise<Record<string, number>> {
  const got: Record<string, number> = {}
  const read = async () => {
    while (!signal.aborted) {
      const response = await fetch(`${url}${PAGE}`, { headers: { authorization: `Bearer ${token}` } })
      await response.arrayBuffer()
      got[response.status] = (got[response.status] ?? 0) + 1
    }
  }
  await Promise.all(Array.from({ length: READERS }, read))
  return got
}
