import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import { WHOLE } from '../../src/core/json/wanted.ts'
import { UnacceptableAnswer } from '../../src/runtime/read-answers.ts'
import { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import { RuntimeUnavailable } from '../../src/runtime/runtime-types.ts'
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

const THREAD = '9a4bcb3e-4d5c-4b9e-8f00-000000000001'
const RUN = '1efcf3a0-0000-6000-8000-000000000001'
const JSON_TYPE = { 'content-type': 'application/json' }
const TOO_MANY_BYTES = 32 * 1024 * 1024 + 1

test('an answer too large or not UTF-8 cannot be taken, and is not held against the runtime', async () => {
  for (const body of [Buffer.alloc(TOO_MANY_BYTES, ' '), Buffer.from([0xff]), Buffer.from([0x22, 0xc3])]) {
    const { client, breaker } = clientOf(() => new Response(body, { headers: JSON_TYPE }))
    await assert.rejects(client.fetchState(THREAD, RUN, WHOLE), UnacceptableAnswer)
    assert.equal(breaker.state, 'closed')
  }
})

test('where it is a failure, a page or a gateway’s text, it says nothing, as any of those', async () => {
  const body = Buffer.from([0xff])
  for (const init of [
    { status: 502, headers: JSON_TYPE },
    { headers: { 'content-type': 'text/html' } },
    { headers: { 'content-type': 'text/plain; charset=iso-8859-1' } },
  ]) {
    const { client, breaker } = clientOf(() => new Response(body, init))
    await assert.rejects(client.fetchState(THREAD, RUN, WHOLE), RuntimeUnavailable)
    assert.equal(breaker.state, 'open')
  }
})

test('what is said of a run itself holds no output: it is never what cannot be taken', async () => {
  const { client } = clientOf(() => new Response(Buffer.from([0xff]), { headers: JSON_TYPE }))
  await assert.rejects(client.fetchRun(THREAD, RUN), RuntimeUnavailable)
  await assert.rejects(client.listRuns(THREAD), RuntimeUnavailable)
})
