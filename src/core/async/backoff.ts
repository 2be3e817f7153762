import type { Random } from '../random.ts'

export interface Backoff {
  baseMs: number
  maxMs: number
}

/** Exponential backoff with jitter over its upper half: never shorter than half, never longer than the cap. */
export function backoffMs(backoff: Backoff, attempt: number, random: Random): number {
  const ceiling = Math.min(backoff.maxMs, backoff.baseMs * 2 ** Math.min(attempt, 30))
  return Math.round(ceiling / 2 + (ceiling / 2) * random.fraction())
}
