import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ManualClock } from '../support/manual-clock.ts'

test('sleeps end in order of their time, each at its own time, also those begun on the way', async () => {
  const clock = new ManualClock(0)
  const woken: string[] = []
  const sleepFor = async (ms: number) => {
    await clock.sleep(ms)
    woken.push(`${ms} at ${clock.now()}`)
  }
  const ended = Promise.all([sleepFor(30), sleepFor(10).then(() => sleepFor(15)), sleepFor(10)])
  await clock.advance(9)
  assert.deepEqual(woken, [])
  await clock.advance(50)
  await ended
  assert.deepEqual(woken, ['10 at 10', '10 at 10', '15 at 25', '30 at 30'])
  assert.equal(clock.now(), 59)
})

test('an aborted sleep ends at once and leaves nothing behind', async () => {
  const clock = new ManualClock(0)
  const stopping = new AbortController()
  const sleeping = clock.sleep(1_000, stopping.signal)
  assert.equal(clock.sleeping, 1)
  stopping.abort()
  await sleeping
  await clock.sleep(1_000, stopping.signal)
  assert.equal(clock.sleeping, 0)
})

test('a test can wait until the code under test sleeps', async () => {
  const clock = new ManualClock(0)
  const waiting = clock.untilSleeping()
  const sleeping = clock.sleep(5)
  await waiting
  await clock.advance(5)
  await sleeping
})
