import assert from 'node:assert/strict'
import { test } from 'node:test'
import fastify from 'fastify'
import type { App } from '../../src/http/app-instance.ts'
import { HANDLER_DEADLINE, limitHandlers } from '../../src/http/server/handler-deadline.ts'
import { ManualClock } from '../support/manual-clock.ts'

test('the timer of the handlers runs only while there are requests', async () => {
  const clock = new ManualClock()
  const entered = Promise.withResolvers<void>()
  const app: App = fastify()
  limitHandlers(app, { clock })
  app.get('/slow', () => {
    entered.resolve()
    return new Promise(() => {})
  })
  assert.equal(clock.sleeping, 0)
  const asked = app.inject('/slow')
  await entered.promise
  assert.equal(clock.sleeping, 1)
  await clock.advance(HANDLER_DEADLINE.rounds * HANDLER_DEADLINE.roundMs)
  assert.equal((await asked).statusCode, 503)
  await clock.advance(HANDLER_DEADLINE.roundMs)
  assert.equal(clock.sleeping, 0)
  await app.close()
})
