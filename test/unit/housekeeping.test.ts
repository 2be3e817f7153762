import assert from 'node:assert/strict'
import { test } from 'node:test'
import { silentLog } from '../../src/core/log.ts'
import { startHousekeeping, trimInBatches } from '../../src/ops/housekeeping.ts'
import { ManualClock } from '../support/manual-clock.ts'

const EVERY_MS = 10 * 60_000

test('a task that fails is named in the log, and does not stop the next one', async () => {
  const clock = new ManualClock()
  const trimmed: string[] = []
  const warnings: object[] = []
  const failure = new Error('no such table')
  const loop = startHousekeeping(
    [
      { name: 'broken', trim: async () => Promise.reject(failure) },
      { name: 'events', trim: async (_signal, nowMs) => void trimmed.push(`events before ${nowMs}`) },
    ],
    { clock, log: { ...silentLog, warn: (fields, event) => warnings.push({ event, ...fields }) } },
  )
  await clock.leap(EVERY_MS)
  assert.deepEqual(trimmed, [`events before ${clock.now()}`])
  assert.deepEqual(warnings, [{ event: 'housekeeping.failed', err: failure, task: 'broken' }])
  await loop.stop()
})

test('the first round comes within a minute of the start, the next one ten minutes later', async () => {
  const clock = new ManualClock()
  let rounds = 0
  const count = async () => {
    rounds += 1
  }
  const loop = startHousekeeping([{ name: 'events', trim: count }], { clock, log: silentLog })
  await clock.advance(60_000)
  assert.equal(rounds, 1)
  await clock.advance(EVERY_MS - 60_000)
  assert.equal(rounds, 1)
  await clock.advance(60_000)
  assert.equal(rounds, 2)
  await loop.stop()
})

test('batches are deleted until none is left, or until the service stops', async () => {
  const batches = [true, true, false, true]
  await trimInBatches(new AbortController().signal, async () => batches.shift() ?? false)
  assert.deepEqual(batches, [true])

  const stopping = new AbortController()
  let deleted = 0
  await trimInBatches(stopping.signal, async () => {
    deleted += 1
    if (deleted === 2) stopping.abort()
    return true
  })
  assert.equal(deleted, 2)
})
