import { type Backoff, backoffMs } from '../../core/async/backoff.ts'
import type { Random } from '../../core/random.ts'
import type { DueDelivery } from './delivery-store.ts'

/** Half of each pause is jitter, so the pauses are at least 10 s, 20 s, 40 s, … */
const RETRY: Backoff = { baseMs: 20_000, maxMs: 10 * 60_000 }
/** The longest pause that a provider may request. */
const MAX_ASKED_MS = 60 * 60_000
const GIVE_UP_AFTER_MS = 60 * 60_000
/** Checking again whether a device is really dead is not urgent. */
const RECHECK: Backoff = { baseMs: 60_000, maxMs: 60 * 60_000 }
/** A delivery with a TTL of zero still needs time for one attempt. */
const MIN_LIFE_MS = 10_000

interface Moment {
  nowMs: number
  random: Random
}

export type Retrying = DueDelivery & { retryAtMs: number; retrying_since: number }

/**
 * When to retry after the provider failed. A longer pause that the provider requested does not count towards the retry
 * time.
 */
export function retryLater(
  delivery: DueDelivery,
  { askedMs, nowMs, random }: Moment & { askedMs: number | null },
): Retrying {
  const ownMs = backoffMs(RETRY, delivery.attempts - 1, random)
  const pauseMs = Math.max(ownMs, Math.min(askedMs ?? 0, MAX_ASKED_MS))
  const sinceMs = delivery.retrying_since ?? nowMs
  return { ...delivery, retryAtMs: nowMs + pauseMs, retrying_since: sinceMs + pauseMs - ownMs }
}

/** When to try a device again after an untrusted report that it is dead. */
export function recheckAt({ attempts }: DueDelivery, { nowMs, random }: Moment): number {
  return nowMs + backoffMs(RECHECK, attempts - 1, random)
}

/** When retrying ends. Time in which no attempt was possible, for lack of credentials for example, does not count. */
export function giveUpAt({ created_at, ttl_seconds, retrying_since }: Retrying): number {
  return Math.min(retrying_since + GIVE_UP_AFTER_MS, created_at + ttl_seconds * 1000)
}

export function expiresAt({ created_at, ttl_seconds }: DueDelivery): number {
  return created_at + Math.max(MIN_LIFE_MS, ttl_seconds * 1000)
}
