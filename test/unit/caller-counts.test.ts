import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CallerCounts } from '../../src/limits/caller-counts.ts'
import type { Charge } from '../../src/limits/limiter.ts'
import { ManualClock } from '../support/manual-clock.ts'

const charge = (exceeded: boolean): Charge => ({ tier: 'service', limit: 1, remaining: 0, resetMs: 1, exceeded })

test('callers are counted over the last hour, with their refused requests, and their number is bounded', async () => {
  const clock = new ManualClock()
  const counts = new CallerCounts(clock)
  for (const exceeded of [false, true]) counts.count(charge(exceeded), 'a')
  await clock.leap(10 * 60_000)
  counts.count(charge(true), 'a')
  counts.count(charge(false), 'b')
  assert.deepEqual(counts.top(1), {
    callers: [{ tier: 'service', key: 'a', requests: 3, refused: 2 }],
    isCut: false,
  })
  await clock.leap(55 * 60_000)
  assert.deepEqual(
    counts.top(5).callers.map(({ key, requests }) => [key, requests]),
    [
      ['a', 1],
      ['b', 1],
    ],
  )
  assert.equal(counts.top(5).isCut, false)
  for (let n = 0; n < 9_000; n++) counts.count(charge(false), `flood-${n}`)
  assert.ok(counts.top(10_000).callers.length <= 2_002)
})

test('a flood of addresses does not hide a caller who begins later and sends more', async () => {
  const clock = new ManualClock()
  const counts = new CallerCounts(clock)
  for (let n = 0; n < 20_000; n++) {
    counts.count(charge(false), `address-${n}`)
    if (n > 5_000 && n % 100 === 0) counts.count(charge(true), 'flooder')
  }
  const { callers, isCut } = counts.top(1)
  assert.deepEqual([callers[0]?.key, isCut], ['flooder', true])
  assert.ok((callers[0]?.requests ?? 0) > 100)
  await clock.leap(65 * 60_000)
  assert.deepEqual(counts.top(1), { callers: [], isCut: false })
})
