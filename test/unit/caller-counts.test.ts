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
  assert.deepEqual(counts.top(1), [{ tier: 'service', key: 'a', requests: 3, refused: 2 }])
  await clock.leap(55 * 60_000)
  assert.deepEqual(
    counts.top(5).map(({ key, requests }) => [key, requests]),
    [
      ['a', 1],
      ['b', 1],
    ],
  )
  for (let n = 0; n < 3_000; n++) counts.count(charge(false), `flood-${n}`)
  assert.equal(counts.top(10_000).length, 2_002)
})
