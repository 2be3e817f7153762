import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { test } from 'node:test'
import { STALLED_READER, StalledReaders } from '../../src/http/admission/stalled-readers.ts'
import { ManualClock } from '../support/manual-clock.ts'

test('an answer that waits for its turn is watched until its connection is closed, and not longer', async () => {
  const clock = new ManualClock()
  const readers = new StalledReaders({ clock })
  const connection = { destroyed: false }
  const response = { socket: null, closed: false, req: { socket: connection } }
  readers.watch(response as unknown as ServerResponse)
  for (let round = 0; round < 5; round++) await clock.advance(STALLED_READER.everyMs)
  assert.deepEqual([clock.sleeping, connection.destroyed], [1, false])
  connection.destroyed = true
  await clock.advance(STALLED_READER.everyMs)
  assert.equal(clock.sleeping, 0)
})
