import assert from 'node:assert/strict'
import { test } from 'node:test'
import { systemClock, toRfc3339 } from '../../src/core/clock.ts'

test('a time is spelt as toISOString spells it, on both sides of every boundary', () => {
  const dayMs = 86_400_000
  const edges = [0, 1, 999, 1_000, 59_999, 60_000, 3_599_999, 3_600_000, dayMs - 1, dayMs, Date.UTC(2024, 1, 29)]
  for (const at of [...edges, Date.UTC(2026, 11, 31, 23, 59, 59, 999), Date.UTC(9999, 11, 31), -1, -dayMs - 1]) {
    assert.equal(toRfc3339(at), new Date(at).toISOString())
  }
})

test('thousands of days are spelt right, more than are remembered', () => {
  for (let day = 0; day < 3_000; day++) {
    const at = Date.UTC(2020, 0, 1) + day * 86_400_000 + day * 7_919
    assert.equal(toRfc3339(at), new Date(at).toISOString())
  }
})

test('a sleep ends at once when its signal aborts, before or during it', async () => {
  const hourMs = 3_600_000
  await systemClock.sleep(hourMs, AbortSignal.abort())
  const waking = new AbortController()
  const sleeping = systemClock.sleep(hourMs, waking.signal)
  waking.abort()
  await sleeping
})
