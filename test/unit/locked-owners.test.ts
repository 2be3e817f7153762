import assert from 'node:assert/strict'
import { test } from 'node:test'
import { LockedOwners } from '../../src/jobs/callbacks/locked-owners.ts'
import { ManualClock } from '../support/manual-clock.ts'

test('a locked owner is remembered for 5 s, or until its usage is written', async () => {
  const clock = new ManualClock()
  const owners = new LockedOwners(clock)
  owners.add('ada')
  owners.add('bob')
  assert.deepEqual([owners.has('ada'), owners.has('bob'), owners.has('cleo')], [true, true, false])
  owners.delete('bob')
  await clock.advance(4_999)
  assert.deepEqual([owners.has('ada'), owners.has('bob')], [true, false])
  await clock.advance(1)
  assert.equal(owners.has('ada'), false)
})

test('of many locked owners, the newest thousand are remembered', () => {
  const owners = new LockedOwners(new ManualClock())
  for (let n = 0; n < 1_001; n++) owners.add(`owner-${n}`)
  assert.deepEqual([owners.has('owner-0'), owners.has('owner-1'), owners.has('owner-1000')], [false, true, true])
})
