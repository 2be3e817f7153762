import { isDeepStrictEqual } from 'node:util'
import { applyLoad, type Sample } from './load.ts'
import type { Server } from './server.ts'

export interface ComparisonSpec<Baseline extends string> {
  ours: Server
  baselines: ReadonlyMap<Baseline, Server>
  requests: readonly Buffer[]
  /** The part of the response body that must be the same from all servers. */
  essence: (body: Readonly<Record<string, unknown>>) => unknown
  pace: Pace
}

export interface Pace {
  warmUpRounds: number
  rounds: number
  roundMs: number
}

/** The medians of a server's rounds. */
export interface Figures extends Omit<Sample, 'requests'> {
  /** Processor time of the server for one request; other load on the machine hardly changes it. */
  cpuMicroseconds: number | null
}

export interface Outcome<Baseline extends string> {
  ours: Figures
  baselines: ReadonlyMap<Baseline, { ratio: number; figures: Figures }>
}

interface Round extends Sample {
  cpuMs: number | null
}

const CONNECTIONS = 64
/** The first rounds of a comparison are not counted, because the servers were under another load before. */
const UNCOUNTED_ROUNDS = 2

/**
 * Puts load on the servers until V8 has optimized the code that they use: after 5 s a request still takes a quarter more
 * processor time than after 10 s. The servers take turns, because a process that idled for 8 s is slow again.
 */
export async function warmUp(
  servers: ReadonlyMap<Server, readonly Buffer[]>,
  { warmUpRounds, roundMs }: Pace,
): Promise<void> {
  for (let round = 0; round < warmUpRounds; round++) {
    for (const [{ port }, requests] of servers) {
      await applyLoad({ port, requests, connections: CONNECTIONS, durationMs: roundMs })
    }
  }
}

/**
 * Puts the same load on the servers in turns (A, B, C, A, B, C, …), so that other load on the machine affects all of them.
 * A ratio is the median of the rounds' ratios, the figures are the medians of the rounds. Warm the servers up first.
 */
export async function compare<Baseline extends string>(
  comparison: ComparisonSpec<Baseline>,
): Promise<Outcome<Baseline>> {
  const { ours, baselines, requests, pace } = comparison
  await checkSameAnswers(comparison, [ours, ...baselines.values()])
  const load = async (server: Server): Promise<Round> => {
    const beforeMs = server.cpuMs()
    const sample = await applyLoad({ port: server.port, requests, connections: CONNECTIONS, durationMs: pace.roundMs })
    const afterMs = server.cpuMs()
    return { ...sample, cpuMs: beforeMs === null || afterMs === null ? null : afterMs - beforeMs }
  }
  const mine: Round[] = []
  const theirs = new Map([...baselines.keys()].map((name) => [name, [] as Round[]]))
  await warmUp(new Map([ours, ...baselines.values()].map((server) => [server, requests])), {
    ...pace,
    warmUpRounds: UNCOUNTED_ROUNDS,
  })
  for (let round = 0; round < pace.rounds; round++) {
    mine.push(await load(ours))
    for (const [name, server] of baselines) theirs.get(name)?.push(await load(server))
  }

  const outcomes = [...theirs].map(([name, played]) => {
    const ratios = played.map((round, at) => (mine[at]?.requestsPerSecond ?? 0) / round.requestsPerSecond)
    return [name, { ratio: median(ratios), figures: summarize(played) }] as const
  })
  return { ours: summarize(mine), baselines: new Map(outcomes) }
}

/** Rejects unless all servers give the same response. */
async function checkSameAnswers(
  { requests, essence }: Pick<ComparisonSpec<string>, 'requests' | 'essence'>,
  servers: readonly Server[],
): Promise<void> {
  const request = requests[0]?.toString() ?? ''
  const path = /^GET (\S+) /.exec(request)?.[1] ?? ''
  const authorization = /authorization: (.*)\r\n/.exec(request)?.[1] ?? ''
  const ask = async ({ port }: Server) => {
    const signal = AbortSignal.timeout(5_000)
    const response = await fetch(`http://127.0.0.1:${port}${path}`, { headers: { authorization }, signal })
    return { status: response.status, body: essence((await response.json()) as Record<string, unknown>) }
  }
  const [first, ...others] = await Promise.all(servers.map(ask))
  if (first?.status !== 200 || others.some((other) => !isDeepStrictEqual(other, first))) {
    throw new Error(`The servers answer differently: ${JSON.stringify([first, ...others]).slice(0, 2_000)}`)
  }
}

function summarize(rounds: readonly Round[]): Figures {
  return {
    requestsPerSecond: median(rounds.map((round) => round.requestsPerSecond)),
    p50Ms: median(rounds.map((round) => round.p50Ms)),
    p99Ms: median(rounds.map((round) => round.p99Ms)),
    generatorBusy: median(rounds.map((round) => round.generatorBusy)),
    cpuMicroseconds: rounds.some((round) => round.cpuMs === null)
      ? null
      : (1_000 * sum(rounds.map((round) => round.cpuMs ?? 0))) / sum(rounds.map((round) => round.requests)),
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const upper = sorted[sorted.length >> 1] ?? Number.NaN
  return sorted.length % 2 === 1 ? upper : ((sorted[(sorted.length >> 1) - 1] ?? Number.NaN) + upper) / 2
}
