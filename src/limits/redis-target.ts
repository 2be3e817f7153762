import { Redis, type RedisOptions } from 'ioredis'
import { parseSentinelUrl } from './sentinel-url.ts'

/** Where Redis is, and what the names of its keys and channels begin with. */
export interface RedisTarget {
  /** `redis://…`, or `redis+sentinel://…` with the addresses of Sentinels. */
  url: string
  prefix?: string
}

/** Connects to the server of the URL, or to the master that the Sentinels name, now and after each failover. */
export function openRedis(url: string, options: Omit<RedisOptions, 'replyMapping'>): Redis {
  const sentinel = parseSentinelUrl(url)
  if (sentinel === null) return new Redis(url, options)
  const { retryStrategy } = options
  return new Redis({
    ...options,
    ...sentinel,
    // All Sentinels were asked and none answered: the same pauses as for a server.
    ...(retryStrategy && { sentinelRetryStrategy: retryStrategy }),
    sentinelCommandTimeout: options.commandTimeout ?? 1_000,
    ...(url.startsWith('rediss') ? { tls: {}, enableTLSForSentinelMode: true } : {}),
  })
}
