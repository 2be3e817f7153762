import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { deleteDevice, upsertDevice } from '../../src/push/device-store.ts'
import { DELIVERY_ERRORS } from '../../src/push/outbox/delivery-judge.ts'
import type { Outbox } from '../../src/push/outbox/outbox.ts'
import type { PushVerdict } from '../../src/push/push-provider.ts'
import { forEachEngine } from '../support/engines.ts'
import { dead, HALT, HOUR_MS, MINUTE_MS, MISMATCH, retry, setUpOutbox } from '../support/outbox-setup.ts'
import { type Delivery, IDLE_MS, type Post } from '../support/post.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'

/** Sends one message, so that the outbox trusts reports of dead devices. */
async function sendOneMessage(post: Post): Promise<void> {
  await post.addDevices(1, 'bob')
  const id = await post.notify({ subject: 'bob' })
  await post.quiet()
  const rows = await post.db.query(sql`
    delete from deliveries where notification_id = ${id} and state = 'sent' returning state`)
  assert.equal(rows.length, 1)
}

/** Goes from attempt to attempt of the only delivery until it ends; the pauses between them in seconds. */
async function followPauses(post: Post, outbox: Outbox): Promise<{ pauses: number[]; end: Delivery }> {
  const pauses: number[] = []
  for (;;) {
    await post.quiet()
    const delivery = await post.only()
    if (delivery.next_attempt_at === null) return { pauses, end: delivery }
    const pauseMs = delivery.next_attempt_at - post.clock.now()
    assert.ok(pauseMs > 0, 'it is due and was not attempted')
    pauses.push(pauseMs / 1_000)
    await post.clock.leap(pauseMs)
    outbox.wake()
  }
}

describe('the outbox: messages, retries and time to live', () => {
  forEachEngine((engine) => {
    const { open } = setUpOutbox(engine)

    test('each verdict gives the delivery its state, and the record shows the same', async () => {
      const cases: { verdict: PushVerdict; state: string; error: string | null; disabled?: string }[] = [
        { verdict: { kind: 'sent', messageId: 'm/1' }, state: 'sent', error: null },
        { verdict: dead(), state: 'disabled', error: 'unregistered', disabled: 'unregistered' },
        {
          verdict: dead('invalid_token'),
          state: 'disabled',
          error: 'invalid_token',
          disabled: 'invalid_token',
        },
        { verdict: MISMATCH, state: 'disabled', error: 'sender_mismatch', disabled: 'sender_mismatch' },
        {
          verdict: { kind: 'drop', reason: '400 too big', alert: false },
          state: 'failed',
          error: DELIVERY_ERRORS.refused,
        },
        {
          verdict: { kind: 'drop', reason: '403 denied', alert: true },
          state: 'failed',
          error: DELIVERY_ERRORS.no_platform_key,
        },
        { verdict: retry(), state: 'pending', error: DELIVERY_ERRORS.unavailable },
        { verdict: HALT, state: 'pending', error: DELIVERY_ERRORS.paused },
      ]
      for (const { verdict, state, error, disabled } of cases) {
        const post = await open()
        await post.addDevices(1)
        const sender = new ScriptedSender()
        const { marked } = post.start(sender)
        await sendOneMessage(post)
        marked.length = 0
        sender.answer(() => verdict)
        const id = await post.notify({ job_id: 'job_1' })
        await post.quiet()
        const delivery = await post.only()
        assert.deepEqual(
          { state: delivery.state, attempts: delivery.attempts, error: delivery.last_error },
          { state, attempts: 1, error },
        )
        assert.equal(delivery.provider_message_id, verdict.kind === 'sent' ? 'm/1' : null)
        assert.equal(delivery.next_attempt_at !== null, state === 'pending')
        assert.deepEqual(await post.disabled(), disabled === undefined ? [] : [disabled])
        const noted = marked.map((mark) => [mark.notification_id, mark.job_id, mark.state, mark.attempts])
        assert.deepEqual(noted, [[id, 'job_1', state, 1]])
        await post.close()
      }
    })

    test('a message has its token, texts and data, and the id of the job or else of the notification as its tag', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender()
      post.start(sender)
      const id = await post.notify()
      await post.quiet()
      await post.notify({ job_id: 'job_1', dry_run: 1 })
      await post.quiet()
      const [first, second] = sender.given
      assert.deepEqual(first, {
        token: 'token-dev_000000',
        title: 'Ready',
        body: 'Look.',
        data: { n: '1' },
        tag: id,
        link: null,
        priority: 'high',
        ttlSeconds: 86_400,
        dryRun: false,
      })
      assert.deepEqual([second?.tag, second?.dryRun], ['job_1', true])
    })

    test('retries back off from ten seconds to ten minutes, with jitter, and end after an hour', async () => {
      const expected = [
        { jitter: 0, pauses: [10, 20, 40, 80, 160, 300, 300, 300, 300, 300, 300, 300, 300, 300, 300] },
        { jitter: 0.5, pauses: [15, 30, 60, 120, 240, 450, 450, 450, 450, 450, 450] },
        { jitter: 1, pauses: [20, 40, 80, 160, 320, 600, 600, 600, 600] },
      ]
      for (const { jitter, pauses } of expected) {
        const post = await open()
        post.jitter = jitter
        await post.addDevices(1)
        const sender = new ScriptedSender(() => retry())
        const { outbox } = post.start(sender)
        await post.notify()
        const followed = await followPauses(post, outbox)
        assert.deepEqual(followed.pauses, pauses)
        const spent = pauses.reduce((sum, pause) => sum + pause, 0)
        const [last = 0] = pauses.slice(-1)
        assert.ok(spent < 3_600 && spent + last >= 3_600)
        const { state, attempts, last_error } = followed.end
        assert.deepEqual(
          { state, attempts, last_error },
          {
            state: 'expired',
            attempts: pauses.length + 1,
            last_error: 'the push provider did not accept the message',
          },
        )
        assert.equal(sender.given.length, attempts)
        assert.equal(new Set(sender.given.map(({ tag }) => tag)).size, 1)
        await post.close()
      }
    })

    test('a pause is at least as long as the provider asks for, up to an hour, and does not count as time spent retrying', async () => {
      const post = await open()
      await post.addDevices(1)
      const asked = [90_000, 1_000, 24 * HOUR_MS, null]
      const sender = new ScriptedSender(() => {
        const afterMs = asked[sender.given.length - 1]
        return afterMs === undefined ? sender.sent() : retry(afterMs)
      })
      const { outbox } = post.start(sender)
      await post.notify()
      const { pauses, end } = await followPauses(post, outbox)
      assert.deepEqual(pauses, [90, 20, 3_600, 80])
      assert.equal(end.state, 'sent')
      assert.equal(end.last_error, null)
    })

    test('the hour of retries begins with the first retry, not during a halt', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender(() => HALT)
      const { outbox } = post.start(sender)
      await post.notify()
      await post.quiet()
      await post.clock.leap(3 * HOUR_MS)
      sender.answer(() => retry())
      await post.pass(10 * MINUTE_MS)
      assert.equal((await post.only()).state, 'pending')
      sender.answer(() => sender.sent())
      await post.pass(20 * MINUTE_MS)
      assert.deepEqual([(await post.only()).state, outbox.state], ['sent', 'ok'])
    })

    test('a retry that falls due between two rounds is not late', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender(() => (sender.given.length === 1 ? retry(12_000) : sender.sent()))
      post.start(sender)
      await post.notify()
      await post.quiet()
      const dueAtMs = post.clock.now() + 12_000
      while (sender.given.length < 2) {
        await post.clock.advance(1_000)
        await post.quiet()
      }
      assert.equal(post.clock.now(), dueAtMs)
    })

    test('a message is retried within its time to live, and carries the time that is left', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender(() => retry())
      const { outbox } = post.start(sender)
      await post.notify({ ttl_seconds: 100 })
      const { pauses, end } = await followPauses(post, outbox)
      assert.deepEqual(pauses, [10, 20, 40])
      assert.equal(end.state, 'expired')
      assert.deepEqual(
        sender.given.map(({ ttlSeconds }) => ttlSeconds),
        [100, 90, 70, 30],
      )
    })

    test('a message with a time to live of zero is attempted once', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender()
      post.start(sender)
      await post.notify({ ttl_seconds: 0 })
      await post.quiet()
      assert.equal((await post.only()).state, 'sent')
      await post.db.query(sql`delete from deliveries`)
      sender.answer(() => retry())
      await post.notify({ ttl_seconds: 0 })
      await post.quiet()
      assert.equal((await post.only()).state, 'expired')
      assert.deepEqual(
        sender.given.map(({ ttlSeconds }) => ttlSeconds),
        [0, 0],
      )
    })

    test('a message whose time to live ended while it waited is not sent', async () => {
      const post = await open()
      await post.addDevices(1)
      await post.notify({ ttl_seconds: 3_600 })
      await post.clock.leap(HOUR_MS)
      const sender = new ScriptedSender()
      post.start(sender)
      await post.quiet()
      const { state, last_error } = await post.only()
      assert.deepEqual({ state, last_error }, { state: 'expired', last_error: 'not delivered in time' })
      assert.equal(sender.given.length, 0)
    })

    test('a device that was deleted or disabled before the attempt gets nothing', async () => {
      const post = await open()
      const [gone = '', off = ''] = await post.addDevices(2)
      await post.notify()
      await deleteDevice(post.db, { id: gone, subject: 'ada' })
      await post.db.query(sql`update devices set disabled_at = 1, disabled_reason = 'unregistered' where id = ${off}`)
      const sender = new ScriptedSender()
      post.start(sender)
      await post.quiet()
      assert.deepEqual(await post.states(), { disabled: 2 })
      assert.equal(sender.given.length, 0)
    })

    test('a token that moved to another user does not get pending messages to its former owner', async () => {
      const post = await open()
      const [id = ''] = await post.addDevices(1, 'ada')
      await post.notify({ subject: 'ada' })
      const moved = {
        subject: 'bob',
        token: `token-${id}`,
        platform: 'web' as const,
        provider: 'fcm',
        atMs: post.clock.now(),
      }
      await upsertDevice(post.db, { id: 'dev_of_bob', ...moved })
      const sender = new ScriptedSender()
      post.start(sender)
      await post.quiet()
      assert.equal((await post.only()).state, 'disabled')
      assert.equal(sender.given.length, 0)
    })

    test('a device that registered again during the attempt is not disabled', async () => {
      const post = await open()
      const [seen = '', unseen = '', moved = ''] = await post.addDevices(3)
      const gate = Promise.withResolvers<void>()
      const sender = new ScriptedSender()
      post.start(sender)
      await sendOneMessage(post)
      sender.answer(async () => {
        await gate.promise
        return dead()
      })
      await post.notify()
      await post.quiet()
      assert.equal(sender.given.length, 4)
      const again = { platform: 'web' as const, provider: 'fcm', atMs: post.clock.now() }
      await upsertDevice(post.db, { id: 'dev_new', subject: 'ada', token: `token-${seen}`, ...again })
      await upsertDevice(post.db, { id: 'dev_of_bob', subject: 'bob', token: `token-${moved}`, ...again })
      gate.resolve()
      await post.quiet()
      const rows = await post.db.query<{ id: string }>(sql`select id from devices where disabled_at is not null`)
      assert.deepEqual(rows, [{ id: unseen }])
      assert.deepEqual(await post.states(), { disabled: 3 })
    })

    test('an idle outbox runs two statements every five seconds, whatever was delivered before', async () => {
      const post = await open()
      post.start(new ScriptedSender())
      await post.notifyMany(100)
      await post.pass(MINUTE_MS)
      assert.deepEqual(await post.states(), { sent: 100 })
      post.watched.forget()
      await post.pass(MINUTE_MS)
      const count = post.watched.count(/./)
      assert.ok(count > 0 && count <= 2 * (MINUTE_MS / IDLE_MS) + 1, `${count} statements in a minute`)
      await post.addDevices(1)
      post.watched.forget()
      await post.notify()
      await post.quiet()
      assert.equal((await post.states()).sent, 101, 'a wake-up starts a round at once')
    })
  })
})
