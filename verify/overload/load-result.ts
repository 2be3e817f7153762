export type Kind = 'read' | 'start' | 'callback'
export const KINDS: readonly Kind[] = ['read', 'start', 'callback']

export interface Phase {
  /** Requests due per second, whether or not earlier ones were answered. */
  ratePerSecond: number
  durationMs: number
}

/** The outcome of the requests of one phase, as the clients see it. */
export interface LoadResult {
  seconds: number
  offered: Record<Kind, number>
  succeeded: Record<Kind, number>
  /** Of successful requests, from the moment they were due, so that a late start counts as waiting. */
  latenciesMs: Record<Kind, number[]>
  /** Answered with 429 or 503. */
  refused: Record<Kind, number>
  refusedWithoutRetryAfter: number
  /** Not sent, because all connections were waiting for a response. */
  unsent: number
  /** Neither success nor refusal, by kind: another status, a timeout, a broken connection. */
  failures: Record<string, number>
  /** The runs of callbacks that were answered 200. */
  acceptedRuns: number[]
  connections: number
  generatorBusy: number
}

export function emptyResult(): LoadResult {
  const none = () => ({ read: 0, start: 0, callback: 0 })
  return {
    seconds: 0,
    offered: none(),
    succeeded: none(),
    latenciesMs: { read: [], start: [], callback: [] },
    refused: none(),
    refusedWithoutRetryAfter: 0,
    unsent: 0,
    failures: {},
    acceptedRuns: [],
    connections: 0,
    generatorBusy: 0,
  }
}

export function total(counts: Record<Kind, number>): number {
  return counts.read + counts.start + counts.callback
}

export function ordinaryLatencies({ latenciesMs }: LoadResult): number[] {
  return [...latenciesMs.read, ...latenciesMs.start]
}

export function perSecond(result: LoadResult, counts: Record<Kind, number>): number {
  return total(counts) / result.seconds
}

export function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}
