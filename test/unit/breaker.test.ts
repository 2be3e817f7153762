import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import { ManualClock } from '../support/manual-clock.ts'

function breaker() {
  const clock = new ManualClock()
  const made = new Breaker({ clock, threshold: 3, openMs: 1_000, maxOpenMs: 4_000 })
  const fail = (times: number) => {
    for (let n = 0; n < times; n++) {
      assert.equal(made.admit(), true)
      made.failed()
    }
  }
  return { clock, breaker: made, fail }
}

describe('the breaker', () => {
  test('the breaker lets everything through while calls succeed, and counts only failures in a row', () => {
    const { breaker: it, fail } = breaker()
    for (let n = 0; n < 10; n++) {
      fail(2)
      assert.equal(it.admit(), true)
      it.succeeded()
    }
    assert.equal(it.state, 'closed')
  })

  test('the breaker opens at the threshold, and lets nothing through until its pause is over', async () => {
    const { breaker: it, clock, fail } = breaker()
    fail(3)
    assert.equal(it.state, 'open')
    assert.equal(it.admit(), false)
    await clock.advance(999)
    assert.equal(it.admit(), false)
    await clock.advance(1)
    assert.equal(it.state, 'probing')
  })

  test('the breaker admits one probe; while the probe runs, no other call is admitted', async () => {
    const { breaker: it, clock, fail } = breaker()
    fail(3)
    await clock.advance(1_000)
    assert.equal(it.admit(), true)
    assert.equal(it.state, 'open')
    assert.equal(it.admit(), false)
    it.succeeded()
    assert.equal(it.state, 'closed')
    assert.equal(it.admit(), true)
  })

  test('the breaker doubles its pause with each probe that fails, up to its cap, and starts small again after a success', async () => {
    const { breaker: it, clock, fail } = breaker()
    fail(3)
    for (const pauseMs of [1_000, 2_000, 4_000, 4_000]) {
      await clock.advance(pauseMs - 1)
      assert.equal(it.admit(), false)
      await clock.advance(1)
      assert.equal(it.admit(), true)
      it.failed()
    }
    await clock.advance(4_000)
    assert.equal(it.admit(), true)
    it.succeeded()
    fail(3)
    await clock.advance(1_000)
    assert.equal(it.state, 'probing')
  })

  test('calls in flight when the breaker opened, and that fail too, do not lengthen its pause', async () => {
    const { breaker: it, clock } = breaker()
    for (let n = 0; n < 20; n++) assert.equal(it.admit(), true)
    for (let n = 0; n < 20; n++) it.failed()
    await clock.advance(1_000)
    assert.equal(it.state, 'probing')
  })

  test('a call that was under way when it opened, and succeeds, closes it', () => {
    const { breaker: it } = breaker()
    for (let n = 0; n < 4; n++) assert.equal(it.admit(), true)
    for (let n = 0; n < 3; n++) it.failed()
    it.succeeded()
    assert.equal(it.state, 'closed')
  })

  test('a call that we aborted does not count; if it was the probe, the next call becomes the probe', async () => {
    const { breaker: it, clock, fail } = breaker()
    for (let n = 0; n < 10; n++) {
      assert.equal(it.admit(), true)
      it.abandoned()
    }
    assert.equal(it.state, 'closed')
    fail(3)
    await clock.advance(1_000)
    assert.equal(it.admit(), true)
    it.abandoned()
    assert.equal(it.state, 'probing')
    assert.equal(it.admit(), true)
    it.failed()
    await clock.advance(1_999)
    assert.equal(it.admit(), false, 'the pause doubled once')
  })
})
