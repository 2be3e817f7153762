import { mkdtempSync, rmSync } from 'node:fs'
import { request as send } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type AgentRuntime, startAgentRuntime } from '../../../src/sandbox/agent-runtime/agent-runtime.ts'
import type { Run } from '../../../src/sandbox/agent-runtime/records.ts'
import { startIdentityProvider } from '../../../src/sandbox/identity-provider/identity-provider.ts'
import { type Server, serviceSpec, startServer } from '../server.ts'
import { residentBytes } from '../startup.ts'

export interface LiveFigures {
  viewers: number
  jobs: number
  /** Events that viewers received in a second. */
  eventsPerSecond: number
  /** From the runtime's token to the viewer, and to a client that reads the runtime's stream itself. */
  viewer: Quantiles
  direct: Quantiles
  kilobytesPerViewer: number
  /** Processor time of the service for one event at one viewer. */
  cpuMicroseconds: number | null
}

interface Quantiles {
  p50Ms: number
  p99Ms: number
}

const JOBS = 100
const VIEWERS_PER_JOB = 10
/** Each run writes this many tokens a second. */
const TOKENS_PER_SECOND = 10
const SETTLE_MS = 2_000
const METADATA = { langgraph_node: 'answer', filler: 'x'.repeat(700) }

/**
 * Measures 1,000 viewers of 100 live jobs: the delay of a token compared with a client of the runtime, and the cost of each
 * viewer.
 */
export async function measureLive({ seconds }: { seconds: number }): Promise<LiveFigures> {
  const folder = mkdtempSync(join(tmpdir(), 'bench-live-'))
  const issuer = await startIdentityProvider()
  const runtime = await startAgentRuntime()
  const env = {
    NODE_ENV: 'development',
    ISSUER_URL: issuer.issuer,
    DATA_DIR: folder,
    RUNTIME_URL: runtime.url,
    RUNTIME_TIMEOUT_MS: '10000',
  }
  const server = await startServer(serviceSpec(env))
  const readers: Reader[] = []
  try {
    const tokens = Array.from({ length: JOBS }, (_, n) => issuer.mint({ sub: `viewer-${n}` }))
    const ids = await inTurns(tokens, (token) => startJob(server, token))
    const runs = await untilRunning(runtime, ids)
    // Open one viewer per job first, so that the memory of the runs' channels does not count as memory of the viewers.
    const open = async (n: number) => {
      const headers = { authorization: `Bearer ${tokens[n]}` }
      readers.push(await read(`http://127.0.0.1:${server.port}/jobs/${ids[n]}/live`, headers))
    }
    const jobs = ids.map((_, n) => n)
    await inTurns(jobs, open)
    await writeTokens(runs, SETTLE_MS)
    const before = residentBytes(server)
    for (let more = 1; more < VIEWERS_PER_JOB; more++) await inTurns(jobs, open)
    await writeTokens(runs, SETTLE_MS)
    const perViewer = (residentBytes(server) - before) / (readers.length - JOBS)
    const direct = await inTurns(runs, ({ threadId, runId }) =>
      read(`${runtime.url}/threads/${threadId}/runs/${runId}/stream`, {}),
    )
    const measured = [...readers, ...direct]
    for (const reader of measured) reader.delaysMs.length = 0
    const cpuMs = server.cpuMs()
    const written = await writeTokens(runs, seconds * 1_000)
    await sleep(SETTLE_MS)
    for (const reader of measured) reader.close()
    const delaysMs = readers.flatMap((reader) => reader.delaysMs)
    if (delaysMs.length !== written * VIEWERS_PER_JOB) {
      throw new Error(`${delaysMs.length} of ${written * VIEWERS_PER_JOB} events arrived`)
    }
    const spentMs = cpuMs === null ? null : (server.cpuMs() ?? 0) - cpuMs
    return {
      viewers: readers.length,
      jobs: JOBS,
      eventsPerSecond: delaysMs.length / seconds,
      viewer: quantilesOf(delaysMs),
      direct: quantilesOf(direct.flatMap((reader) => reader.delaysMs)),
      kilobytesPerViewer: perViewer / 1_000,
      cpuMicroseconds: spentMs === null ? null : (spentMs * 1_000) / delaysMs.length,
    }
  } finally {
    for (const reader of readers) reader.close()
    await server.stop()
    await runtime.close()
    await issuer.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

async function startJob(server: Server, token: string): Promise<string> {
  const answer = await fetch(`http://127.0.0.1:${server.port}/jobs`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify({ type: 'agent', input: { messages: [], sandbox: { duration_ms: 3_600_000 } } }),
  })
  if (answer.status !== 202) throw new Error(`A job was answered with ${answer.status}`)
  return ((await answer.json()) as { id: string }).id
}

/** In the order of the jobs. */
async function untilRunning(runtime: AgentRuntime, ids: readonly string[]): Promise<Run[]> {
  for (let attempt = 0; attempt < 1_000; attempt++) {
    const byJob = new Map(runtime.runs.map((run) => [String(run.metadata.job_id), run]))
    const runs = ids.flatMap((id) => byJob.get(id) ?? [])
    if (runs.length === ids.length && runs.every(({ status }) => status === 'running')) return runs
    await sleep(20)
  }
  throw new Error('The runs did not start')
}

/** Each run writes its tokens evenly, and the runs take turns. A token is the time at which it was written. */
async function writeTokens(runs: readonly Run[], durationMs: number): Promise<number> {
  const everyMs = 1_000 / TOKENS_PER_SECOND / runs.length
  const sinceMs = performance.now()
  const due = () => Math.min(performance.now() - sinceMs, durationMs) / everyMs
  let written = 0
  while (written < Math.floor(durationMs / everyMs)) {
    for (; written < Math.floor(due()); written++) {
      const run = runs[written % runs.length]
      const message = { type: 'AIMessageChunk', id: 'm', content: `@${performance.now()}@`, tool_call_chunks: [] }
      run?.events.push({ event: 'messages', data: [message, METADATA] })
      for (const notify of run?.followers ?? []) notify()
    }
    await sleep(1)
  }
  return written
}

interface Reader {
  delaysMs: number[]
  close(): void
}

/** Reads a stream, and how old each token is when it arrives. */
function read(url: string, headers: Record<string, string>): Promise<Reader> {
  return new Promise((resolve, reject) => {
    const delaysMs: number[] = []
    const outgoing = send(url, { agent: false, headers: { accept: 'text/event-stream', ...headers } }, (incoming) => {
      if (incoming.statusCode !== 200) return reject(new Error(`A stream was answered with ${incoming.statusCode}`))
      let rest = ''
      incoming.setEncoding('latin1')
      incoming.on('data', (text: string) => {
        const nowMs = performance.now()
        const blocks = (rest + text).split('\n\n')
        rest = blocks.pop() ?? ''
        for (const block of blocks) {
          const [, writtenMs] = /@([\d.]+)@/.exec(block) ?? []
          if (writtenMs !== undefined) delaysMs.push(nowMs - Number(writtenMs))
        }
      })
      incoming.on('error', () => {})
      resolve({ delaysMs, close: () => outgoing.destroy() })
    })
    outgoing.on('error', reject)
    outgoing.end()
  })
}

/** Runs ten at a time. */
async function inTurns<Item, Result>(items: readonly Item[], work: (item: Item) => Promise<Result>): Promise<Result[]> {
  const results: Result[] = []
  for (let from = 0; from < items.length; from += 10) {
    results.push(...(await Promise.all(items.slice(from, from + 10).map(work))))
  }
  return results
}

function quantilesOf(delaysMs: readonly number[]): Quantiles {
  const sorted = delaysMs.toSorted((a, b) => a - b)
  const at = (share: number) => sorted[Math.floor(share * (sorted.length - 1))] ?? 0
  return { p50Ms: at(0.5), p99Ms: at(0.99) }
}
