export type Kind = 'read' | 'start' | 'callback'
export const KINDS: readonly Kind[] = ['read', 'start', 'callback']

export interface Phase {
  /** Arrivals a second, whatever becomes of those before. */
  ratePerSecond: number
  durationMs: number
}

/** What became of the requests of one phase, as their sender saw it. */
export interface Tally {
  seconds: number
  offered: Record<Kind, number>
  succeeded: Record<Kind, number>
  /** Of successes alone, from the moment a request was due, so that a late start counts as waiting. */
  latenciesMs: Record<Kind, number[]>
  /** 429 or 503, with the hint when to come back. */
  refused: Record<Kind, number>
  refusedWithoutHint: number
  /** Never left their sender, all of whose connections were waiting for an answer. */
  unsent: number
  /** Neither a success nor a refusal, by what it was: another status, a timeout, a broken connection. */
  failures: Record<string, number>
  /** The runs of callbacks that were answered 200. */
  acceptedRuns: number[]
  connections: number
  generatorBusy: number
}

export function emptyTally(): Tally {
  const none = () => ({ read: 0, start: 0, callback: 0 })
  return {
    seconds: 0,
    offered: none(),
    succeeded: none(),
    latenciesMs: { read: [], start: [], callback: [] },
    refused: none(),
    refusedWithoutHint: 0,
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

export function ordinaryLatencies({ latenciesMs }: Tally): number[] {
  return [...latenciesMs.read, ...latenciesMs.start]
}

export function perSecond(tally: Tally, counts: Record<Kind, number>): number {
  return total(counts) / tally.seconds
}

export function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}
