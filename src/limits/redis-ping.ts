import { openRedis } from './redis-target.ts'

const TIMEOUT_MS = 2_000

/** Resolves when Redis answers, otherwise rejects with the reason. */
export async function pingRedis(url: string): Promise<void> {
  const redis = openRedis(url, {
    lazyConnect: true,
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
    await redis.ping()
  } catch (error) {
    throw reason ?? error
  } finally {
    redis.disconnect()
  }
}
