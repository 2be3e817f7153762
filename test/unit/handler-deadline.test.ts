import assert from 'node:assert/strict'
import { test } from 'node:test'
import fastify from 'fastify'
import { HANDLER_DEADLINE, HandlerDeadline } from '../../src/http/admission/handler-deadline.ts'
import type { App } from '../../src/http/app-instance.ts'
import { ManualClock } from '../support/manual-clock.ts'

test('the timer of the handlers runs only while there are requests', async () => {
  const clock = new ManualClock()
  const entered = Promise.withResolvers<void>()
  const app: App = fastify()
  const deadline = new HandlerDeadline({ clock })
  app.addHook('onSend', async (_request, reply) => deadline.end(reply))
  app.get('/slow', (_request, reply) => {
    deadline.begin(reply)
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
