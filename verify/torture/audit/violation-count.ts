const MAX_EXAMPLES = 20

/** Counts one kind of violation, and keeps examples. */
export class ViolationCount {
  readonly name: string
  readonly examples: string[] = []
  #count = 0

  constructor(name: string) {
    this.name = name
  }

  get count(): number {
    return this.#count
  }

  add(example: string): void {
    this.#count += 1
    if (this.examples.length < MAX_EXAMPLES) this.examples.push(example)
  }

  addAll(examples: readonly string[]): void {
    for (const example of examples) this.add(example)
  }
}

/** The value below which this share of all values lies; null without values. */
export function percentile(values: readonly number[], share: number): number | null {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? null
}

export function countBy<T>(items: readonly T[], keyOf: (item: T) => string): Map<string, number> {
  const counts = new Map<string, number>()
  for (const item of items) counts.set(keyOf(item), (counts.get(keyOf(item)) ?? 0) + 1)
  return counts
}
