import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startLoop } from '../../src/core/async/loop.ts'
import { ManualClock } from '../support/manual-clock.ts'

const EVERY_MS = 1_000

/** A loop whose rounds end when the test says so. */
function startWatched() {
  const clock = new ManualClock()
  const rounds: { signal: AbortSignal; end: PromiseWithResolvers<void> }[] = []
  const errors: unknown[] = []
  const loop = startLoop({
    clock,
    everyMs: EVERY_MS,
    run: (signal) => {
      const end = Promise.withResolvers<void>()
      rounds.push({ signal, end })
      return end.promise
    },
    onError: (error) => errors.push(error),
  })
  return { clock, loop, rounds, errors }
}

const turn = () => new Promise(setImmediate)

test('a round comes after each pause, and not before', async () => {
  const { clock, loop, rounds } = startWatched()
  await clock.advance(EVERY_MS - 1)
  assert.equal(rounds.length, 0)
  await clock.advance(1)
  assert.equal(rounds.length, 1)
  rounds[0]?.end.resolve()
  await clock.untilSleeping()
  await clock.advance(EVERY_MS)
  assert.equal(rounds.length, 2)
  rounds[1]?.end.resolve()
  await loop.stop()
})

test('rounds never overlap, however long one takes', async () => {
  const { clock, loop, rounds } = startWatched()
  await clock.advance(10 * EVERY_MS)
  loop.wake()
  await turn()
  assert.equal(rounds.length, 1)
  rounds[0]?.end.resolve()
  await turn()
  assert.equal(rounds.length, 2, 'the wake-up that came meanwhile is not lost')
  rounds[1]?.end.resolve()
  await clock.untilSleeping()
  assert.equal(rounds.length, 2, 'and makes one round, not more')
  await loop.stop()
})

test('a wake-up cuts the pause short', async () => {
  const { loop, rounds } = startWatched()
  loop.wake()
  loop.wake()
  await turn()
  assert.equal(rounds.length, 1)
  rounds[0]?.end.resolve()
  await loop.stop()
})

test('a round that fails is reported, and the next one comes', async () => {
  const { clock, loop, rounds, errors } = startWatched()
  await clock.advance(EVERY_MS)
  rounds[0]?.end.reject('trouble')
  await clock.untilSleeping()
  assert.deepEqual(errors, ['trouble'])
  await clock.advance(EVERY_MS)
  assert.equal(rounds.length, 2)
  rounds[1]?.end.resolve()
  await loop.stop()
})

test('a loop that stops aborts the signal of the round in progress, waits for it, and starts no other', async () => {
  const { clock, loop, rounds } = startWatched()
  await clock.advance(EVERY_MS)
  let stopped = false
  const stopping = loop.stop().then(() => {
    stopped = true
  })
  assert.equal(rounds[0]?.signal.aborted, true)
  await turn()
  assert.equal(stopped, false)
  rounds[0]?.end.resolve()
  await stopping
  loop.wake()
  await clock.advance(10 * EVERY_MS)
  assert.equal(rounds.length, 1)
})

test('a loop that stops during a pause ends it at once', async () => {
  const { clock, loop, rounds } = startWatched()
  await clock.untilSleeping()
  await loop.stop()
  assert.equal(clock.sleeping, 0)
  assert.equal(rounds.length, 0)
})
