import { HIT_SCRIPT, KEY_PREFIX } from './redis-counter.ts'
import { openRedis, type RedisTarget } from './redis-target.ts'

const TIMEOUT_MS = 2_000

/** Resolves when Redis does all that the service asks of it: count a hit, and subscribe to the channel. */
export async function probeRedis({ url, prefix = '', channel }: RedisTarget & { channel: string }): Promise<void> {
  const redis = openRedis(url, {
    lazyConnect: true,
    enableReadyCheck: false,
    connectTimeout: TIMEOUT_MS,
    commandTimeout: TIMEOUT_MS,
    maxRetriesPerRequest: 0,
    retryStrategy: () => null,
  })
  let reason: Error | undefined
  redis.on('error', (error) => {
    reason = error
  })
  try {
    await redis.connect()
    // The driver ignores a database that Redis refuses.
    if (redis.options.db) await redis.select(redis.options.db)
    await redis.eval(HIT_SCRIPT, 1, `${prefix}${KEY_PREFIX}probe`, TIMEOUT_MS)
    await redis.subscribe(channel)
  } catch (error) {
    throw reason ?? error
  } finally {
    redis.disconnect()
  }
}
