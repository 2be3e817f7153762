import { createHash } from 'node:crypto'
import type { Redis } from 'ioredis'
import { backoffMs } from '../core/async/backoff.ts'
import { reasonOf } from '../core/errors.ts'
import type { Random } from '../core/random.ts'
import { openRedis, type RedisTarget } from './redis-target.ts'
import type { Hit } from './tiers.ts'

interface RedisCounterOptions extends RedisTarget {
  windowMs: number
  random: Random
  /** Called once when Redis becomes unavailable: the connection or a reply failed, or the first connection failed. */
  onLost: (reason: string) => void
  /** Called once when Redis is available again. */
  onRecovered: () => void
}

interface Waiter {
  key: string
  resolve: (hit: Hit | undefined) => void
}

// The braces keep all keys in one slot, so that a batch is also accepted by a server in cluster mode with a single shard.
export const KEY_PREFIX = 'rl:{hits}:'
const HIT_TIMEOUT_MS = 250
const CONNECT_TIMEOUT_MS = 1_000
const RECONNECT = { baseMs: 50, maxMs: 2_000 }
/** Redis runs nothing else during a script: a full batch takes well under a millisecond. */
const MAX_BATCH = 256

// A key without expiry (after a manual PERSIST) would block its caller for ever, so the script sets the expiry again.
export const HIT_SCRIPT = `
local replies = {}
for i, key in ipairs(KEYS) do
  local count = redis.call('INCR', key)
  local resetMs = count > 1 and redis.call('PTTL', key) or -1
  if resetMs < 0 then
    redis.call('PEXPIRE', key, ARGV[1])
    resetMs = tonumber(ARGV[1])
  end
  replies[2 * i - 1] = count
  replies[2 * i] = resetMs
end
return replies`
const HIT_SCRIPT_SHA = createHash('sha1').update(HIT_SCRIPT).digest('hex')

/**
 * Counts requests per key in Redis, exactly across nodes. All hits of one turn of the event loop share one script call.
 * It never rejects: a hit that could not be counted in time is `undefined`. From then on `available` is false until a
 * connection has counted a probe.
 */
export class RedisCounter {
  readonly #options: RedisCounterOptions
  readonly #redis: Redis
  #waiters: Waiter[] = []
  #available = false
  #lost = false
  #leaving = false
  #closed = false
  #failures = 0
  #lastError = 'connection closed'

  constructor(options: RedisCounterOptions) {
    this.#options = options
    this.#redis = openRedis(options.url, {
      // Commands are neither queued nor retried: a hit without a reply is counted locally.
      enableOfflineQueue: false,
      autoResendUnfulfilledCommands: false,
      maxRetriesPerRequest: 0,
      // Our probe replaces the INFO check: it also fails on a read-only replica or when the memory is full.
      enableReadyCheck: false,
      disableClientInfo: true,
      connectTimeout: CONNECT_TIMEOUT_MS,
      // Bounds the handshake; hits have a shorter timeout of their own.
      commandTimeout: CONNECT_TIMEOUT_MS,
      retryStrategy: () => backoffMs(RECONNECT, this.#failures++, options.random),
    })
    this.#redis.on('error', (error) => {
      this.#lastError = reasonOf(error)
    })
    this.#redis.on('ready', () => void this.#probe())
    this.#redis.on('close', () => {
      this.#leaving = false
      this.#markLost(this.#lastError)
    })
  }

  get available(): boolean {
    return this.#available
  }

  hit(key: string): Promise<Hit | undefined> {
    return new Promise((resolve) => {
      // Flush after the I/O of this turn, so that all its requests are sent in one batch.
      if (this.#waiters.push({ key: this.#keyOf(key), resolve }) === 1) setImmediate(() => this.#flush())
    })
  }

  close(): void {
    this.#closed = true
    this.#available = false
    this.#redis.disconnect()
  }

  #keyOf(key: string): string {
    return `${this.#options.prefix ?? ''}${KEY_PREFIX}${key}`
  }

  #flush(): void {
    const waiters = this.#waiters
    this.#waiters = []
    for (let at = 0; at < waiters.length; at += MAX_BATCH) void this.#count(waiters.slice(at, at + MAX_BATCH))
  }

  async #count(batch: Waiter[]): Promise<void> {
    const replies = this.#available ? await this.#run(batch.map((waiter) => waiter.key)) : undefined
    batch.forEach(({ resolve }, index) => {
      const count = replies?.[2 * index]
      const resetMs = replies?.[2 * index + 1]
      resolve(count === undefined || resetMs === undefined ? undefined : { count, resetMs })
    })
  }

  async #run(keys: string[]): Promise<number[] | undefined> {
    try {
      return (await withTimeout(this.#evaluate(keys))) as number[]
    } catch (error) {
      this.#giveUp(reasonOf(error))
      return undefined
    }
  }

  async #evaluate(keys: string[]): Promise<unknown> {
    try {
      return await this.#redis.evalsha(HIT_SCRIPT_SHA, keys.length, ...keys, this.#options.windowMs)
    } catch (error) {
      if (!reasonOf(error).startsWith('NOSCRIPT')) throw error
      return await this.#redis.eval(HIT_SCRIPT, keys.length, ...keys, this.#options.windowMs)
    }
  }

  async #probe(): Promise<void> {
    if (!(await this.#selectDatabase())) return
    if ((await this.#run([this.#keyOf('probe')])) === undefined || this.#closed) return
    this.#available = true
    this.#failures = 0
    if (!this.#lost) return
    this.#lost = false
    this.#options.onRecovered()
  }

  /** The driver ignores a database that Redis refuses, and would count in database 0. */
  async #selectDatabase(): Promise<boolean> {
    const { db } = this.#redis.options
    try {
      if (db) await withTimeout(this.#redis.select(db))
      return true
    } catch (error) {
      this.#giveUp(reasonOf(error))
      return false
    }
  }

  /** Replaces a connection that did not answer. Redis counts as recovered when the new one answers. */
  #giveUp(reason: string): void {
    this.#markLost(reason)
    if (this.#leaving || this.#redis.status !== 'ready') return
    this.#leaving = true
    this.#redis.disconnect(true)
  }

  #markLost(reason: string): void {
    this.#available = false
    if (this.#lost || this.#closed) return
    this.#lost = true
    this.#options.onLost(reason)
  }
}

/**
 * Timers run before I/O. After a long pause of this process the reply may already be in the socket, so wait one more turn
 * to read it.
 */
function withTimeout<T>(work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const expire = () => reject(new Error(`no reply within ${HIT_TIMEOUT_MS} ms`))
    const timer = setTimeout(() => setImmediate(expire), HIT_TIMEOUT_MS)
    work.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}
