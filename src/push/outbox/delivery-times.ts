import { type Backoff, backoffMs } from '../../core/async/backoff.ts'
import type { Random } from '../../core/random.ts'
import type { DueDelivery } from './delivery-store.ts'

/** The jitter adds to the half of it: never sooner than 10 s, 20 s, 40 s, … */
const RETRY: Backoff = { baseMs: 20_000, maxMs: 10 * 60_000 }
/** How long a pause may be that the provider asks for. */
const MAX_ASKED_MS = 60 * 60_000
const GIVE_UP_AFTER_MS = 60 * 60_000
/** Whether a device is dead after all is nothing urgent. */
const DOUBT: Backoff = { baseMs: 60_000, maxMs: 60 * 60_000 }
/** Even what is meant for now or never has to get out of the door. */
const MIN_LIFE_MS = 10_000

interface Moment {
  nowMs: number
  random: Random
}

export type Retrying = DueDelivery & { retryAtMs: number; retrying_since: number }

/** When to try again what the provider failed to take; what it asks for beyond our own pause is no time spent trying. */
export function retryLater(
  delivery: DueDelivery,
  { askedMs, nowMs, random }: Moment & { askedMs: number | null },
): Retrying {
  const ownMs = backoffMs(RETRY, delivery.attempts - 1, random)
  const pauseMs = Math.max(ownMs, Math.min(askedMs ?? 0, MAX_ASKED_MS))
  const sinceMs = delivery.retrying_since ?? nowMs
  return { ...delivery, retryAtMs: nowMs + pauseMs, retrying_since: sinceMs + pauseMs - ownMs }
}

/** When to ask again about a device that is called dead and not believed to be. */
export function doubtUntil({ attempts }: DueDelivery, { nowMs, random }: Moment): number {
  return nowMs + backoffMs(DOUBT, attempts - 1, random)
}

/** Trying again and again ends here; time in which nothing could be tried, for want of credentials say, does not count. */
export function giveUpAt({ created_at, ttl_seconds, retrying_since }: Retrying): number {
  return Math.min(retrying_since + GIVE_UP_AFTER_MS, created_at + ttl_seconds * 1000)
}

export function endOfLife({ created_at, ttl_seconds }: DueDelivery): number {
  return created_at + Math.max(MIN_LIFE_MS, ttl_seconds * 1000)
}
