import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mock, test } from 'node:test'
import { Webhook } from 'standardwebhooks'
import { verifyWebhook, WebhookError, type WebhookErrorCode } from '../../client/src/webhooks/index.ts'

// The time stands: a webhook must not get older between its signature and its check.
mock.timers.enable({ apis: ['Date'], now: Date.now() })

const SECRET = newSecret()
const EVENT = { id: '42', type: 'job.completed', created_at: '2026-01-01T00:00:00.000Z', data: { job_id: 'job_1' } }
const BODY = JSON.stringify(EVENT)

function newSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`
}

/** The headers that another implementation of Standard Webhooks makes. */
function signed({ body = BODY, secret = SECRET, agoMs = 0 } = {}): Record<string, string> {
  const at = new Date(Date.now() - agoMs)
  return {
    'webhook-id': '42',
    'webhook-timestamp': String(Math.floor(at.getTime() / 1_000)),
    'webhook-signature': new Webhook(secret).sign('42', at, body),
  }
}

test('a webhook that another implementation signed is accepted, with every form of body and headers', async () => {
  const headers = signed()
  const bytes = new TextEncoder().encode(BODY)
  for (const body of [BODY, bytes, bytes.buffer, Buffer.from(BODY)]) {
    assert.deepEqual(await verifyWebhook(body, headers, SECRET), EVENT)
  }
  const upper = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toUpperCase(), [value]]))
  for (const form of [new Headers(headers), upper]) assert.deepEqual(await verifyWebhook(BODY, form, SECRET), EVENT)
})

test('a body that is not ASCII is accepted', async () => {
  const body = JSON.stringify({ ...EVENT, data: { title: 'Größe 😀' } })
  assert.deepEqual(await verifyWebhook(body, signed({ body }), SECRET), JSON.parse(body))
})

test('each of two valid secrets is accepted, and one of several signatures is enough', async () => {
  const other = newSecret()
  assert.deepEqual(await verifyWebhook(BODY, signed({ secret: other }), [SECRET, other]), EVENT)
  const headers = signed()
  const both = `v1a,AAAA ${signed({ secret: other })['webhook-signature']} ${headers['webhook-signature']}`
  assert.deepEqual(await verifyWebhook(BODY, { ...headers, 'webhook-signature': both }, SECRET), EVENT)
})

test('a webhook of up to five minutes before or after now is accepted', async () => {
  for (const agoMs of [299_000, -298_000]) {
    assert.deepEqual(await verifyWebhook(BODY, signed({ agoMs }), SECRET), EVENT)
  }
})

const good = signed()
const REFUSED: [
  what: string,
  code: WebhookErrorCode,
  input: { body?: string; headers?: object; secrets?: string[] },
][] = [
  ['another body', 'wrong_signature', { body: `${BODY} ` }],
  ['another secret', 'wrong_signature', { secrets: [newSecret()] }],
  ['no secret', 'wrong_signature', { secrets: [] }],
  ['another id', 'wrong_signature', { headers: { ...good, 'webhook-id': '43' } }],
  ['a signature of another version only', 'wrong_signature', { headers: { ...good, 'webhook-signature': 'v2,AAAA' } }],
  ['a signature that is not base64', 'wrong_signature', { headers: { ...good, 'webhook-signature': 'v1,%%' } }],
  ['an empty signature', 'wrong_signature', { headers: { ...good, 'webhook-signature': 'v1,' } }],
  ['a time that is not a number', 'missing_header', { headers: { ...good, 'webhook-timestamp': '1e9' } }],
  ['no time', 'missing_header', { headers: { ...good, 'webhook-timestamp': undefined } }],
  ['no id', 'missing_header', { headers: { ...good, 'webhook-id': '' } }],
  ['no signature', 'missing_header', { headers: { ...good, 'webhook-signature': undefined } }],
  ['an old message', 'too_old', { headers: signed({ agoMs: 301_000 }) }],
  ['a message from the future', 'too_new', { headers: signed({ agoMs: -303_000 }) }],
  ['a secret that is not base64', 'bad_secret', { secrets: ['whsec_%%'] }],
  ['an empty secret', 'bad_secret', { secrets: ['whsec_'] }],
  ['a signed body that is not JSON', 'bad_body', { body: 'hello', headers: signed({ body: 'hello' }) }],
]

for (const [what, code, { body = BODY, headers = good, secrets = [SECRET] }] of REFUSED) {
  test(`${what} is refused as ${code}`, async () => {
    await assert.rejects(
      verifyWebhook(body, headers as Record<string, string>, secrets),
      (error) => error instanceof WebhookError && error.code === code,
    )
  })
}
