import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { findBacklog } from '../../src/push/outbox/delivery-list-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { dead, HALT, HOUR_MS, MINUTE_MS, MISMATCH, retry, setUpOutbox } from '../support/outbox-setup.ts'
import { IDLE_MS, type Post } from '../support/post.ts'
import { MEMORY_PROVIDER, ScriptedSender } from '../support/scripted-sender.ts'

const HALT_MS = 30_000

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

describe('the outbox: faults of providers, credentials and devices', () => {
  forEachEngine((engine) => {
    const { open } = setUpOutbox(engine)

    test('a halt loses no delivery and disables no device; the outbox reports it and resumes by itself', async () => {
      const post = await open()
      await post.addDevices(30)
      const sender = new ScriptedSender(() => HALT)
      const { outbox } = post.start(sender)
      await post.notify()
      await post.quiet()
      assert.deepEqual([outbox.state, outbox.fault], ['halted', 'wrong project'])
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
      assert.deepEqual([outbox.state, outbox.fault], ['ok', null])
      assert.deepEqual(await post.states(), { sent: 60 })
      assert.deepEqual(await post.disabled(), [])
    })

    test('refused credentials are reported before the first delivery, and so is that they are accepted again', async () => {
      const post = await open()
      const sender = new ScriptedSender()
      sender.credentialsFault = 'the push credentials are refused'
      const { outbox } = post.start(sender)
      await post.pass(IDLE_MS)
      assert.deepEqual([outbox.state, outbox.fault], ['halted', sender.credentialsFault])
      sender.credentialsFault = null
      await post.pass(HALT_MS + IDLE_MS)
      assert.deepEqual([outbox.state, outbox.fault], ['ok', null])
    })

    test('credentials of another project disable no device and lose no delivery, and are reported until a message gets through', async () => {
      const post = await open()
      const users = await addUsers(post, 30)
      const sender = new ScriptedSender(() => MISMATCH)
      const { outbox } = post.start(sender)
      await notifyAll(post, users)
      await post.pass(2 * HOUR_MS)
      assert.equal(outbox.state, 'halted')
      assert.match(String(outbox.fault), /another project/)
      assert.deepEqual([await post.states(), await post.disabled()], [{ pending: 30 }, []])
      assert.ok(sender.given.length <= 30 + (2 * HOUR_MS) / HALT_MS, `${sender.given.length} attempts`)
      // An answer about one device says nothing about the others.
      sender.answer(() => dead())
      await post.pass(2 * HALT_MS)
      assert.equal(outbox.state, 'halted')
      sender.answer(() => sender.sent())
      await post.pass(HOUR_MS + HALT_MS)
      assert.deepEqual([outbox.state, outbox.fault], ['ok', null])
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
      assert.equal(outbox.fault, null)
      await notifyAll(post, users.slice(1))
      assert.deepEqual(await post.states(), { disabled: 3, pending: 7 })
      assert.match(String(outbox.fault), /no more devices are disabled/)
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
      assert.match(String(outbox.fault), /wait/)
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
      assert.deepEqual([outbox.state, outbox.fault], ['ok', null])
      const doubted = await post.db.query(sql`
        select id from devices where called_dead_at is not null and disabled_at is null`)
      assert.deepEqual(doubted, [])
    })

    test('dead devices are all disabled within two days when most devices are really dead, and no others are', async () => {
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
      assert.deepEqual([outbox.state, outbox.fault], ['ok', null])
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
        assert.deepEqual([outbox.state, outbox.fault], ['ok', null])
        assert.equal((await post.disabled()).length, day + 1)
      }
    })

    test('a platform that the provider cannot reach is reported until a message to it gets through', async () => {
      const post = await open()
      await post.addDevices(1)
      const sender = new ScriptedSender(() => ({ kind: 'drop', reason: '401 no APNs key', alert: true }))
      const { outbox } = post.start(sender)
      await post.notify()
      await post.quiet()
      assert.equal(outbox.state, 'dropping')
      assert.equal(outbox.fault, 'messages to web are lost: 401 no APNs key')
      sender.answer(() => sender.sent())
      await post.notify()
      await post.quiet()
      assert.deepEqual([outbox.state, outbox.fault], ['ok', null])
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

    test('deliveries without credentials are parked, and sent once there are credentials', async () => {
      const post = await open()
      await post.addDevices(3)
      const without = post.start([])
      assert.equal(without.outbox.state, 'no_credentials')
      assert.match(String(without.outbox.fault), /credentials/)
      await post.notify({ job_id: 'job_1' })
      await post.quiet()
      assert.deepEqual(await post.states(), { no_credentials: 3 })
      assert.deepEqual(await findBacklog(post.db), { depth: 0, due_at: null, parked: 3 })
      const noted = without.marked.map(({ job_id, state, attempts }) => [job_id, state, attempts])
      assert.deepEqual(noted, Array(3).fill(['job_1', 'no_credentials', 0]))
      await post.clock.leap(2 * HOUR_MS)
      await post.quiet()
      await without.outbox.close()
      const sender = new ScriptedSender()
      const { outbox } = post.start(sender)
      await post.quiet()
      assert.deepEqual(await post.states(), { sent: 3 })
      assert.deepEqual([sender.given.length, outbox.fault], [3, null])
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
        [other, 'no_credentials', 0],
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
  })
})
