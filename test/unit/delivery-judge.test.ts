import assert from 'node:assert/strict'
import { beforeEach, describe, test } from 'node:test'
import { DeliveryPause } from '../../src/deliveries/delivery-pause.ts'
import { DELIVERY_ERRORS, DeliveryJudge } from '../../src/push/outbox/delivery-judge.ts'
import type { DueDelivery } from '../../src/push/outbox/delivery-store.ts'
import { expiresAt, giveUpAt, recheckAt, retryLater } from '../../src/push/outbox/delivery-times.ts'
import type { PushVerdict } from '../../src/push/push-provider.ts'
import { ManualClock } from '../support/manual-clock.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
/** The longest pause that the backoff allows. */
const LONGEST = { fraction: () => 1, bytes: (count: number) => new Uint8Array(count) }
const SENT: PushVerdict = { kind: 'sent', messageId: 'm-1' }
const UNREGISTERED: PushVerdict = { kind: 'disable', reason: 'unregistered', credentialsFault: null }
const MISMATCH: PushVerdict = { kind: 'disable', reason: 'sender_mismatch', credentialsFault: 'wrong project' }

describe('what an attempt means for its delivery', () => {
  let clock: ManualClock
  let logged: string[]
  let pause: DeliveryPause
  let judge: DeliveryJudge
  let resumed: string[]
  beforeEach(() => {
    clock = new ManualClock()
    logged = []
    resumed = []
    const note = (level: string) => (fields: object, event: string) => {
      logged.push(`${level} ${event} ${(fields as { reason?: string }).reason}`)
    }
    const log = { debug: note('debug'), info: note('info'), warn: note('warn'), error: note('error') }
    pause = new DeliveryPause({ clock, log, channel: 'push' })
    judge = new DeliveryJudge({ clock, random: LONGEST, log, pause, onResumed: () => resumed.push('resumed') })
  })

  const due = (fields: Partial<DueDelivery> = {}): DueDelivery => ({
    notification_id: 'ntf_1',
    device_id: 'dev_1',
    attempts: 1,
    created_at: clock.now(),
    job_id: 'job_1',
    title: 'Done',
    body: '',
    data: '{}',
    link: null,
    trace_context: null,
    priority: 'high',
    ttl_seconds: 86_400,
    dry_run: 0,
    retrying_since: null,
    provider: 'fcm',
    token: 'token',
    subject: 'user-1',
    platform: 'ios',
    seen_at: 7,
    disabled_at: null,
    called_dead_at: null,
    ...fields,
  })
  const marked = (outcome: Parameters<DeliveryJudge['markOf']>[0]['outcome'], fields: Partial<DueDelivery> = {}) =>
    judge.markOf({ delivery: due(fields), outcome, leaseToken: 'lease' })
  const manyDead = () => {
    for (let n = 0; n < 4; n++) marked(UNREGISTERED, { subject: `dead-${n}` })
  }

  test('a message that was sent is marked with its id, under the lease of its attempt', () => {
    assert.deepEqual(marked(SENT), {
      notification_id: 'ntf_1',
      device_id: 'dev_1',
      lease_token: 'lease',
      job_id: 'job_1',
      attempts: 1,
      state: 'sent',
      next_attempt_at: null,
      provider_message_id: 'm-1',
      last_error: null,
      retrying_since: null,
      dead_report: null,
      disable_reason: null,
      seen_at: 7,
    })
  })

  test('a sent message clears an earlier report that its device is dead; a dry run clears nothing', () => {
    assert.equal(marked(SENT, { called_dead_at: 5 }).dead_report, 'forget')
    const dry = marked(SENT, { dry_run: 1, called_dead_at: 5 })
    assert.deepEqual([dry.state, dry.provider_message_id, dry.dead_report], ['sent', null, null])
  })

  test('a delivery that was not attempted is marked with the reason', () => {
    const stateAndError = (outcome: 'expired' | 'gone' | 'no_credentials') => {
      const { state, last_error } = marked(outcome)
      return [state, last_error]
    }
    assert.deepEqual(stateAndError('expired'), ['expired', DELIVERY_ERRORS.expired])
    assert.deepEqual(stateAndError('gone'), ['disabled', DELIVERY_ERRORS.gone])
    assert.deepEqual(stateAndError('no_credentials'), ['no_credentials', null])
  })

  test('a dropped message has failed; one that the operator can fix is an error, and shows for its platform', () => {
    const dropped = marked({ kind: 'drop', reason: 'too large', alert: false })
    assert.deepEqual([dropped.state, dropped.last_error], ['failed', DELIVERY_ERRORS.refused])
    assert.deepEqual([logged, judge.platformFault], [['warn delivery.dropped too large'], null])
    const alerted = marked({ kind: 'drop', reason: 'no APNs key', alert: true })
    assert.deepEqual([alerted.state, alerted.next_attempt_at], ['failed', null])
    assert.equal(alerted.last_error, DELIVERY_ERRORS.no_platform_key)
    assert.equal(logged.at(-1), 'error delivery.dropped no APNs key')
    assert.equal(judge.platformFault, 'messages to ios are lost: no APNs key')
    marked(SENT, { dry_run: 1 })
    assert.match(judge.platformFault ?? '', /ios/, 'a dry run proves nothing')
    marked(SENT, { platform: 'android' })
    assert.match(judge.platformFault ?? '', /ios/)
    marked(SENT)
    assert.equal(judge.platformFault, null)
  })

  test('a dropped message of a device without a platform raises no platform fault', () => {
    marked({ kind: 'drop', reason: 'no key', alert: true }, { platform: null })
    assert.equal(judge.platformFault, null)
  })

  test('a failure of the provider is retried later, and the first failure is kept', () => {
    const retried = marked({ kind: 'retry', reason: '503', afterMs: null })
    assert.deepEqual([retried.state, retried.next_attempt_at], ['pending', clock.now() + 20_000])
    assert.deepEqual([retried.retrying_since, retried.last_error], [clock.now(), DELIVERY_ERRORS.unavailable])
    assert.deepEqual(logged, ['info delivery.postponed 503'])
    const asked = marked(
      { kind: 'retry', reason: '429', afterMs: 5 * MINUTE_MS },
      { retrying_since: clock.now() - 1_000 },
    )
    assert.equal(asked.next_attempt_at, clock.now() + 5 * MINUTE_MS)
    assert.equal(
      asked.retrying_since,
      clock.now() - 1_000 + 5 * MINUTE_MS - 20_000,
      'a pause that was asked for does not count',
    )
  })

  test('retries end an hour after the first failure, or with the life of the message', () => {
    const late = { kind: 'retry', reason: '503', afterMs: null } as const
    const old = marked(late, { retrying_since: clock.now() - HOUR_MS + 20_000 })
    assert.deepEqual([old.state, old.next_attempt_at], ['expired', null])
    const inTime = marked(late, { retrying_since: clock.now() - HOUR_MS + 20_001 })
    assert.equal(inTime.state, 'pending')
    assert.equal(marked(late, { ttl_seconds: 20 }).state, 'expired')
    assert.equal(marked(late, { ttl_seconds: 21 }).state, 'pending')
  })

  test('a fault of all messages pauses delivery; an answer about one ends the pause, a failure does not', async () => {
    const halted = marked({ kind: 'halt', reason: 'credentials refused' })
    assert.deepEqual([halted.state, halted.next_attempt_at], ['pending', clock.now() + 30_000])
    assert.equal(halted.last_error, DELIVERY_ERRORS.paused)
    assert.equal(pause.reason, 'credentials refused')
    await clock.advance(10_000)
    marked({ kind: 'retry', reason: '503', afterMs: null })
    assert.equal(pause.probeAtMs, clock.now() + 30_000, 'a probe without an answer')
    marked({ kind: 'halt', reason: 'still refused' })
    assert.deepEqual([pause.reason, resumed.length], ['still refused', 0])
    marked({ kind: 'drop', reason: 'too large', alert: false })
    assert.deepEqual([pause.reason, resumed.length], [null, 1])
    marked(SENT)
    assert.equal(resumed.length, 1)
  })

  test('a device that is reported dead is disabled', () => {
    const { state, disable_reason, next_attempt_at } = marked(UNREGISTERED)
    assert.deepEqual([state, disable_reason, next_attempt_at], ['disabled', 'unregistered', null])
  })

  test('a dry run disables no device, and its report counts for nothing', () => {
    for (let n = 0; n < 9; n++) {
      const { state, disable_reason, last_error } = marked(UNREGISTERED, { dry_run: 1, subject: `user-${n}` })
      assert.deepEqual([state, disable_reason, last_error !== null], ['failed', null, true])
    }
    assert.equal(marked(UNREGISTERED).state, 'disabled')
  })

  test('a delivery waits and its report is kept while devices of many users are dead at once', () => {
    marked(SENT)
    manyDead()
    const waiting = marked(UNREGISTERED, { attempts: 3 })
    assert.deepEqual([waiting.state, waiting.disable_reason, waiting.dead_report], ['pending', null, 'keep'])
    assert.equal(waiting.next_attempt_at, clock.now() + 4 * MINUTE_MS)
    assert.match(judge.deviceFault ?? '', /many users/)
    assert.equal(marked(UNREGISTERED, { ttl_seconds: 60 }).state, 'expired')
    assert.equal(marked(UNREGISTERED, { ttl_seconds: 61 }).next_attempt_at, clock.now() + MINUTE_MS)
    assert.equal(marked(UNREGISTERED, { ttl_seconds: 60 }).next_attempt_at, null)
    assert.equal(pause.reason, null)
  })

  test('a report is not kept while no message gets through, and a wrong project pauses delivery until one is sent', () => {
    assert.equal(marked(MISMATCH).state, 'pending', 'not believed without a success')
    assert.equal(pause.reason, null, 'one user says nothing about all')
    manyDead()
    assert.equal(marked(UNREGISTERED).state, 'pending')
    assert.equal(pause.reason, null, 'no fault of the credentials')
    const waiting = marked(MISMATCH)
    assert.deepEqual([waiting.state, waiting.dead_report], ['pending', null])
    assert.equal(pause.reason, 'wrong project')
    marked({ kind: 'drop', reason: 'too large', alert: false })
    assert.equal(pause.reason, 'wrong project', 'an answer is not enough')
    marked(SENT, { dry_run: 1 })
    assert.equal(pause.reason, 'wrong project', 'a dry run neither')
    marked(SENT)
    assert.deepEqual([pause.reason, resumed.length], [null, 1])
  })

  test('a message through one provider says nothing about another', () => {
    marked(SENT, { provider: 'other' })
    assert.equal(marked(MISMATCH).state, 'pending')
    marked(SENT)
    assert.equal(marked(MISMATCH).state, 'disabled')
    for (let n = 0; n < 4; n++) marked(UNREGISTERED, { subject: `dead-${n}` })
    assert.equal(marked(UNREGISTERED, { provider: 'other' }).state, 'disabled')
    assert.notEqual(judge.deviceFault, null)
  })

  test('pauses double to their caps, and a message lives at least ten seconds', () => {
    const nowMs = clock.now()
    const pauseOf = (attempts: number, askedMs: number | null = null) =>
      retryLater(due({ attempts }), { askedMs, nowMs, random: LONGEST }).retryAtMs - nowMs
    assert.deepEqual(
      [1, 2, 3, 6, 40].map((attempts) => pauseOf(attempts)),
      [20_000, 40_000, 80_000, 600_000, 600_000],
    )
    assert.equal(pauseOf(1, 10_000), 20_000, 'never shorter than our own')
    assert.equal(pauseOf(1, 5 * HOUR_MS), HOUR_MS, 'never longer than an hour')
    const recheck = (attempts: number) => recheckAt(due({ attempts }), { nowMs, random: LONGEST }) - nowMs
    assert.deepEqual([1, 2, 40].map(recheck), [MINUTE_MS, 2 * MINUTE_MS, HOUR_MS])
    const lifeOf = (ttl_seconds: number) => expiresAt(due({ ttl_seconds })) - nowMs
    assert.deepEqual([0, 9, 11].map(lifeOf), [10_000, 10_000, 11_000])
    const ends = (ttl_seconds: number) =>
      giveUpAt({ ...due({ ttl_seconds }), retryAtMs: 0, retrying_since: nowMs }) - nowMs
    assert.deepEqual([ends(60), ends(86_400)], [MINUTE_MS, HOUR_MS])
  })
})
