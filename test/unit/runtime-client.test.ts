import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Breaker } from '../../src/core/breaker.ts'
import { UnacceptableAnswer } from '../../src/runtime/read-answers.ts'
import { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import { RuntimeTrouble } from '../../src/runtime/runtime-types.ts'
import { ManualClock } from '../support/manual-clock.ts'

/** Whatever is asked, this is the answer; one failure opens the breaker. */
function clientOf(answer: () => Response) {
  const clock = new ManualClock()
  const breaker = new Breaker({ clock, threshold: 1, openMs: 1_000, maxOpenMs: 1_000 })
  const fetch = async () => answer()
  const client = new RuntimeClient({
    url: 'http://runtime.test',
    apiKey: null,
    timeoutMs: 1_000,
    fetch,
    clock,
    breaker,
  })
  return { client, breaker }
}

const TOO_MANY_BYTES = 32 * 1024 * 1024 + 1

test('an answer too large or not UTF-8 cannot be taken, and is not held against the runtime', async () => {
  for (const body of [Buffer.alloc(TOO_MANY_BYTES, ' '), Buffer.from([0xff]), Buffer.from([0x22, 0xc3])]) {
    const { client, breaker } = clientOf(() => new Response(body))
    await assert.rejects(client.fetchRun('thread', 'run'), UnacceptableAnswer)
    assert.equal(breaker.state, 'closed')
  }
})

test('where it is a failure or a page, it says nothing, as any of those', async () => {
  const body = Buffer.from([0xff])
  const headers = { 'content-type': 'text/html' }
  for (const answer of [() => new Response(body, { status: 502 }), () => new Response(body, { headers })]) {
    const { client, breaker } = clientOf(answer)
    await assert.rejects(client.fetchRun('thread', 'run'), RuntimeTrouble)
    assert.equal(breaker.state, 'open')
  }
})
