import assert from 'node:assert/strict'
import { afterEach, describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { sql } from '../../src/db/sql.ts'
import { deleteDevice, upsertDevice } from '../../src/push/device-store.ts'
import { DELIVERY_ERRORS } from '../../src/push/outbox/delivery-judge.ts'
import { findBacklog } from '../../src/push/outbox/delivery-list-store.ts'
import type { Outbox } from '../../src/push/outbox/outbox.ts'
import type { PushVerdict } from '../../src/push/push-provider.ts'
import { countByTime } from '../../src/stats/stats-rollup.ts'
import { findCounts } from '../../src/stats/stats-store.ts'
import { forEachEngine, type Store } from '../support/engines.ts'
import { type Delivery, IDLE_MS, Post } from '../support/post.ts'
import { MEMORY_PROVIDER, ScriptedSender } from '../support/scripted-sender.ts'
import { until } from '../support/until.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const LEASE_MS = 60_000
const HALT_MS = 30_000
const MAX_IN_FLIGHT = 1_000

const retry = (afterMs: number | null = null): PushVerdict => ({ kind: 'retry', reason: '503 UNAVAILABLE', afterMs })
const dead = (reason = 'unregistered'): PushVerdict => ({ kind: 'disable', reason, credentialsFault: null })
const MISMATCH: PushVerdict = {
  kind: 'disable',
  reason: 'sender_mismatch',
  credentialsFault: 'devices are of another project',
}
const HALT: PushVerdict = { kind: 'halt', reason: 'wrong project' }

/** Sends nothing before its gate is opened. */
function gatedSender(): { sender: ScriptedSender; gate: PromiseWithResolvers<void> } {
  const gate = Promise.withResolvers<void>()
  const sender: ScriptedSender = new ScriptedSender(async () => {
    await gate.promise
    return sender.sent()
  })
  return { sender, gate }
}

describe('the outbox', () => {
  forEachEngine((engine) => {
    let shared: Promise<Database> | undefined
    const posts: Post[] = []

    /** One database for all tests, empty for each. */
    async function open(): Promise<Post> {
      shared ??= engine.openDatabase()
      const db = await shared
      for (const table of ['deliveries', 'notifications', 'devices']) {
        await db.transaction((tx) => tx.exec(`delete from ${table}`))
      }
      const post = new Post(db)
      posts.push(post)
      return post
    }

    /** Sends one message, so that the outbox trusts reports of dead devices. */
    async function sendOneMessage(post: Post): Promise<void> {
      await post.addDevices(1, 'bob')
      const id = await post.notify({ subject: 'bob' })
      await post.quiet()
      const rows = await post.db.query(sql`
        delete from deliveries where notification_id = ${id} and state = 'sent' returning state`)
      assert.equal(rows.length, 1)
    }

    afterEach(async () => {
      for (const post of posts.splice(0)) await post.close()
    })

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

    test('a halt loses no delivery and disables no device; the outbox reports it and resumes by itself', async () => {
      const post = await open()
      await post.addDevices(30)
      const sender = new ScriptedSender(() => HALT)
      const { outbox } = post.start(sender)
      await post.notify()
      await post.quiet()
      assert.deepEqual([outbox.state, outbox.trouble], ['halted', 'wrong project'])
      const attempted = sender.given.length
      assert.equal(attempted, 30)
      await post.notify()
      await post.pass(5 * MINUTE_MS)
      const probes = sender.given.length - attempted
      assert.ok(probes >= 5 && probes <= (5 * MINUTE_MS) / HALT_MS, `${probes} attempts to find out`)
      assert.deepEqual(await post.states(), { pending: 60 })
      await post.clock.leap(2 * HOUR_MS)
      await post.quiet()
      // A missing answer does not end the halt.
      sender.answer(() => retry())
      await post.pass(HALT_MS + IDLE_MS)
      assert.equal(outbox.state, 'halted')
      sender.answer(() => sender.sent())
      await post.pass(HALT_MS + 15 * MINUTE_MS)
      assert.deepEqual([outbox.state, outbox.trouble], ['ok', null])
      assert.deepEqual(await post.states(), { sent: 60 })
      assert.deepEqual(await post.disabled(), [])
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

    /** One device for each of that many users; the names of the users. */
    async function addUsers(post: Post, count: number): Promise<string[]> {
      const users = Array.from({ length: count }, (_, n) => `user-${n}`)
      for (const user of users) await post.addDevices(1, user)
      return users
    }

    async function notifyAll(post: Post, users: readonly string[]): Promise<void> {
      await post.notify({ subjects: users })
      await post.quiet()
    }

    test('credentials of another project disable no device and lose no delivery, and are reported until a message gets through', async () => {
      const post = await open()
      const users = await addUsers(post, 30)
      const sender = new ScriptedSender(() => MISMATCH)
      const { outbox } = post.start(sender)
      await notifyAll(post, users)
      await post.pass(2 * HOUR_MS)
      assert.equal(outbox.state, 'halted')
      assert.match(String(outbox.trouble), /another project/)
      assert.deepEqual([await post.states(), await post.disabled()], [{ pending: 30 }, []])
      assert.ok(sender.given.length <= 30 + (2 * HOUR_MS) / HALT_MS, `${sender.given.length} attempts`)
      // An answer about one device says nothing about the others.
      sender.answer(() => dead())
      await post.pass(2 * HALT_MS)
      assert.equal(outbox.state, 'halted')
      sender.answer(() => sender.sent())
      await post.pass(HOUR_MS + HALT_MS)
      assert.deepEqual([outbox.state, outbox.trouble], ['ok', null])
      assert.deepEqual([await post.states(), await post.disabled()], [{ sent: 30 }, []])
    })

    test('tokens of another project do not delay other users, as long as few users have them', async () => {
      const post = await open()
      await post.addDevices(50, 'mallory')
      const [id = ''] = await post.addDevices(1, 'ada')
      const sender = new ScriptedSender(({ token }) => (token === `token-${id}` ? sender.sent() : MISMATCH))
      const { outbox } = post.start(sender)
      await post.notify({ subject: 'mallory' })
      await post.pass(5 * MINUTE_MS)
      assert.deepEqual([outbox.state, await post.states(), await post.disabled()], ['ok', { pending: 50 }, []])
      await post.notify({ subject: 'ada' })
      await post.quiet()
      assert.equal((await post.states()).sent, 1)
    })

    test('a dead device is disabled at once, even before the first success, as long as few users have one', async () => {
      const post = await open()
      const users = await addUsers(post, 10)
      const sender = new ScriptedSender(() => dead())
      const { outbox } = post.start(sender)
      await notifyAll(post, users.slice(0, 1))
      assert.deepEqual([await post.states(), await post.disabled()], [{ disabled: 1 }, ['unregistered']])
      assert.equal(outbox.trouble, null)
      await notifyAll(post, users.slice(1))
      assert.deepEqual(await post.states(), { disabled: 3, pending: 7 })
      assert.match(String(outbox.trouble), /no more devices are disabled/)
      await post.clock.leap(HOUR_MS)
      await post.pass(IDLE_MS)
      assert.equal((await post.disabled()).length, 3)
    })

    test('a provider that reports every device dead for an hour disables only a few, and all deliveries arrive afterwards', async () => {
      const post = await open()
      const users = await addUsers(post, 60)
      const sender = new ScriptedSender()
      const { outbox } = post.start(sender)
      await notifyAll(post, users)
      sender.answer(() => dead())
      await notifyAll(post, users)
      assert.equal(outbox.state, 'holding')
      assert.match(String(outbox.trouble), /wait/)
      for (let minutes = 0; minutes < 60; minutes += 10) {
        await post.clock.leap(10 * MINUTE_MS)
        await post.pass(IDLE_MS)
      }
      const { length: disabled } = await post.disabled()
      assert.ok(disabled <= 6, `${disabled} disabled`)
      assert.deepEqual(await post.states(), { sent: 60, disabled, pending: 60 - disabled })
      sender.answer(() => sender.sent())
      await post.clock.leap(HOUR_MS)
      await post.pass(MINUTE_MS)
      assert.deepEqual(await post.states(), { sent: 120 - disabled, disabled })
      assert.deepEqual([outbox.state, outbox.trouble], ['ok', null])
      const doubted = await post.db.query(sql`
        select id from devices where called_dead_at is not null and disabled_at is null`)
      assert.deepEqual(doubted, [])
    })

    test('when most devices are really dead, all of them and no others are disabled within two days', async () => {
      const post = await open()
      const users = await addUsers(post, 40)
      const isAlive = (token: string) => Number(token.slice(-6)) % 10 < 3
      const sender = new ScriptedSender(({ token }) => (isAlive(token) ? sender.sent() : dead()))
      const { outbox } = post.start(sender)
      await notifyAll(post, users)
      assert.equal(outbox.state, 'holding')
      for (let hours = 0; hours < 26; hours += 13) {
        await post.clock.leap(13 * HOUR_MS)
        await post.notify({ subject: 'user-0' })
        await post.pass(IDLE_MS)
        await notifyAll(post, users)
      }
      assert.equal((await post.disabled()).length, 28)
      const alive = await post.db.query<{ token: string }>(sql`select token from devices where disabled_at is null`)
      assert.ok(alive.every(({ token }) => isAlive(token)))
      await post.clock.leap(2 * HOUR_MS)
      await notifyAll(post, users)
      assert.deepEqual([outbox.state, outbox.trouble], ['ok', null])
    })

    test('fifty bad tokens of one user are disabled, and devices of other users are not held back', async () => {
      const post = await open()
      const [gone = '', ...others] = await addUsers(post, 5)
      await post.addDevices(50, 'mallory')
      const sender = new ScriptedSender(({ token }) =>
        ['1', '2', '3', '4'].some((n) => token === `token-dev_00000${n}`) ? sender.sent() : dead(),
      )
      const { outbox } = post.start(sender)
      await notifyAll(post, others)
      await notifyAll(post, ['mallory', gone])
      assert.equal(outbox.state, 'ok')
      assert.equal((await post.disabled()).length, 51)
    })

    test('a platform that the provider cannot reach is reported until a message to it gets through', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender(() => ({ kind: 'drop', reason: '401 no APNs key', alert: true }))
      const { outbox } = post.start(sender)
      await post.notify()
      await post.quiet()
      assert.equal(outbox.state, 'dropping')
      assert.match(String(outbox.trouble), /^messages to web are lost: /)
      sender.answer(() => sender.sent())
      await post.notify()
      await post.quiet()
      assert.deepEqual([outbox.state, outbox.trouble], ['ok', null])
    })

    test('a dry run disables no device, has no message id, and proves nothing about devices', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender()
      const { outbox } = post.start(sender)
      await post.notify({ dry_run: 1 })
      await post.quiet()
      const { state, provider_message_id } = await post.only()
      assert.deepEqual({ state, provider_message_id }, { state: 'sent', provider_message_id: null })
      await post.db.query(sql`delete from deliveries`)
      sender.answer(() => MISMATCH)
      await post.notify({ dry_run: 1 })
      await post.quiet()
      const refused = await post.only()
      assert.deepEqual([refused.state, refused.last_error], ['failed', 'sender_mismatch'])
      assert.deepEqual([await post.disabled(), outbox.state], [[], 'ok'])
      await post.notify()
      await post.quiet()
      assert.deepEqual([await post.states(), await post.disabled()], [{ failed: 1, pending: 1 }, []])
    })

    test('devices that die one by one raise no alert, even when little is sent', async () => {
      const post = await open()
      const users = await addUsers(post, 12)
      const gone = new Set<string>()
      const sender = new ScriptedSender(({ token }) => (gone.has(token) ? dead() : sender.sent()))
      const { outbox } = post.start(sender)
      for (let day = 0; day < 6; day++) {
        gone.add(`token-dev_00000${day}`)
        await notifyAll(post, users)
        await post.clock.leap(5 * HOUR_MS)
        await post.pass(IDLE_MS)
        assert.deepEqual([outbox.state, outbox.trouble], ['ok', null])
        assert.equal((await post.disabled()).length, day + 1)
      }
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

    test('refused credentials are reported before the first delivery, and so is that they are accepted again', async () => {
      const post = await open()
      const sender = new ScriptedSender()
      sender.credentialsFault = 'the push credentials are refused'
      const { outbox } = post.start(sender)
      await post.pass(IDLE_MS)
      assert.deepEqual([outbox.state, outbox.trouble], ['halted', sender.credentialsFault])
      sender.credentialsFault = null
      await post.pass(HALT_MS + IDLE_MS)
      assert.deepEqual([outbox.state, outbox.trouble], ['ok', null])
    })

    test('after stopLeasing no delivery is leased, and attempts in flight continue', async () => {
      const post = await open()
      await post.addDevices(2)
      const { sender, gate } = gatedSender()
      const { outbox } = post.start(sender)
      await post.notify()
      await post.quiet()
      outbox.stopLeasing()
      await post.notify()
      await post.pass(IDLE_MS)
      gate.resolve()
      await post.quiet()
      assert.deepEqual([await post.states(), sender.isClosed], [{ sent: 2, pending: 2 }, false])
    })

    test('without credentials deliveries are parked, and sent once there are credentials', async () => {
      const post = await open()
      await post.addDevices(3)
      const without = post.start([])
      assert.equal(without.outbox.state, 'no_credentials')
      assert.match(String(without.outbox.trouble), /credentials/)
      await post.notify({ job_id: 'job_1' })
      await post.quiet()
      assert.deepEqual(await post.states(), { no_credentials: 3 })
      assert.deepEqual(await findBacklog(post.db), { depth: 0, due_at: null, parked: 3 })
      const noted = without.marked.map(({ job_id, state, attempts }) => [job_id, state, attempts])
      assert.deepEqual(noted, Array(3).fill(['job_1', 'no_credentials', 0]))
      await post.pass(2 * HOUR_MS)
      await without.outbox.close()
      const sender = new ScriptedSender()
      const { outbox } = post.start(sender)
      await post.quiet()
      assert.deepEqual(await post.states(), { sent: 3 })
      assert.deepEqual([sender.given.length, outbox.trouble], [3, null])
    })

    test('a node with credentials finds within a minute what another node without credentials parked', async () => {
      const post = await open()
      await post.addDevices(1)
      const without = post.start([])
      await post.notify()
      await post.quiet()
      const sender = new ScriptedSender()
      const { outbox } = post.start(sender)
      await post.quiet()
      assert.deepEqual(await post.states(), { sent: 1 })
      post.outboxes.splice(post.outboxes.indexOf(outbox), 1)
      await post.notify()
      await post.quiet()
      assert.deepEqual(await post.states(), { sent: 1, no_credentials: 1 })
      await without.outbox.close()
      await post.pass(MINUTE_MS + IDLE_MS)
      assert.deepEqual(await post.states(), { sent: 2 })
      await outbox.close()
    })

    test('each delivery goes through the provider of its device, and waits while that one has no credentials', async () => {
      const post = await open()
      const [one = ''] = await post.addDevices(1)
      const [other = ''] = await post.addDevices(1, 'ada', MEMORY_PROVIDER)
      const first = new ScriptedSender()
      const without = post.start(first)
      await post.notify()
      await post.pass(5 * MINUTE_MS)
      assert.deepEqual(await post.states(), { sent: 1, no_credentials: 1 })
      const noted = without.marked.map(({ device_id, state, attempts }) => [device_id, state, attempts])
      assert.deepEqual(noted.sort(), [
        [one, 'sent', 1],
        [other, 'no_credentials', 1],
      ])
      await without.outbox.close()
      const second = new ScriptedSender(undefined, MEMORY_PROVIDER)
      post.start([new ScriptedSender(), second])
      await post.quiet()
      assert.deepEqual(await post.states(), { sent: 2 })
      const tokens = [first, second].map(({ given }) => given.map(({ token }) => token))
      assert.deepEqual(tokens, [[`token-${one}`], [`token-${other}`]])
    })

    test('a message that got through one provider proves nothing about the credentials of another', async () => {
      const post = await open()
      await post.addDevices(1)
      await post.addDevices(1, 'ada', MEMORY_PROVIDER)
      post.start([new ScriptedSender(), new ScriptedSender(() => MISMATCH, MEMORY_PROVIDER)])
      await post.notify()
      await post.quiet()
      assert.deepEqual([await post.states(), await post.disabled()], [{ sent: 1, pending: 1 }, []])
    })

    test('two nodes share the work, each message is sent once, and neither leases more than its limit', async () => {
      const store: Store = await engine.createStore()
      const [first, second] = [await store.connect(), await store.connect()]
      await migrate(first)
      const post = new Post(first)
      posts.push(post)
      const gate = Promise.withResolvers<void>()
      const held = async (sender: ScriptedSender) => {
        await gate.promise
        return sender.sent()
      }
      const senders = [new ScriptedSender(), new ScriptedSender()] as const
      for (const sender of senders) sender.answer(() => held(sender))
      const one = post.start(senders[0])
      const two = post.start(senders[1], second)
      const count = MAX_IN_FLIGHT + 500
      await post.notifyMany(count)
      // Once: the second node polls. More time would expire the leases of the messages in flight.
      await post.pass(IDLE_MS)
      await until(() => {
        for (const { outbox } of [one, two]) assert.ok(outbox.inFlight <= MAX_IN_FLIGHT)
        return one.outbox.inFlight + two.outbox.inFlight === count
      })
      gate.resolve()
      while (one.outbox.inFlight + two.outbox.inFlight > 0) await post.quiet()
      assert.deepEqual(await post.states(), { sent: count })
      assert.ok(senders.every(({ given }) => given.length >= 500))
      const tokens = senders.flatMap(({ given }) => given.map(({ token }) => token))
      assert.equal(tokens.length, count)
      assert.equal(new Set(tokens).size, count)
    })

    test('new credentials are used from now on, and attempts in flight finish with the old ones', async () => {
      const store: Store = await engine.createStore()
      const db = await store.connect()
      await migrate(db)
      const post = new Post(db)
      const gate = Promise.withResolvers<void>()
      const [old, fresh] = [new ScriptedSender(), new ScriptedSender()]
      old.answer(async () => {
        await gate.promise
        return old.sent()
      })
      const { outbox } = post.start(old)
      await post.addDevices(1)
      await post.notify()
      while (outbox.inFlight === 0) await post.pass(IDLE_MS)
      outbox.useSenders([fresh])
      await post.notify()
      while (fresh.given.length === 0) await post.pass(IDLE_MS)
      assert.equal(old.isClosed, false)
      gate.resolve()
      while (outbox.inFlight > 0) await post.quiet()
      assert.deepEqual(await post.states(), { sent: 2 })
      assert.deepEqual([old.given.length, fresh.given.length], [1, 1])
      while (!old.isClosed) await post.pass(IDLE_MS)
      assert.equal(fresh.isClosed, false)
    })

    test('two fast nodes send each of 500 deliveries exactly once', async () => {
      const store: Store = await engine.createStore()
      const [first, second] = [await store.connect(), await store.connect()]
      await migrate(first)
      const post = new Post(first)
      posts.push(post)
      const senders = [new ScriptedSender(), new ScriptedSender()]
      post.start(senders[0] ?? [])
      post.start(senders[1] ?? [], second)
      await post.notifyMany(500)
      while ((await post.states()).sent !== 500) await post.pass(IDLE_MS)
      const tokens = senders.flatMap(({ given }) => given.map(({ token }) => token))
      assert.equal(tokens.length, 500)
      assert.equal(new Set(tokens).size, 500)
    })

    test('a delivery that a node leased and never marked is sent again after the lease, under the same tag; a late mark changes nothing', async () => {
      const post = await open()
      await post.addDevices(1)
      const gate = Promise.withResolvers<void>()
      const stuck = new ScriptedSender(async () => {
        await gate.promise
        return dead()
      })
      const old = post.start(stuck)
      await post.notify()
      await post.quiet()
      assert.equal(stuck.given.length, 1)
      // It leases nothing more, as if it had crashed, but its answer still arrives.
      const closing = old.outbox.close()
      const sender = new ScriptedSender()
      const next = post.start(sender)
      await post.pass(LEASE_MS - IDLE_MS)
      assert.equal(sender.given.length, 0, 'the lease holds')
      await post.pass(IDLE_MS)
      assert.equal(sender.given.length, 1)
      assert.equal(sender.given[0]?.tag, stuck.given[0]?.tag)
      gate.resolve()
      await closing
      assert.deepEqual([(await post.only()).state, await post.disabled()], ['sent', []])
      assert.deepEqual(old.marked, [])
      assert.deepEqual(
        next.marked.map(({ state, attempts }) => [state, attempts]),
        [['sent', 2]],
      )
    })

    test('a short outage of the database sends no message twice', async () => {
      const post = await open()
      let outages = 0
      const flaky: Database = {
        ...post.db,
        transaction: (work) => {
          if (outages-- > 0) return Promise.reject(new UnavailableError('The database is unavailable'))
          return post.db.transaction(work)
        },
      }
      const sender = new ScriptedSender()
      const { marked } = post.start(sender, flaky)
      outages = 3
      await post.notifyMany(5)
      await post.pass(2 * LEASE_MS)
      assert.deepEqual(await post.states(), { sent: 5 })
      assert.deepEqual([sender.given.length, marked.length], [5, 5])
    })

    test('a delivery that was marked only after an outage of the database is in the statistics, at the time of its mark', async () => {
      const post = await open()
      for (const table of ['stats', 'stats_cursors']) await post.db.transaction((tx) => tx.exec(`delete from ${table}`))
      let isDown = true
      const flaky: Database = {
        ...post.db,
        transaction: (work) => {
          if (isDown) return Promise.reject(new UnavailableError('The database is unavailable'))
          return post.db.transaction(work)
        },
      }
      const count = async () => {
        while (await countByTime(post.db, post.clock.now()));
      }
      await post.addDevices(1)
      const sender = new ScriptedSender()
      const { marked } = post.start(sender, flaky)
      await post.notify()
      await post.pass(LEASE_MS / 2)
      await count()
      isDown = false
      const upAgainMs = post.clock.now()
      await post.pass(2 * IDLE_MS)
      assert.deepEqual([(await post.only()).state, sender.given.length], ['sent', 1])
      await count()
      const counts = await findCounts(post.db, { bucketMs: MINUTE_MS, fromMs: 0 })
      assert.deepEqual(
        counts.map(({ name, count: pushes }) => [name, pushes]),
        [['push:sent', 1]],
      )
      const [mark] = marked
      const [row] = await post.db.query<{ updated_at: number }>(sql`select updated_at from deliveries`)
      assert.ok(mark && mark.at >= upAgainMs)
      assert.equal(row?.updated_at, mark.at)
    })

    test('a delivery whose sender rejects is attempted again after the lease', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender(() => Promise.reject(new Error('it never does')))
      post.start(sender)
      await post.notify()
      await post.quiet()
      assert.equal((await post.only()).state, 'pending')
      sender.answer(() => sender.sent())
      await post.pass(LEASE_MS + IDLE_MS)
      assert.deepEqual([(await post.only()).state, sender.given.length], ['sent', 2])
    })

    test('closing leases no delivery, waits for attempts in flight and marks them', async () => {
      const post = await open()
      await post.addDevices(3)
      const { sender, gate } = gatedSender()
      const { outbox } = post.start(sender)
      await post.notify()
      await post.quiet()
      assert.equal(outbox.inFlight, 3)
      let isClosed = false
      const closing = outbox.close().then(() => {
        isClosed = true
      })
      await post.notify()
      await post.pass(IDLE_MS)
      assert.deepEqual([isClosed, sender.isClosed, sender.given.length], [false, false, 3])
      gate.resolve()
      await closing
      assert.equal(sender.isClosed, true)
      assert.deepEqual(await post.states(), { sent: 3, pending: 3 })
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
  })
})
