import { createHash } from 'node:crypto'
import type { MaybePromise } from '../core/async/maybe-promise.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { type Random, systemRandom } from '../core/random.ts'
import { MemoryCounter } from './memory-counter.ts'
import type { RedisCounter } from './redis-counter.ts'
import type { RedisTarget } from './redis-target.ts'
import { type Hit, type TierLimits, type TierName, WINDOW_MS } from './tiers.ts'

export interface Charge {
  tier: TierName
  limit: number
  remaining: number
  /** Milliseconds until the window ends; at least 1. */
  resetMs: number
  exceeded: boolean
}

export interface Limiter {
  /** Counts one request. Without Redis, or while it is down, the result is not a promise. */
  charge(tier: TierName, key: string): MaybePromise<Charge>
  state(): LimiterState
  close(): void
}

interface LimiterState {
  store: 'memory' | 'redis'
  /** Redis is configured but unavailable: this node counts alone. */
  degraded: boolean
}

interface LimiterOptions {
  limits: TierLimits
  clock: Clock
  log: Log
  redis?: RedisTarget | undefined
  random?: Random
  /** For tests only: the response headers always state `WINDOW_MS`. */
  windowMs?: number
}

const MAX_KEY_LENGTH = 128

/**
 * Charges each request to one key of one tier. With Redis all nodes count together. While Redis is down or slow, every node
 * counts alone and no request waits for Redis.
 */
export async function createLimiter(options: LimiterOptions): Promise<Limiter> {
  const { limits, clock, log, windowMs = WINDOW_MS, random = systemRandom } = options
  // One counter for each tier: a flood of unknown addresses cannot evict the window of a user or a service account.
  const counterOf = (tier: TierName) => new MemoryCounter({ clock, windowMs, limit: limits[tier] })
  const local: Record<TierName, MemoryCounter> = {
    unauthenticated: counterOf('unauthenticated'),
    authenticated: counterOf('authenticated'),
    service: counterOf('service'),
  }
  const redis = options.redis && (await connectCounter({ ...options.redis, windowMs, random, log }))

  const toCharge = (tier: TierName, { count, resetMs }: Hit): Charge => {
    const limit = limits[tier]
    return {
      tier,
      limit,
      remaining: Math.max(0, limit - count),
      resetMs: Math.max(1, resetMs),
      exceeded: count > limit,
    }
  }
  const chargeShared = async (counter: RedisCounter, tier: TierName, key: string): Promise<Charge> =>
    toCharge(tier, (await counter.hit(`${tier}:${key}`)) ?? local[tier].hit(key))

  return {
    charge: (tier, givenKey) => {
      const key = boundedKey(givenKey)
      return redis?.available ? chargeShared(redis, tier, key) : toCharge(tier, local[tier].hit(key))
    },
    state: () => ({ store: redis ? 'redis' : 'memory', degraded: redis !== undefined && !redis.available }),
    close: () => redis?.close(),
  }
}

async function connectCounter({ log, ...options }: RedisTarget & { windowMs: number; random: Random; log: Log }) {
  const { RedisCounter } = await import('./redis-counter.ts')
  return new RedisCounter({
    ...options,
    onLost: (reason) => log.warn({ reason }, 'limiter.redis_lost'),
    onRecovered: () => log.info({}, 'limiter.redis_recovered'),
  })
}

/** The number of keys is bounded, so their length must be bounded too. */
function boundedKey(key: string): string {
  return key.length <= MAX_KEY_LENGTH ? key : createHash('sha256').update(key).digest('base64url')
}
