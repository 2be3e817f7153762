import assert from 'node:assert/strict'
import { beforeEach, describe, test } from 'node:test'
import { FAILED_CHECKS_PER_SECOND, SpentAddresses } from '../../src/http/admission/spent-addresses.ts'
import { ManualClock } from '../support/manual-clock.ts'

const ADDRESS = '192.0.2.1'
const OTHER = '192.0.2.2'
const WINDOW_MS = 60_000

describe('spent addresses', () => {
  let clock: ManualClock
  let spent: SpentAddresses
  beforeEach(() => {
    clock = new ManualClock()
    spent = new SpentAddresses(clock)
  })
  /** How many of these checks begin, one after the other. */
  const admitted = (attempts: number, { hasFailed = true } = {}) => {
    const ends = Array.from({ length: attempts }, () => {
      const end = spent.beginCheck(ADDRESS)
      end?.(hasFailed)
      return end
    })
    return ends.filter((end) => end !== null).length
  }

  test('an address is spent from its refusal to the end of its window, and no longer', async () => {
    assert.equal(spent.isSpent(ADDRESS), false)
    spent.note(ADDRESS, WINDOW_MS)
    assert.ok(spent.isSpent(ADDRESS))
    assert.equal(spent.isSpent(OTHER), false)
    await clock.advance(WINDOW_MS - 1)
    assert.ok(spent.isSpent(ADDRESS))
    await clock.advance(1)
    assert.equal(spent.isSpent(ADDRESS), false)
  })

  test('a later refusal moves the end, and does not begin a new second of checks', async () => {
    spent.note(ADDRESS, 1_000)
    assert.equal(admitted(FAILED_CHECKS_PER_SECOND + 5), FAILED_CHECKS_PER_SECOND)
    await clock.advance(999)
    spent.note(ADDRESS, WINDOW_MS)
    assert.equal(admitted(1), 0)
    await clock.advance(WINDOW_MS - 1)
    assert.ok(spent.isSpent(ADDRESS))
  })

  test('a bounded number of checks of a spent address fails in a second, and as many in the next', async () => {
    spent.note(ADDRESS, WINDOW_MS)
    assert.equal(admitted(FAILED_CHECKS_PER_SECOND + 5), FAILED_CHECKS_PER_SECOND)
    await clock.advance(999)
    assert.equal(admitted(5), 0)
    await clock.advance(1)
    assert.equal(admitted(FAILED_CHECKS_PER_SECOND + 5), FAILED_CHECKS_PER_SECOND)
    await clock.advance(500)
    assert.equal(admitted(1), 0, 'the second begins with its first check')
  })

  test('a check that succeeds does not count', () => {
    spent.note(ADDRESS, WINDOW_MS)
    assert.equal(admitted(FAILED_CHECKS_PER_SECOND * 2, { hasFailed: false }), FAILED_CHECKS_PER_SECOND * 2)
    assert.equal(admitted(FAILED_CHECKS_PER_SECOND + 5), FAILED_CHECKS_PER_SECOND)
  })

  test('a check in progress counts until it ends, also beyond its second', async () => {
    spent.note(ADDRESS, WINDOW_MS)
    const ends = Array.from({ length: FAILED_CHECKS_PER_SECOND }, () => spent.beginCheck(ADDRESS))
    assert.equal(admitted(1), 0)
    await clock.advance(1_000)
    assert.equal(admitted(1), 0)
    for (const end of ends.slice(0, 3)) end?.(false)
    assert.equal(admitted(5), 3)
    assert.equal(ends.includes(null), false)
  })

  test('an address that is not spent has no bound', () => {
    assert.equal(admitted(300), 300)
    spent.note(OTHER, WINDOW_MS)
    assert.equal(admitted(300), 300)
  })

  test('a clock that was set back keeps no address spent', () => {
    let nowMs = 1_000_000
    const now = () => nowMs
    const back = new SpentAddresses({ now, calendar: now, elapsed: now, sleep: () => Promise.resolve() })
    back.note(ADDRESS, WINDOW_MS)
    assert.ok(back.isSpent(ADDRESS), 'in the same millisecond')
    nowMs -= 1
    assert.equal(back.isSpent(ADDRESS), false)
  })
})
