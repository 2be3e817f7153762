import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backoffMs } from '../../src/core/async/backoff.ts'

const BACKOFF = { baseMs: 100, maxMs: 10_000 }
const always = (fraction: number) => ({ bytes: (count: number) => new Uint8Array(count), fraction: () => fraction })

test('each delay is twice the one before, until the cap', () => {
  const delays = [0, 1, 2, 6, 7, 50, 5_000].map((attempt) => backoffMs(BACKOFF, attempt, always(0)))
  assert.deepEqual(delays, [50, 100, 200, 3_200, 5_000, 5_000, 5_000])
})

test('a delay is spread by chance over its upper half, and never beyond the cap', () => {
  assert.equal(backoffMs(BACKOFF, 3, always(0)), 400)
  assert.equal(backoffMs(BACKOFF, 3, always(0.5)), 600)
  assert.equal(backoffMs(BACKOFF, 3, always(0.9999)), 800)
  assert.equal(backoffMs(BACKOFF, 99, always(0.9999)), 10_000)
})
