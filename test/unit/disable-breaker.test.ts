import assert from 'node:assert/strict'
import { beforeEach, describe, test } from 'node:test'
import { DisableBreaker } from '../../src/push/outbox/disable-breaker.ts'
import { ManualClock } from '../support/manual-clock.ts'

const HOUR_MS = 3_600_000
const FIRST = { onlyAfterSuccess: false, firstReportedAtMs: null }

describe('reports that devices are dead', () => {
  let clock: ManualClock
  let breaker: DisableBreaker
  beforeEach(() => {
    clock = new ManualClock()
    breaker = new DisableBreaker(clock)
  })
  const dead = (users: number) => {
    for (let n = 0; n < users; n++) breaker.recordDead(`dead-${n}`)
  }
  const alive = (users: number) => {
    for (let n = 0; n < users; n++) breaker.recordSent(`alive-${n}`)
  }

  test('reports about three users are trusted without a delivered message, about a fourth not', () => {
    dead(3)
    assert.ok(breaker.trusts(FIRST))
    assert.equal(breaker.fault, null)
    assert.equal(breaker.isSystemic, false)
    dead(4)
    assert.equal(breaker.trusts(FIRST), false)
    assert.ok(breaker.isSystemic)
    assert.match(breaker.fault ?? '', /no message is delivered/)
  })

  test('users are counted once, by the latest answer about them', () => {
    for (let n = 0; n < 10; n++) breaker.recordDead('one user')
    assert.ok(breaker.trusts(FIRST))
    dead(4)
    assert.equal(breaker.trusts(FIRST), false)
    for (let n = 0; n < 4; n++) breaker.recordSent(`dead-${n}`)
    assert.ok(breaker.trusts(FIRST))
  })

  test('a tenth of the users may have dead devices, not more', () => {
    alive(36)
    dead(4)
    assert.ok(breaker.trusts(FIRST), '4 of 40')
    breaker.recordDead('one more')
    assert.equal(breaker.trusts(FIRST), false, '5 of 41')
    assert.equal(breaker.isSystemic, false, 'messages get through')
    assert.match(breaker.fault ?? '', /at once: their deliveries wait/)
  })

  test('an answer counts for an hour while messages get through', async () => {
    dead(4)
    await clock.advance(HOUR_MS)
    breaker.recordSent('a user')
    assert.ok(breaker.trusts(FIRST), 'an hour old')
    dead(4)
    await clock.advance(HOUR_MS - 1)
    breaker.recordSent('a user')
    assert.equal(breaker.trusts(FIRST), false, 'younger than an hour')
  })

  test('a report counts while no message is delivered, as long as it is newer than the last success', async () => {
    breaker.recordSent('a user')
    await clock.advance(1)
    dead(4)
    await clock.advance(10 * HOUR_MS)
    assert.ok(breaker.isSystemic)
    assert.equal(breaker.hasRecentSuccess, false)
  })

  test('a success counts for an hour', async () => {
    assert.equal(breaker.hasRecentSuccess, false)
    breaker.recordSent('a user')
    assert.ok(breaker.hasRecentSuccess)
    await clock.advance(HOUR_MS - 1)
    assert.ok(breaker.hasRecentSuccess)
    await clock.advance(1)
    assert.equal(breaker.hasRecentSuccess, false)
  })

  test('a report that wrong credentials would cause is trusted only after a success', () => {
    const report = { onlyAfterSuccess: true, firstReportedAtMs: null }
    assert.equal(breaker.trusts(report), false)
    assert.ok(breaker.trusts(FIRST))
    breaker.recordSent('a user')
    assert.ok(breaker.trusts(report))
  })

  test('a report repeated for a day among many dead devices is trusted, if messages are delivered', async () => {
    const firstReportedAtMs = clock.now()
    const report = { onlyAfterSuccess: false, firstReportedAtMs }
    await clock.advance(24 * HOUR_MS - 1)
    alive(1)
    dead(4)
    assert.equal(breaker.trusts(report), false, 'not a day yet')
    await clock.advance(1)
    assert.ok(breaker.trusts(report))
    assert.equal(breaker.trusts(FIRST), false, 'a first report is not')
    await clock.advance(2 * HOUR_MS)
    dead(4)
    assert.equal(breaker.trusts(report), false, 'nothing gets through')
  })
})
