import assert from 'node:assert/strict'
import { after, before, beforeEach, describe, test } from 'node:test'
import { Webhook } from 'standardwebhooks'
import { startWebhookReceiver, type WebhookReceiver } from '../../src/sandbox/webhook-receiver/webhook-receiver.ts'

const SECRET = `whsec_${Buffer.alloc(32, 7).toString('base64')}`
const BODY = JSON.stringify({ id: '7', type: 'job.completed' })

describe('the sandbox receiver of webhooks', () => {
  let receiver: WebhookReceiver
  before(async () => {
    receiver = await startWebhookReceiver()
  })
  beforeEach(() => receiver.reset())
  after(() => receiver.close())

  async function send(secret = SECRET, id = '7'): Promise<Response> {
    const at = new Date()
    const headers = {
      'webhook-id': id,
      'webhook-timestamp': String(Math.floor(at.getTime() / 1_000)),
      'webhook-signature': new Webhook(secret).sign(id, at, BODY),
    }
    return fetch(`${receiver.url}/webhooks`, { method: 'POST', headers, body: BODY, redirect: 'manual' })
  }

  const control = (method: string, path: string, body?: object) =>
    fetch(`${receiver.url}/sandbox/${path}`, { method, ...(body && { body: JSON.stringify(body) }) })

  test('it lists what arrived, newest first, with the event, its signature and repetitions', async () => {
    await send()
    await control('PUT', 'secrets', { secrets: [SECRET] })
    await send()
    await send(`whsec_${Buffer.alloc(32, 8).toString('base64')}`, '8')
    const { data } = (await (await control('GET', 'webhooks')).json()) as { data: WebhookReceiver['arrivals'] }
    assert.deepEqual(
      data.map(({ id, type, signed, repeated, body }) => [id, type, signed, repeated, body]),
      [
        ['8', 'job.completed', false, false, BODY],
        ['7', 'job.completed', true, true, BODY],
        ['7', 'job.completed', null, false, BODY],
      ],
    )
  })

  test('it answers as its faults say', async () => {
    const statuses: unknown[] = []
    for (const answer of ['200', '500', '410', 'redirect'] as const) {
      assert.equal((await control('PATCH', 'faults', { answer, retry_after_seconds: 9 })).status, 200)
      const { status, headers } = await send()
      statuses.push([status, headers.get('retry-after'), headers.get('location')])
    }
    assert.deepEqual(statuses, [
      [200, null, null],
      [500, '9', null],
      [410, null, null],
      [302, null, `${receiver.url}/elsewhere`],
    ])
    await control('PATCH', 'faults', { answer: 'cut' })
    await assert.rejects(send())
  })

  test('wrong settings and requests of other sites are refused', async () => {
    assert.equal((await control('PATCH', 'faults', { answer: '201' })).status, 400)
    assert.equal((await control('PUT', 'secrets', { secrets: [''] })).status, 400)
    assert.equal((await control('GET', 'nothing')).status, 404)
    const foreign = await fetch(`${receiver.url}/sandbox/reset`, {
      method: 'POST',
      headers: { origin: 'http://evil.example' },
    })
    assert.equal(foreign.status, 403)
  })
})
