import { isDeepStrictEqual } from 'node:util'
import { applyLoad, type Sample } from './load.ts'
import { type Server, type ServerSpec, startServer } from './server.ts'

export interface Contest<Opponent extends string> {
  ours: ServerSpec
  opponents: ReadonlyMap<Opponent, ServerSpec>
  requests: readonly Buffer[]
  /** Of the body of an answer, what must be the same from all. */
  essence: (body: Readonly<Record<string, unknown>>) => unknown
  rounds: number
  roundMs: number
  warmUpMs: number
}

/** The medians of a server's rounds. */
export interface Figures extends Omit<Sample, 'requests'> {
  /** Processor time of the server's process for one request; it hardly feels what else the machine does. */
  cpuMicroseconds: number | null
}

export interface Outcome<Opponent extends string> {
  ours: Figures
  opponents: ReadonlyMap<Opponent, { ratio: number; figures: Figures }>
}

interface Round extends Sample {
  cpuMs: number | null
}

const CONNECTIONS = 64

/**
 * Servers under the same load in turns (A, B, C, A, B, C, …), so that whatever else the machine does meets all of them.
 * A ratio is the median of the rounds' ratios, the figures are the medians of the rounds.
 */
export async function compare<Opponent extends string>(contest: Contest<Opponent>): Promise<Outcome<Opponent>> {
  const started: Server[] = []
  const start = async (spec: ServerSpec) => {
    const server = await startServer(spec)
    started.push(server)
    return server
  }
  try {
    const ours = await start(contest.ours)
    const opponents = new Map<Opponent, Server>()
    for (const [name, spec] of contest.opponents) opponents.set(name, await start(spec))
    await checkSameAnswers(contest, started)
    return await takeTurns(contest, ours, opponents)
  } finally {
    for (const server of started) await server.stop()
  }
}

async function takeTurns<Opponent extends string>(
  { requests, rounds, roundMs, warmUpMs }: Contest<Opponent>,
  ours: Server,
  opponents: ReadonlyMap<Opponent, Server>,
): Promise<Outcome<Opponent>> {
  const load = async (server: Server, durationMs: number): Promise<Round> => {
    const beforeMs = server.cpuMs()
    const sample = await applyLoad({ port: server.port, requests, connections: CONNECTIONS, durationMs })
    const afterMs = server.cpuMs()
    return { ...sample, cpuMs: beforeMs === null || afterMs === null ? null : afterMs - beforeMs }
  }
  const mine: Round[] = []
  const theirs = new Map([...opponents.keys()].map((name) => [name, [] as Round[]]))

  for (const server of [ours, ...opponents.values()]) await load(server, warmUpMs)
  for (let round = 0; round < rounds; round++) {
    mine.push(await load(ours, roundMs))
    for (const [name, server] of opponents) theirs.get(name)?.push(await load(server, roundMs))
  }

  const outcomes = [...theirs].map(([name, played]) => {
    const ratios = played.map((round, at) => (mine[at]?.requestsPerSecond ?? 0) / round.requestsPerSecond)
    return [name, { ratio: median(ratios), figures: summarize(played) }] as const
  })
  return { ours: summarize(mine), opponents: new Map(outcomes) }
}

/** A server that did less would win for nothing. */
async function checkSameAnswers(
  { requests, essence }: Pick<Contest<string>, 'requests' | 'essence'>,
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
