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

/**
 * What is measured while no node loses Redis. Redis has 250 ms for a reply: on a busy machine one may come later, and its
 * hits are then counted locally. So this measures again, with another key, at most five times.
 */
async function undisturbed<Value>(
  nodes: readonly Node[],
  measure: (key: string) => Value | Promise<Value>,
): Promise<Awaited<Value>> {
  const losses = () => nodes.flatMap(({ events }) => events).filter((event) => event === 'limiter.redis_lost').length
  for (let left = 5; ; left--) {
    await until(() => nodes.every(({ limiter }) => !limiter.state().degraded))
    const before = losses()
    const measured = await measure(`key-${++keys}`)
    if (losses() === before) return measured
    assert.ok(left > 1, 'Redis was lost each time')
  }
}

let keys = 0

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
    const charges = await undisturbed(nodes, (key) =>
      Promise.all(Array.from({ length: 2_000 }, (_, n) => nodes[n % 2]?.limiter.charge('service', key))),
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
    const [refused, otherTier] = await undisturbed([one, two], async (key) => {
      await Promise.all(Array.from({ length: 100 }, () => one.limiter.charge('unauthenticated', key)))
      return [await two.limiter.charge('unauthenticated', key), await two.limiter.charge('authenticated', key)] as const
    })
    assert.deepEqual([refused.exceeded, refused.remaining], [true, 0])
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
    const node = await connectNode({ windowMs: 300 })
    const { limiter } = node
    try {
      const [first, ...rest] = await undisturbed([node], async (key) => {
        const charges = [await limiter.charge('authenticated', key)]
        await until(async () => {
          const charge = await limiter.charge('authenticated', key)
          if (charge.remaining < 999) charges.push(charge)
          return charge.remaining === 999
        })
        return charges
      })
      assert.deepEqual([first?.remaining, first?.resetMs], [999, 300])
      let previous = first
      for (const charge of rest) {
        assert.equal(charge.remaining, (previous?.remaining ?? 0) - 1)
        assert.ok(charge.resetMs <= (previous?.resetMs ?? 0))
        previous = charge
      }
    } finally {
      limiter.close()
    }
  },
)

test('a key without expiry gets a new one instead of blocking its caller', TIMEOUT, async () => {
  const node = await connectNode()
  const { limiter } = node
  const redis = new Redis(server.url)
  try {
    const { persisted, charge, leftMs } = await undisturbed([node], async (key) => {
      await limiter.charge('authenticated', key)
      const [name = ''] = await redis.keys(`rl:*authenticated:${key}`)
      const persisted = await redis.persist(name)
      return { persisted, charge: await limiter.charge('authenticated', key), leftMs: await redis.pttl(name) }
    })
    assert.equal(persisted, 1)
    assert.deepEqual([charge.remaining, charge.resetMs], [998, 60_000])
    assert.ok(leftMs > 0)
  } finally {
    redis.disconnect()
    limiter.close()
  }
})

test('a server that lost the script gets it again, and no hit is lost', TIMEOUT, async () => {
  const node = await connectNode()
  const { limiter } = node
  const redis = new Redis(server.url)
  try {
    // If the missing script counted as a loss, no repeat would be without one.
    const charge = await undisturbed([node], async (key) => {
      await limiter.charge('authenticated', key)
      await redis.script('FLUSH')
      return limiter.charge('authenticated', key)
    })
    assert.equal(charge.remaining, 998)
    const others = node.events.filter((event) => !/^limiter\.redis_(lost|recovered)$/.test(event))
    assert.deepEqual(others, [])
  } finally {
    redis.disconnect()
    limiter.close()
  }
})

test(
  'every request is counted locally and at once while Redis is killed; the outage and its end are each reported once',
  TIMEOUT,
  async () => {
    const node = await connectNode()
    const { limiter, events, logged } = node
    try {
      await undisturbed([node], (key) => limiter.charge('unauthenticated', key))
      events.length = 0
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
      assert.deepEqual(events, ['limiter.redis_lost', 'limiter.redis_recovered'])
      const [charge, isLocal] = await undisturbed([node], async (key) => {
        const charging = limiter.charge('unauthenticated', key)
        return [await charging, isCountedLocally(charging)] as const
      })
      assert.deepEqual([charge.remaining, isLocal], [99, false])
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
    const node = await connectNode()
    const { limiter, events, reasons, logged } = node
    try {
      const before = await undisturbed([node], (key) => limiter.charge('authenticated', key))
      assert.equal(before.remaining, 999)
      events.length = 0
      reasons.length = 0
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
    const node = await startNode()
    const { limiter, events, logged } = node
    try {
      await logged('limiter.redis_lost')
      assert.ok(isCountedLocally(limiter.charge('service', 'early')))
      const recovered = logged('limiter.redis_recovered')
      await server.restart()
      await recovered
      assert.deepEqual(events, ['limiter.redis_lost', 'limiter.redis_recovered'])
      const charge = await undisturbed([node], (key) => {
        const shared = limiter.charge('service', key)
        assert.ok(!isCountedLocally(shared))
        return shared
      })
      assert.equal(charge.remaining, 9_999)
    } finally {
      limiter.close()
    }
  },
)
