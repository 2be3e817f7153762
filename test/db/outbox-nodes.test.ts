import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { sql } from '../../src/db/sql.ts'
import { countByTime } from '../../src/stats/stats-rollup.ts'
import { findCounts } from '../../src/stats/stats-store.ts'
import { forEachEngine, type Store } from '../support/engines.ts'
import { dead, MINUTE_MS, setUpOutbox } from '../support/outbox-setup.ts'
import { IDLE_MS, Post } from '../support/post.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { until } from '../support/until.ts'

const LEASE_MS = 60_000
const MAX_IN_FLIGHT = 1_000

/** Sends nothing before its gate is opened. */
function gatedSender(): { sender: ScriptedSender; gate: PromiseWithResolvers<void> } {
  const gate = Promise.withResolvers<void>()
  const sender: ScriptedSender = new ScriptedSender(async () => {
    await gate.promise
    return sender.sent()
  })
  return { sender, gate }
}

describe('the outbox: leases, several nodes, outages of the database and closing', () => {
  forEachEngine((engine) => {
    const { open, posts } = setUpOutbox(engine)

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
      await post.db.query(sql`delete from stats`)
      await post.db.query(sql`update stats_cursors set position = 0`)
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

    test('no delivery is leased after stopLeasing, and attempts in flight continue', async () => {
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

    test('an outbox that closes leases no delivery, waits for attempts in flight and marks them', async () => {
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
  })
})
