import { Redis } from 'ioredis'
import { RateLimiterMemory, RateLimiterRedis } from 'rate-limiter-flexible'
import { systemClock } from '../../../src/core/clock.ts'
import { silentLog } from '../../../src/core/log.ts'
import { systemRandom } from '../../../src/core/random.ts'
import { createLimiter } from '../../../src/limits/limiter.ts'
import { MemoryCounter } from '../../../src/limits/memory-counter.ts'
import { RedisCounter } from '../../../src/limits/redis-counter.ts'
import { WINDOW_MS } from '../../../src/limits/tiers.ts'
import { startRedis } from '../../../test/support/redis.ts'

/**
 * Compares our counters with those of rate-limiter-flexible, in turns within one run, so that a busy machine slows down
 * both equally.
 */
const ROUNDS = 5
const FEW_KEYS = 500
const FEW_KEYS_HITS = 1_000_000
const MANY_KEYS = 1_000_000
const REDIS_HITS = 50_000
const CONCURRENCY = 256
// A limit that is never reached: the library rejects a promise for each refused request, which is not measured here.
const LIMIT = 1_000_000_000
const POINTS = { points: LIMIT, duration: WINDOW_MS / 1_000 }

type Figure = (round: number) => Promise<number>

const print = (line: string) => process.stdout.write(`${line}\n`)
const address = (n: number) => `10.${(n >> 16) & 255}.${(n >> 8) & 255}.${n & 255}`
const fewKeys = Array.from({ length: FEW_KEYS }, (_, n) => address(n))
const manyKeys = Array.from({ length: MANY_KEYS }, (_, n) => address(n))
const ourLimiter = () =>
  createLimiter({
    limits: { unauthenticated: LIMIT, authenticated: LIMIT, service: LIMIT },
    clock: systemClock,
    log: silentLog,
  })

function rate(hits: number, startedMs: number): number {
  return (hits * 1_000) / (performance.now() - startedMs)
}

function collectGarbage(): void {
  if (globalThis.gc === undefined) throw new Error('Run with --expose-gc')
  globalThis.gc()
}

/** The library's windows exist until their timers fire; delete them before the next round. */
async function forget(library: RateLimiterMemory, keys: readonly string[]): Promise<void> {
  for (const key of keys) await library.delete(key)
}

async function hitOurs(keys: readonly string[], hits: number): Promise<number> {
  const limiter = await ourLimiter()
  const started = performance.now()
  for (let n = 0; n < hits; n++) await limiter.charge('unauthenticated', keys[n % keys.length] ?? '')
  return rate(hits, started)
}

/** Our counter returns its result without a promise, and the gate uses it that way. */
async function hitOursNow(keys: readonly string[], hits: number): Promise<number> {
  const limiter = await ourLimiter()
  const started = performance.now()
  for (let n = 0; n < hits; n++) void limiter.charge('unauthenticated', keys[n % keys.length] ?? '')
  return rate(hits, started)
}

/**
 * Evicts nothing, like the library. In the service, our counter keeps 200,000 windows and evicts the oldest one below its
 * limit.
 */
async function hitOursKeepingAll(keys: readonly string[]): Promise<number> {
  const counter = new MemoryCounter({ clock: systemClock, windowMs: WINDOW_MS, limit: LIMIT, capacity: keys.length })
  const started = performance.now()
  for (const key of keys) counter.hit(key)
  return rate(keys.length, started)
}

async function hitLibrary(keys: readonly string[], hits: number): Promise<number> {
  const library = new RateLimiterMemory(POINTS)
  const started = performance.now()
  for (let n = 0; n < hits; n++) await library.consume(keys[n % keys.length] ?? '')
  const result = rate(hits, started)
  await forget(library, keys)
  return result
}

/** Both use unshared keys, so that the memory of the key is measured too. */
async function weighOurs(): Promise<number> {
  collectGarbage()
  const before = process.memoryUsage().heapUsed
  const counter = new MemoryCounter({ clock: systemClock, windowMs: WINDOW_MS, limit: LIMIT, capacity: MANY_KEYS })
  for (let n = 0; n < MANY_KEYS; n++) counter.hit(address(n))
  collectGarbage()
  const bytes = (process.memoryUsage().heapUsed - before) / counter.size
  counter.hit(address(0))
  return bytes
}

async function weighLibrary(): Promise<number> {
  collectGarbage()
  const before = process.memoryUsage().heapUsed
  const library = new RateLimiterMemory(POINTS)
  for (let n = 0; n < MANY_KEYS; n++) await library.consume(address(n))
  collectGarbage()
  const bytes = (process.memoryUsage().heapUsed - before) / MANY_KEYS
  await forget(library, manyKeys)
  return bytes
}

async function hitConcurrently(concurrency: number, hits: number, hit: (key: string) => Promise<unknown>) {
  let next = 0
  const work = async () => {
    while (next < hits) await hit(fewKeys[next++ % FEW_KEYS] ?? '')
  }
  const started = performance.now()
  await Promise.all(Array.from({ length: concurrency }, work))
  return rate(hits, started)
}

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN
}

/** Every contender once per round, in turns; the order is reversed every other round. */
async function measure(unit: string, contenders: Record<string, Figure>): Promise<Record<string, number>> {
  const names = Object.keys(contenders)
  const figures: Record<string, number[]> = Object.fromEntries(names.map((name) => [name, []]))
  for (let round = 0; round < ROUNDS; round++) {
    for (const name of round % 2 === 0 ? names : names.toReversed()) {
      collectGarbage()
      figures[name]?.push((await contenders[name]?.(round)) ?? Number.NaN)
    }
  }
  const medians = Object.fromEntries(names.map((name) => [name, median(figures[name] ?? [])]))
  for (const name of names) print(`${unit} ${name} ${Math.round(medians[name] ?? 0)}`)
  return medians
}

function printRatio(name: string, ours: number | undefined, theirs: number | undefined): void {
  print(`ratio ${name} ${((ours ?? Number.NaN) / (theirs ?? Number.NaN)).toFixed(2)}`)
}

async function benchMemory(): Promise<void> {
  const few = await measure('hits/s', {
    'memory-500-keys-ours': () => hitOursNow(fewKeys, FEW_KEYS_HITS),
    'memory-500-keys-ours-awaited': () => hitOurs(fewKeys, FEW_KEYS_HITS),
    'memory-500-keys-library': () => hitLibrary(fewKeys, FEW_KEYS_HITS),
  })
  const many = await measure('hits/s', {
    'memory-1M-keys-ours': () => hitOursNow(manyKeys, MANY_KEYS),
    'memory-1M-keys-ours-awaited': () => hitOurs(manyKeys, MANY_KEYS),
    'memory-1M-keys-ours-keeping-all': () => hitOursKeepingAll(manyKeys),
    'memory-1M-keys-library': () => hitLibrary(manyKeys, MANY_KEYS),
  })
  const weight = await measure('bytes/key', { 'memory-ours': weighOurs, 'memory-library': weighLibrary })
  printRatio('memory-500-keys', few['memory-500-keys-ours'], few['memory-500-keys-library'])
  printRatio('memory-500-keys-awaited', few['memory-500-keys-ours-awaited'], few['memory-500-keys-library'])
  printRatio('memory-1M-keys', many['memory-1M-keys-ours'], many['memory-1M-keys-library'])
  printRatio('memory-1M-keys-awaited', many['memory-1M-keys-ours-awaited'], many['memory-1M-keys-library'])
  printRatio('memory-1M-keys-keeping-all', many['memory-1M-keys-ours-keeping-all'], many['memory-1M-keys-library'])
  printRatio('memory-bytes-per-key', weight['memory-ours'], weight['memory-library'])
}

async function benchRedis(): Promise<void> {
  const server = await startRedis()
  const ours = new RedisCounter({
    url: server.url,
    windowMs: WINDOW_MS,
    random: systemRandom,
    onLost: (reason) => print(`lost ${reason}`),
    onRecovered: () => {},
  })
  const plainClient = new Redis(server.url)
  const pipeliningClient = new Redis(server.url, { enableAutoPipelining: true })
  const plain = new RateLimiterRedis({ ...POINTS, storeClient: plainClient })
  const pipelining = new RateLimiterRedis({ ...POINTS, storeClient: pipeliningClient })
  try {
    await Promise.all([plainClient.ping(), pipeliningClient.ping()])
    while (!ours.available) await systemClock.sleep(5)
    const hitOne = async (key: string) => {
      if ((await ours.hit(key)) === undefined) throw new Error('Redis was lost during the run')
    }
    for (const [concurrency, hits] of [
      [CONCURRENCY, REDIS_HITS],
      [1, REDIS_HITS / 10],
    ] as const) {
      const figures = await measure('hits/s', {
        [`redis-${concurrency}-concurrent-ours`]: () => hitConcurrently(concurrency, hits, hitOne),
        [`redis-${concurrency}-concurrent-library`]: () =>
          hitConcurrently(concurrency, hits, (key) => plain.consume(key)),
        [`redis-${concurrency}-concurrent-library-auto-pipelining`]: () =>
          hitConcurrently(concurrency, hits, (key) => pipelining.consume(key)),
      })
      const [own, library, pipelined] = Object.values(figures)
      printRatio(`redis-${concurrency}-concurrent`, own, library)
      printRatio(`redis-${concurrency}-concurrent-auto-pipelining`, own, pipelined)
    }
  } finally {
    ours.close()
    plainClient.disconnect()
    pipeliningClient.disconnect()
    await server.stop()
  }
}

await benchMemory()
await benchRedis()
