/** The names of what is counted, in both directions. */
export const END = 'end'
export const CALLBACK = 'callback'
export const PUSH = 'push'
export const TRUTH = 'truth'

export function statsName(kind: string, ...parts: readonly (string | number | null)[]): string {
  return [kind, ...parts.map((part) => part ?? '')].join(':')
}

export function readStatsName(name: string): [kind: string, ...parts: string[]] {
  const [kind = '', ...parts] = name.split(':')
  return [kind, ...parts]
}

/** Times are counted in classes, each a tenth longer than the one before: a percentile is right within a tenth. */
const GROWTH = Math.log(1.1)
const MAX_CLASS = 250

export function classOf(ms: number): number {
  return Math.min(MAX_CLASS, Math.ceil(Math.log(Math.max(1, ms)) / GROWTH))
}

/** The time below which this share of the counted times is; the longest of its class. Null when nothing was counted. */
export function percentileOf(classes: ReadonlyMap<number, number>, share: number): number | null {
  const sorted = [...classes].sort(([a], [b]) => a - b)
  const total = sorted.reduce((sum, [, count]) => sum + count, 0)
  let seen = 0
  for (const [index, count] of sorted) {
    seen += count
    if (seen >= total * share) return Math.round(Math.exp(index * GROWTH))
  }
  return null
}
