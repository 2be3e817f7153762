import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import { after, before, test } from 'node:test'
import { setTimeout as pause } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { systemClock } from '../../src/core/clock.ts'
import type { Log } from '../../src/core/log.ts'
import { type Charge, createLimiter, type Limiter } from '../../src/limits/limiter.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { type RedisServer, startRedis } from '../support/redis.ts'

const limits = { unauthenticated: 100, authenticated: 1_000, service: 10_000 }
/** Node's test runner fails a test on an unhandled rejection, so each of these also shows that there is none. */
const TIMEOUT = { timeout: PATIENCE_MS }

let server: RedisServer

before(async () => {
  server = await startRedis()
})
after(() => server.stop())

interface Node {
  limiter: Limiter
  events: string[]
  /** The reason each time that Redis was reported lost. */
  reasons: unknown[]
  /** The next time this is logged. */
  logged(event: string): Promise<unknown>
}

async function startNode({
  windowMs = 60_000,
  prefix = '',
}: {
  windowMs?: number
  prefix?: string
} = {}): Promise<Node> {
  const events: string[] = []
  const reasons: unknown[] = []
  const emitter = new EventEmitter()
  const record = (fields: object, event: string) => {
    events.push(event)
    if ('reason' in fields) reasons.push(fields.reason)
    emitter.emit(event)
  }
  const log: Log = { debug: record, info: record, warn: record, error: record }
  const limiter = await createLimiter({ limits, windowMs, clock: systemClock, log, redis: { url: server.url, prefix } })
  return { limiter, events, reasons, logged: (event) => once(emitter, event) }
}

/** A node that counts in Redis; the server is running. */
async function connectNode(options?: { windowMs?: number; prefix?: string }): Promise<Node> {
  const node = await startNode(options)
  await until(() => !node.limiter.state().degraded)
  return node
}

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await pause(2)
}

function isCountedLocally(charge: Charge | Promise<Charge>): boolean {
  return !(charge instanceof Promise)
}

test('services with different prefixes share a Redis and no counter', TIMEOUT, async () => {
  const nodes = [await connectNode({ prefix: 'one:' }), await connectNode({ prefix: 'two:' })]
  try {
    for (const { limiter } of nodes) assert.equal((await limiter.charge('service', 'prefixed')).remaining, 9_999)
  } finally {
    for (const { limiter } of nodes) limiter.close()
  }
})

test('two nodes with 2,000 concurrent hits on one key count each of them exactly once', TIMEOUT, async () => {
  const nodes = [await connectNode(), await connectNode()]
  try {
    const charges = await Promise.all(
      Array.from({ length: 2_000 }, (_, n) => nodes[n % 2]?.limiter.charge('service', 'exact')),
    )
    const remaining = charges.map((charge) => charge?.remaining ?? Number.NaN).sort((a, b) => b - a)
    assert.deepEqual(
      remaining,
      Array.from({ length: 2_000 }, (_, n) => 9_999 - n),
    )
  } finally {
    for (const { limiter } of nodes) limiter.close()
  }
})

test('the first request beyond the limit is refused on whichever node it arrives', TIMEOUT, async () => {
  const [one, two] = [await connectNode(), await connectNode()]
  try {
    await Promise.all(Array.from({ length: 100 }, () => one.limiter.charge('unauthenticated', '203.0.113.9')))
    const refused = await two.limiter.charge('unauthenticated', '203.0.113.9')
    assert.deepEqual([refused.exceeded, refused.remaining], [true, 0])
    const otherTier = await two.limiter.charge('authenticated', '203.0.113.9')
    assert.deepEqual([otherTier.exceeded, otherTier.remaining], [false, 999])
  } finally {
    one.limiter.close()
    two.limiter.close()
  }
})

test(
  'a window ends by itself, in milliseconds from the first request, and is not prolonged by later ones',
  TIMEOUT,
  async () => {
    const { limiter } = await connectNode({ windowMs: 300 })
    try {
      let previous = await limiter.charge('authenticated', 'window')
      assert.deepEqual([previous.remaining, previous.resetMs], [999, 300])
      await until(async () => {
        const charge = await limiter.charge('authenticated', 'window')
        if (charge.remaining === 999) return true
        assert.equal(charge.remaining, previous.remaining - 1)
        assert.ok(charge.resetMs <= previous.resetMs)
        previous = charge
        return false
      })
    } finally {
      limiter.close()
    }
  },
)

test('a key without expiry gets a new one instead of blocking its caller', TIMEOUT, async () => {
  const { limiter } = await connectNode()
  const redis = new Redis(server.url)
  try {
    await limiter.charge('authenticated', 'persisted')
    const [key = ''] = await redis.keys('rl:*authenticated:persisted')
    assert.equal(await redis.persist(key), 1)
    const charge = await limiter.charge('authenticated', 'persisted')
    assert.deepEqual([charge.remaining, charge.resetMs], [998, 60_000])
    assert.ok((await redis.pttl(key)) > 0)
  } finally {
    redis.disconnect()
    limiter.close()
  }
})

test('a server that lost the script gets it again, and no hit is lost', TIMEOUT, async () => {
  const { limiter, events } = await connectNode()
  const redis = new Redis(server.url)
  try {
    await limiter.charge('authenticated', 'forgotten')
    await redis.script('FLUSH')
    assert.equal((await limiter.charge('authenticated', 'forgotten')).remaining, 998)
    assert.deepEqual(events, [])
  } finally {
    redis.disconnect()
    limiter.close()
  }
})

test(
  'every request is counted locally and at once while Redis is killed; the outage and its end are each reported once',
  TIMEOUT,
  async () => {
    const { limiter, events, logged } = await connectNode()
    try {
      await limiter.charge('unauthenticated', 'killed')
      const lost = logged('limiter.redis_lost')
      await Promise.all([server.kill(), lost])
      assert.deepEqual(limiter.state(), { store: 'redis', degraded: true })
      for (let count = 1; count <= 101; count++) {
        const charge = limiter.charge('unauthenticated', 'killed')
        assert.ok(isCountedLocally(charge))
        assert.equal((await charge).exceeded, count > 100)
      }
      const recovered = logged('limiter.redis_recovered')
      await server.restart()
      await recovered
      assert.deepEqual(limiter.state(), { store: 'redis', degraded: false })
      assert.equal((await limiter.charge('unauthenticated', 'killed')).remaining, 99)
      assert.deepEqual(events, ['limiter.redis_lost', 'limiter.redis_recovered'])
    } finally {
      limiter.close()
    }
  },
)

test('hits in flight when Redis dies are counted locally, none is refused and none hangs', TIMEOUT, async () => {
  const { limiter, logged, events } = await connectNode()
  try {
    const lost = logged('limiter.redis_lost')
    server.pause()
    const inFlight = Array.from({ length: 600 }, () => limiter.charge('authenticated', 'in-flight'))
    await server.kill()
    const charges = await Promise.all(inFlight)
    await lost
    // The hits travel in three batches, which may fail in any order.
    assert.deepEqual(
      charges.map((charge) => charge.remaining).sort((a, b) => b - a),
      Array.from({ length: 600 }, (_, n) => 999 - n),
    )
    assert.deepEqual(events, ['limiter.redis_lost'])
  } finally {
    limiter.close()
    await server.restart()
  }
})

test(
  'a Redis that hangs delays only the requests already sent; the next ones are counted locally until it is back',
  TIMEOUT,
  async () => {
    const { limiter, events, reasons, logged } = await connectNode()
    try {
      const before = await limiter.charge('authenticated', 'hanging')
      assert.equal(before.remaining, 999)
      server.pause()
      const waiting = limiter.charge('authenticated', 'hanging')
      assert.ok(!isCountedLocally(waiting))
      // Resolves although the server never answers: only the time limit of the hit can do that.
      assert.equal((await waiting).remaining, 999)
      assert.deepEqual(events, ['limiter.redis_lost'])
      assert.deepEqual(reasons, ['no reply within 250 ms'])
      const next = limiter.charge('authenticated', 'hanging')
      assert.ok(isCountedLocally(next))
      assert.equal((await next).remaining, 998)
      const recovered = logged('limiter.redis_recovered')
      server.resume()
      await recovered
      assert.ok(!isCountedLocally(limiter.charge('authenticated', 'hanging')))
      assert.deepEqual(events, ['limiter.redis_lost', 'limiter.redis_recovered'])
    } finally {
      server.resume()
      limiter.close()
    }
  },
)

test('a Redis that answers but cannot write counts as lost, and the state does not flap', TIMEOUT, async () => {
  const { limiter, events, logged } = await connectNode()
  const redis = new Redis(server.url)
  try {
    const lost = logged('limiter.redis_lost')
    await redis.replicaof('127.0.0.1', 1)
    assert.equal((await limiter.charge('authenticated', 'read-only')).remaining, 999)
    await lost
    const connections = async () => Number(/total_connections_received:(\d+)/.exec(await redis.info('stats'))?.[1])
    const seen = await connections()
    await until(async () => (await connections()) >= seen + 3)
    assert.deepEqual(events, ['limiter.redis_lost'])
    assert.equal(limiter.state().degraded, true)
    const recovered = logged('limiter.redis_recovered')
    await redis.replicaof('NO', 'ONE')
    await recovered
    assert.deepEqual(events, ['limiter.redis_lost', 'limiter.redis_recovered'])
  } finally {
    redis.disconnect()
    limiter.close()
  }
})

test(
  'a node that starts before Redis counts in memory, and uses Redis as soon as it is available',
  TIMEOUT,
  async () => {
    await server.kill()
    const { limiter, events, logged } = await startNode()
    try {
      await logged('limiter.redis_lost')
      assert.ok(isCountedLocally(limiter.charge('service', 'early')))
      const recovered = logged('limiter.redis_recovered')
      await server.restart()
      await recovered
      assert.equal((await limiter.charge('service', 'early')).remaining, 9_999)
      assert.deepEqual(events, ['limiter.redis_lost', 'limiter.redis_recovered'])
    } finally {
      limiter.close()
    }
  },
)
