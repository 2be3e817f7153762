import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readRetryAfter } from '../../src/deliveries/retry-after.ts'
import { judgeAnswer, refusesBearer } from '../../src/push/fcm/fcm-verdict.ts'
import type { PushVerdict } from '../../src/push/push-provider.ts'

const NOW_MS = Date.UTC(2026, 0, 1)
const FCM_ERROR = 'type.googleapis.com/google.firebase.fcm.v1.FcmError'
const BAD_REQUEST = 'type.googleapis.com/google.rpc.BadRequest'

interface Said {
  status: number
  code?: string
  message?: string
  fields?: string[]
  headers?: Record<string, string>
  body?: string
}

const answer = ({ status, code, message = 'Said so.', fields = [], headers = {}, body }: Said) => {
  const details = [
    ...(code === undefined ? [] : [{ '@type': FCM_ERROR, errorCode: code }]),
    ...(fields.length === 0 ? [] : [{ '@type': BAD_REQUEST, fieldViolations: fields.map((field) => ({ field })) }]),
  ]
  const error = { code: status, message, status: 'WORD', ...(details.length === 0 ? {} : { details }) }
  return { status, headers, body: body ?? JSON.stringify({ error }) }
}
const judge = (said: Said) => judgeAnswer(answer(said), { nowMs: NOW_MS })

const disable = (reason: string): PushVerdict => ({ kind: 'disable', reason, credentialsFault: null })
const NOT_A_TOKEN = 'The registration token is not a valid FCM registration token'
const HTML = '<html><title>Error 502 (Server Error)!!1</title></html>'

const table: [name: string, said: Said, verdict: Partial<PushVerdict>][] = [
  [
    'a message name',
    { status: 200, body: '{"name":"projects/p/messages/1"}' },
    { kind: 'sent', messageId: 'projects/p/messages/1' },
  ],
  ['success without a name', { status: 200, body: '{}' }, { kind: 'retry', afterMs: null }],
  ['success cut in half', { status: 200, body: '{"name":"proj' }, { kind: 'retry', afterMs: null }],
  ['success from a captive portal', { status: 200, body: HTML }, { kind: 'retry', afterMs: null }],
  ['404 UNREGISTERED', { status: 404, code: 'UNREGISTERED' }, disable('unregistered')],
  ['404 without the provider’s own error', { status: 404 }, { kind: 'halt' }],
  ['404 from a proxy', { status: 404, body: 'Not here' }, { kind: 'halt' }],
  ['404 with an unknown code', { status: 404, code: 'UNKNOWN' }, { kind: 'halt' }],
  [
    '400 for the field message.token',
    { status: 400, code: 'INVALID_ARGUMENT', fields: ['message.token'] },
    disable('invalid_token'),
  ],
  ['400 for that field without a code', { status: 400, fields: ['message.token'] }, disable('invalid_token')],
  [
    '400 that names the token in words',
    { status: 400, code: 'INVALID_ARGUMENT', message: NOT_A_TOKEN },
    disable('invalid_token'),
  ],
  [
    '400 for another field',
    { status: 400, code: 'INVALID_ARGUMENT', fields: ['message.data[0].key'] },
    { kind: 'drop', alert: false },
  ],
  [
    '400 for being too big, without details',
    { status: 400, message: 'Message is too big' },
    { kind: 'drop', alert: false },
  ],
  ['400 without a word', { status: 400, body: '' }, { kind: 'drop', alert: false }],
  ['413', { status: 413, body: HTML }, { kind: 'drop', alert: false }],
  [
    '403 SENDER_ID_MISMATCH',
    { status: 403, code: 'SENDER_ID_MISMATCH' },
    { kind: 'disable', reason: 'sender_mismatch' },
  ],
  ['another 403', { status: 403 }, { kind: 'halt' }],
  ['401 THIRD_PARTY_AUTH_ERROR', { status: 401, code: 'THIRD_PARTY_AUTH_ERROR' }, { kind: 'drop', alert: true }],
  ['401 without the provider’s own error', { status: 401 }, { kind: 'halt' }],
  ['429 QUOTA_EXCEEDED', { status: 429, code: 'QUOTA_EXCEEDED' }, { kind: 'retry', afterMs: 60_000 }],
  [
    '429 with Retry-After',
    { status: 429, code: 'QUOTA_EXCEEDED', headers: { 'retry-after': '7' } },
    { kind: 'retry', afterMs: 7_000 },
  ],
  ['429 from a proxy', { status: 429, body: HTML }, { kind: 'retry', afterMs: 60_000 }],
  ['500 INTERNAL', { status: 500, code: 'INTERNAL' }, { kind: 'retry', afterMs: null }],
  ['502 with a page', { status: 502, body: HTML }, { kind: 'retry', afterMs: null }],
  ['503 UNAVAILABLE', { status: 503, code: 'UNAVAILABLE' }, { kind: 'retry', afterMs: null }],
  [
    '503 with Retry-After',
    { status: 503, code: 'UNAVAILABLE', headers: { 'retry-after': '120' } },
    { kind: 'retry', afterMs: 120_000 },
  ],
  ['504', { status: 504, body: '' }, { kind: 'retry', afterMs: null }],
  ['408', { status: 408 }, { kind: 'retry', afterMs: null }],
  ['409', { status: 409 }, { kind: 'retry', afterMs: null }],
  ['a redirect', { status: 302, body: '' }, { kind: 'halt' }],
  ['405', { status: 405 }, { kind: 'halt' }],
  ['a code against its status', { status: 500, code: 'UNREGISTERED' }, disable('unregistered')],
]
for (const [name, said, expected] of table) {
  test(`${name} means ${expected.kind}`, () => {
    assert.partialDeepStrictEqual(judge(said), expected)
  })
}

const pauses: [value: string, afterMs: number | null][] = [
  ['0', 0],
  [new Date(NOW_MS + 30_000).toUTCString(), 30_000],
  [new Date(NOW_MS - 30_000).toUTCString(), 0],
  ['99999999999999999999', 3_600_000],
  ['soon', null],
  ['-5', null],
  ['', null],
]
for (const [value, afterMs] of pauses) {
  test(`Retry-After ${value || '(empty)'} is ${afterMs === null ? 'no advice' : `a pause of ${afterMs} ms`}`, () => {
    const verdict = judge({ status: 503, headers: { 'retry-after': value } })
    assert.ok(verdict.kind === 'retry')
    assert.equal(verdict.afterMs, afterMs)
  })
}

test('only a 401 without FCM’s own error means a refused access token', () => {
  assert.equal(refusesBearer(answer({ status: 401 })), true)
  assert.equal(refusesBearer(answer({ status: 401, body: HTML })), true)
  assert.equal(refusesBearer(answer({ status: 401, code: 'THIRD_PARTY_AUTH_ERROR' })), false)
  assert.equal(refusesBearer(answer({ status: 403 })), false)
})

test('only a sender mismatch may be the fault of our credentials, and says so', () => {
  const verdict = judge({ status: 403, code: 'SENDER_ID_MISMATCH' })
  assert.ok(verdict.kind === 'disable')
  assert.match(verdict.credentialsFault ?? '', /another project.*check that the credentials/)
})

test('an error of another type is not FCM’s own error', () => {
  const details = [{ '@type': 'type.googleapis.com/google.rpc.ErrorInfo', errorCode: 'UNREGISTERED' }]
  const body = JSON.stringify({ error: { code: 404, details } })
  assert.equal(judge({ status: 404, body }).kind, 'halt')
})

test('every body has a verdict', () => {
  const bodies = [
    'null',
    '[]',
    '"x"',
    '{"error":null}',
    '{"error":[]}',
    '{"error":{"details":{}}}',
    '{"error":{"details":[null,1]}}',
  ]
  for (const body of bodies) assert.equal(judge({ status: 400, body }).kind, 'drop')
  const violations = '{"error":{"details":[{"fieldViolations":[null,"message.token"]}]}}'
  assert.equal(judge({ status: 400, body: violations }).kind, 'drop')
})

test('a reason quotes the provider, with a length limit and without secrets', () => {
  const secret = 'registration-token-of-a-user'
  const message = `${secret} and ${'x'.repeat(180)} ${secret}`
  const verdict = judgeAnswer(answer({ status: 403, message }), { nowMs: NOW_MS, secrets: [secret, ''] })
  assert.ok(verdict.kind === 'halt')
  assert.match(verdict.reason, /403 WORD: … and x+/)
  assert.doesNotMatch(verdict.reason, /registration/)
  assert.ok(verdict.reason.length < 300)
})

test('a registration token that looks like part of an answer changes no verdict', () => {
  for (const token of ['FcmError', 'UNREGISTERED', 'error', '"', 'details']) {
    const verdict = judgeAnswer(answer({ status: 404, code: 'UNREGISTERED' }), { nowMs: NOW_MS, secrets: [token] })
    assert.deepEqual(verdict, disable('unregistered'))
  }
})

test('the reason names the status, the provider’s word for it and its message, and what the operator should know', () => {
  const reasonOf = (said: Said) => {
    const verdict = judge(said)
    assert.ok('reason' in verdict)
    return verdict.reason
  }
  assert.equal(reasonOf({ status: 401 }), 'the access token is refused: 401 WORD: Said so.')
  assert.equal(reasonOf({ status: 403 }), 'the credentials may not send: 403 WORD: Said so.')
  assert.equal(reasonOf({ status: 404 }), 'no such project: 404 WORD: Said so.')
  assert.equal(reasonOf({ status: 500, code: 'INTERNAL' }), '500 INTERNAL: Said so.')
  assert.equal(reasonOf({ status: 500, message: '' }), '500 WORD')
  assert.equal(reasonOf({ status: 502, body: HTML }), '502')
  assert.equal(reasonOf({ status: 200, body: '{"name":""}' }), 'an answer without a message id: 200')
  assert.equal(reasonOf({ status: 500, body: '{"error":{"status":7,"message":["x"]}}' }), '500')
})

test('a code that is a name of every object, and a status in between, are judged by the status', () => {
  assert.equal(judge({ status: 500, code: 'toString' }).kind, 'retry')
  assert.equal(judge({ status: 500 }).kind, 'retry')
  assert.equal(judge({ status: 499 }).kind, 'retry')
  assert.equal(judge({ status: 418 }).kind, 'halt')
  for (const status of [421, 425]) assert.equal(judge({ status }).kind, 'retry')
  for (const status of [422, 431]) assert.equal(judge({ status }).kind, 'drop')
})

test('a pause is read from one header with whole seconds or a date', () => {
  assert.equal(readRetryAfter(undefined, NOW_MS), null)
  assert.equal(readRetryAfter(['7'], NOW_MS), null)
  assert.equal(readRetryAfter('7 apples', NOW_MS), null)
  assert.equal(readRetryAfter('7.5', NOW_MS), null)
  assert.equal(readRetryAfter('Someday, later', NOW_MS), null)
  assert.equal(readRetryAfter('7', NOW_MS), 7_000)
})
