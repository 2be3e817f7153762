import assert from 'node:assert/strict'
import { test } from 'node:test'
import { signedHeaders } from '../../src/webhooks/signature.ts'
import { addAttempt, judgeWebhook, type LoggedAttempt } from '../../src/webhooks/webhook-verdict.ts'

const NOW_MS = Date.UTC(2026, 0, 1)
const moment = (fraction = 0) => ({
  nowMs: NOW_MS,
  calendarMs: NOW_MS,
  random: { bytes: (n: number) => new Uint8Array(n), fraction: () => fraction },
})
const answer = (status: number, retryAfter?: string) => ({ answer: { status, retryAfter, text: '' }, error: null })
const judge = (
  outcome: Parameters<typeof judgeWebhook>[0],
  { attempts = 1, isTest = false, fraction = 0 }: { attempts?: number; isTest?: boolean; fraction?: number } = {},
) => judgeWebhook(outcome, { attempts, isTest }, moment(fraction))

test('a signature is that of the published test vector of Standard Webhooks', () => {
  const message = { id: 'msg_p5jXN8AQM9LWM0D4loKWxJek', timestampSeconds: 1614265330, body: '{"test": 2432232314}' }
  const secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'
  const signature = 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
  assert.deepEqual(signedHeaders({ ...message, secrets: [secret] }), {
    'webhook-id': message.id,
    'webhook-timestamp': '1614265330',
    'webhook-signature': signature,
  })
  const two = signedHeaders({ ...message, secrets: ['whsec_AAAA', secret] })['webhook-signature']?.split(' ')
  assert.equal(two?.length, 2)
  assert.equal(two?.[1], signature)
})

test('every status from 200 to 299 is a success, and no other', () => {
  for (const status of [200, 202, 204, 299]) {
    assert.deepEqual(judge(answer(status)), {
      state: 'sent',
      next_attempt_at: null,
      last_error: null,
      effect: 'succeeded',
    })
  }
  for (const status of [199, 300, 301, 307, 400, 401, 404, 429, 500, 503, 599]) {
    assert.deepEqual(judge(answer(status)), {
      state: 'pending',
      next_attempt_at: NOW_MS + 5_000,
      last_error: `the receiver answered ${status}`,
      effect: 'failed',
    })
  }
})

test('the pauses are 5 s, 5 min, 30 min, 2 h, 5 h, 10 h and 10 h, up to a tenth longer', () => {
  const SECONDS = [5, 300, 1_800, 7_200, 18_000, 36_000, 36_000]
  for (const [at, seconds] of SECONDS.entries()) {
    const next = (fraction: number) =>
      (judge({ answer: null, error: 'no answer' }, { attempts: at + 1, fraction }).next_attempt_at ?? 0) - NOW_MS
    assert.deepEqual([next(0), next(1)], [seconds * 1_000, seconds * 1_100])
  }
  const last = judge({ answer: null, error: 'no answer' }, { attempts: 8 })
  assert.deepEqual(last, { state: 'failed', next_attempt_at: null, last_error: 'no answer', effect: 'failed' })
})

test('Retry-After makes a pause longer, never shorter, and a day at most', () => {
  const pauseMs = (retryAfter: string, attempts = 1) =>
    (judge(answer(503, retryAfter), { attempts }).next_attempt_at ?? 0) - NOW_MS
  assert.equal(pauseMs('120'), 120_000)
  assert.equal(pauseMs('1'), 5_000)
  assert.equal(pauseMs('Thu, 01 Jan 2026 00:10:00 GMT'), 600_000)
  assert.equal(pauseMs('999999999'), 86_400_000)
  assert.equal(pauseMs('soon'), 5_000)
})

test('410 disables the endpoint, and a failed test changes nothing', () => {
  assert.deepEqual(judge(answer(410)), {
    state: 'failed',
    next_attempt_at: null,
    last_error: 'the receiver answered 410',
    effect: 'gone',
  })
  assert.deepEqual(judge(answer(500), { isTest: true }), {
    state: 'failed',
    next_attempt_at: null,
    last_error: 'the receiver answered 500',
    effect: null,
  })
  assert.equal(judge(answer(200), { isTest: true }).effect, 'succeeded')
})

test('the log keeps the last eight attempts, in text that both databases store', () => {
  const attempt: LoggedAttempt = {
    at: 1,
    status: 500,
    duration_ms: 3,
    error: 'x',
    answer: `a\u0000${'é'.repeat(2_000)}`,
  }
  let log = '[]'
  for (let at = 1; at <= 10; at++) log = addAttempt(log, { ...attempt, at })
  const kept = JSON.parse(log) as LoggedAttempt[]
  assert.deepEqual(
    kept.map(({ at }) => at),
    [3, 4, 5, 6, 7, 8, 9, 10],
  )
  assert.equal(kept[0]?.answer.length, 1_024)
  assert.ok(!log.includes('\u0000') && !log.includes('\\u0000'))
})
