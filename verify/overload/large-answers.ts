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
/** The others read the 20 newest projects, so those are small. A page of 100 then has 1.3 MB. */
const PROJECTS = { large: 80, small: 20, bytes: 16_000 }
/** The rate limit of a user: 1,000 requests a minute. */
const EVERY_MS = 60
const READERS = 20
const MEMORY_MB = 600

/** Sends requests until it is stopped; returns how many were answered with each status, as far as it reads them. */
type Caller = (target: Target, signal: AbortSignal) => Promise<Record<string, number>>

interface Target {
  url: string
  token: string
  /** One of the large jobs. */
  jobId: string
}

const CALLERS: Record<string, Caller> = {
  'no other caller': async () => ({}),
  'a user who reads nothing': askAndReadNothing,
  'a user with large pages': readAgain(() => PAGE),
  'a user who reads one large job': readAgain(({ jobId }) => `/jobs/${jobId}`),
  'a user with pages of projects': readAgain(() => '/v1/projects?limit=100'),
}

/** What one user with large records does to the others. Returns the limits that are exceeded. */
export async function measureLargeAnswers(options: {
  engine: Engine
  phaseMs: number
  print: (line: string) => void
}): Promise<string[]> {
  const { engine, phaseMs, print } = options
  const environment = await startOverloadEnvironment({ runs: 1, mix: OTHERS.mix, engine })
  const faults: string[] = []
  try {
    const access = { url: environment.url, token: environment.mint('large') }
    const target = { ...access, jobId: await storeLargeRecords(access) }
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
  { caller, target, phaseMs }: { caller: Caller; target: Target; phaseMs: number },
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

/** Returns the id of a large job. */
async function storeLargeRecords({ url, token }: Omit<Target, 'jobId'>): Promise<string> {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const store = async (path: string, record: object) => {
    const response = await fetch(`${url}${path}`, { method: 'POST', headers, body: JSON.stringify(record) })
    const { id } = (await response.json()) as { id?: string }
    if (id === undefined) throw new Error(`POST ${path} was answered ${response.status}`)
    return id
  }
  const { large, small, bytes } = PROJECTS
  for (let n = 0; n < large; n++) await store('/v1/projects', { name: 'Large', metadata: { text: 'x'.repeat(bytes) } })
  for (let n = 0; n < small; n++) await store('/v1/projects', { name: 'Small' })
  let id = ''
  for (let n = 0; n < JOBS; n++) {
    id = await store('/jobs', { type: 'report', input: { title: 'Large', text: 'x'.repeat(JOB_BYTES) } })
  }
  return id
}

/** A connection for each request, as many a minute as the rate limit allows. */
async function askAndReadNothing({ url, token }: Target, signal: AbortSignal): Promise<Record<string, number>> {
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

/** Reads the path on several connections, as fast as it can. */
function readAgain(pathOf: (target: Target) => string): Caller {
  return async (target, signal) => {
    const got: Record<string, number> = {}
    const read = async () => {
      while (!signal.aborted) {
        const headers = { authorization: `Bearer ${target.token}` }
        const response = await fetch(`${target.url}${pathOf(target)}`, { headers })
        await response.arrayBuffer()
        got[response.status] = (got[response.status] ?? 0) + 1
      }
    }
    await Promise.all(Array.from({ length: READERS }, read))
    return got
  }
}
