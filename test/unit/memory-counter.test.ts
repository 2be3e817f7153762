import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Clock } from '../../src/core/clock.ts'
import { MemoryCounter } from '../../src/limits/memory-counter.ts'

const WINDOW_MS = 60_000

function setup({ limit = 3, capacity = 10 }: { limit?: number; capacity?: number } = {}) {
  const time = { now: 1_700_000_000_000 }
  const read = () => time.now
  const clock: Clock = { now: read, calendar: read, elapsed: read, sleep: () => Promise.resolve() }
  return { time, counter: new MemoryCounter({ clock, windowMs: WINDOW_MS, limit, capacity }) }
}

test('a window runs from the first request of its key, not from the minute and not from the last request', () => {
  const { time, counter } = setup()
  assert.deepEqual(counter.hit('a'), { count: 1, resetMs: 60_000 })
  time.now += 59_999
  assert.deepEqual(counter.hit('a'), { count: 2, resetMs: 1 })
  assert.deepEqual(counter.hit('b'), { count: 1, resetMs: 60_000 })
  time.now += 1
  assert.deepEqual(counter.hit('a'), { count: 1, resetMs: 60_000 })
  assert.deepEqual(counter.hit('b'), { count: 2, resetMs: 59_999 })
})

test('requests beyond the limit are counted too and do not prolong the window', () => {
  const { time, counter } = setup({ limit: 2 })
  for (let i = 0; i < 5; i++) counter.hit('a')
  time.now += 30_000
  assert.deepEqual(counter.hit('a'), { count: 6, resetMs: 30_000 })
  time.now += 30_000
  assert.equal(counter.hit('a').count, 1)
})

test('expired windows make room before any live one does', () => {
  const { time, counter } = setup({ capacity: 4 })
  counter.hit('old-1')
  counter.hit('old-2')
  time.now += WINDOW_MS - 1
  counter.hit('live-1')
  counter.hit('live-2')
  time.now += 1
  counter.hit('new-1')
  counter.hit('new-2')
  assert.equal(counter.size, 4)
  assert.equal(counter.hit('live-1').count, 2)
  assert.equal(counter.hit('live-2').count, 2)
})

test('many expired windows are removed even if few new keys arrive', () => {
  const { time, counter } = setup({ capacity: 1_000 })
  for (let i = 0; i < 1_000; i++) counter.hit(`crowd-${i}`)
  time.now += WINDOW_MS
  for (let i = 0; i < 500; i++) counter.hit(`new-${i}`)
  assert.equal(counter.size, 500)
})

test('a client that rotates through keys neither grows the memory nor resets a spent key', () => {
  const { counter } = setup({ limit: 3, capacity: 100 })
  for (let i = 0; i < 3; i++) counter.hit('spent')
  for (let i = 0; i < 10_000; i++) {
    assert.equal(counter.hit(`rotating-${i}`).count, 1)
    assert.ok(counter.size <= 100)
  }
  assert.equal(counter.hit('spent').count, 4)
})

test('a key that becomes spent among rotating ones is kept from then on, wherever it stands', () => {
  const { counter } = setup({ limit: 3, capacity: 10 })
  for (let round = 0; round < 20; round++) {
    for (let i = 0; i < 4; i++) counter.hit(`rotating-${round}-${i}`)
    if (round < 5) for (let i = 0; i < 3; i++) counter.hit(`spent-${round}`)
  }
  for (let round = 0; round < 5; round++) assert.equal(counter.hit(`spent-${round}`).count, 4)
  assert.equal(counter.size, 10)
})

test('newcomers share one limit when every window is spent, until a window ends', () => {
  const { time, counter } = setup({ limit: 2, capacity: 3 })
  for (const key of ['a', 'b', 'c']) {
    counter.hit(key)
    counter.hit(key)
  }
  assert.deepEqual(counter.hit('d'), { count: 1, resetMs: 60_000 })
  assert.equal(counter.hit('e').count, 2)
  assert.equal(counter.hit('f').count, 3)
  assert.equal(counter.hit('a').count, 3)
  assert.equal(counter.size, 3)
  time.now += WINDOW_MS
  assert.equal(counter.hit('d').count, 1)
  assert.equal(counter.hit('e').count, 1)
})

test('a clock that is set back does not keep a spent key out for longer than a window', () => {
  const { time, counter } = setup({ limit: 1 })
  counter.hit('a')
  assert.equal(counter.hit('a').count, 2)
  time.now -= 3_600_000
  assert.deepEqual(counter.hit('a'), { count: 1, resetMs: 60_000 })
})

test('counts stay those of a plain model over a long random history that never fills the capacity', () => {
  const { time, counter } = setup({ limit: 5, capacity: 1_000 })
  const model = new Map<string, { count: number; endsAtMs: number }>()
  let seed = 42
  const random = (below: number) => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648
    return Math.floor((seed / 2_147_483_648) * below)
  }
  for (let step = 0; step < 50_000; step++) {
    time.now += random(40)
    const key = `key-${random(900)}`
    let expected = model.get(key)
    if (expected === undefined || expected.endsAtMs <= time.now) {
      expected = { count: 0, endsAtMs: time.now + WINDOW_MS }
      model.set(key, expected)
    }
    expected.count += 1
    assert.deepEqual(counter.hit(key), { count: expected.count, resetMs: expected.endsAtMs - time.now })
  }
})

test('no spent key is lost under churn at full capacity, and the size is never exceeded', () => {
  const { time, counter } = setup({ limit: 4, capacity: 50 })
  const spentUntil = new Map<string, number>()
  let seed = 7
  const random = (below: number) => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648
    return Math.floor((seed / 2_147_483_648) * below)
  }
  for (let step = 0; step < 50_000; step++) {
    time.now += random(200)
    const key = random(3) === 0 ? `regular-${random(30)}` : `passing-${step}`
    const { count, resetMs } = counter.hit(key)
    assert.ok(counter.size <= 50)
    if ((spentUntil.get(key) ?? 0) > time.now) assert.ok(count > 4, `${key} was reset`)
    else if (count === 4) spentUntil.set(key, time.now + resetMs)
  }
  assert.ok(spentUntil.size > 0)
})
