import type { Random } from '../random.ts'

export interface Backoff {
  baseMs: number
  maxMs: number
}

/** Exponential backoff with jitter: between half of the computed pause and the whole, never longer than the cap. */
export function backoffMs(backoff: Backoff, attempt: number, random: Random): number {
  const ceiling = Math.min(backoff.maxMs, backoff.baseMs * 2 ** Math.min(attempt, 30))
  return Math.round(ceiling / 2 + (ceiling / 2) * random.fraction())
}
