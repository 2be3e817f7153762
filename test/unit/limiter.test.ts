import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { test } from 'node:test'
import { type Clock, systemClock } from '../../src/core/clock.ts'
import { type Log, silentLog } from '../../src/core/log.ts'
import { type Charge, createLimiter, type Limiter } from '../../src/limits/limiter.ts'
import { DEFAULT_LIMITS, type TierName } from '../../src/limits/tiers.ts'

const limits = { unauthenticated: 2, authenticated: 3, service: 4 }

async function setup() {
  const time = { now: 1_700_000_000_000 }
  const read = () => time.now
  const clock: Clock = { now: read, calendar: read, elapsed: read, sleep: () => Promise.resolve() }
  return { time, limiter: await createLimiter({ limits, clock, log: silentLog }) }
}

function chargeNow(limiter: Limiter, tier: TierName, key: string): Charge {
  const charge = limiter.charge(tier, key)
  assert.ok(!(charge instanceof Promise), 'expected a charge without a promise')
  return charge
}

test('the limits are the documented ones', () => {
  assert.deepEqual(DEFAULT_LIMITS, { unauthenticated: 100, authenticated: 1_000, service: 10_000 })
})

test('a charge in memory is there at once, and the first request beyond the limit exceeds it', async () => {
  const { time, limiter } = await setup()
  assert.deepEqual(chargeNow(limiter, 'unauthenticated', 'a'), {
    tier: 'unauthenticated',
    limit: 2,
    remaining: 1,
    resetMs: 60_000,
    exceeded: false,
  })
  time.now += 20_000
  assert.deepEqual(chargeNow(limiter, 'unauthenticated', 'a'), {
    tier: 'unauthenticated',
    limit: 2,
    remaining: 0,
    resetMs: 40_000,
    exceeded: false,
  })
  const third = chargeNow(limiter, 'unauthenticated', 'a')
  assert.deepEqual([third.remaining, third.exceeded], [0, true])
  time.now += 40_000
  assert.equal(chargeNow(limiter, 'unauthenticated', 'a').exceeded, false)
  assert.deepEqual(limiter.state(), { store: 'memory', degraded: false })
})

test('the same key in two tiers is two accounts', async () => {
  const { limiter } = await setup()
  for (let i = 0; i < 3; i++) chargeNow(limiter, 'unauthenticated', 'a')
  assert.equal(chargeNow(limiter, 'authenticated', 'a').remaining, 2)
  assert.equal(chargeNow(limiter, 'service', 'a').remaining, 3)
})

test('keys of any length are counted apart', async () => {
  const { limiter } = await setup()
  const long = 'x'.repeat(8_000)
  chargeNow(limiter, 'authenticated', `${long}1`)
  assert.equal(chargeNow(limiter, 'authenticated', `${long}1`).remaining, 1)
  assert.equal(chargeNow(limiter, 'authenticated', `${long}2`).remaining, 2)
})

test('a Redis that was never there is reported once, and requests are counted locally without waiting', async () => {
  const closedPort = createServer().listen(0, '127.0.0.1')
  await once(closedPort, 'listening')
  const { port } = closedPort.address() as AddressInfo
  closedPort.close()
  await once(closedPort, 'close')

  const events: string[] = []
  const lost = Promise.withResolvers<void>()
  const log: Log = {
    ...silentLog,
    warn: (_fields, event) => {
      events.push(event)
      lost.resolve()
    },
  }
  const limiter = await createLimiter({ limits, clock: systemClock, log, redis: { url: `redis://127.0.0.1:${port}` } })
  try {
    assert.equal(chargeNow(limiter, 'unauthenticated', 'a').remaining, 1)
    await lost.promise
    assert.equal(chargeNow(limiter, 'unauthenticated', 'a').remaining, 0)
    assert.equal(chargeNow(limiter, 'unauthenticated', 'a').exceeded, true)
    assert.deepEqual(limiter.state(), { store: 'redis', degraded: true })
    assert.deepEqual(events, ['limiter.redis_lost'])
  } finally {
    limiter.close()
  }
})
