import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { openMigratedDatabase } from '../../src/cli/startup/open-database.ts'
import { UnavailableError } from '../../src/core/errors.ts'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { DatabaseClock } from '../../src/db/nodes/database-clock.ts'
import { Node } from '../../src/db/nodes/node.ts'
import { trimNodes } from '../../src/db/nodes/node-store.ts'
import { sql } from '../../src/db/sql.ts'
import { databaseAt } from '../support/clocked-database.ts'
import { forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { until } from '../support/until.ts'

const MINUTE_MS = 60_000

async function startNode(db: Database, clock: ManualClock): Promise<Node> {
  return Node.start({ db, clock, random: systemRandom, log: silentLog })
}

async function expiryOf(db: Database, { id }: Node): Promise<number | undefined> {
  const [row] = await db.query<{ expires_at: number }>(sql`select expires_at from nodes where id = ${id}`)
  return row?.expires_at
}

describe('a node', () => {
  forEachEngine((engine) => {
    test('a node uses the database’s clock instead of its own, and stays synchronized with it', async () => {
      const database = new ManualClock()
      const own = new ManualClock(database.now() + 31 * MINUTE_MS)
      const db = databaseAt(await engine.openDatabase(), database)
      const node = await startNode(db, own)
      assert.equal(node.clock.now(), database.now())
      assert.equal(await expiryOf(db, node), database.now() + 10_000)
      // The database's clock is set back by a minute. The next heartbeat notices.
      await database.advance(-MINUTE_MS)
      await own.advance(2_500)
      await database.advance(2_500)
      await own.advance(2_500)
      await until(async () => (await expiryOf(db, node)) === database.now() + 10_000)
      await until(() => node.clock.now() === database.now())
      await node.close()
    })

    test('a node is alive while its heartbeat is written, and gives up its leases a second before other nodes take them', async () => {
      const clock = new ManualClock()
      const inner = databaseAt(await engine.openDatabase(), clock)
      let isDown = false
      const db: Database = {
        ...inner,
        get now() {
          return inner.now
        },
        query: (statement) =>
          isDown ? Promise.reject(new UnavailableError('The database is unavailable')) : inner.query(statement),
      }
      const node = await startNode(db, clock)
      isDown = true
      await clock.advance(8_999)
      assert.equal(node.isAlive, true)
      await clock.advance(1)
      assert.equal(node.isAlive, false)
      isDown = false
      // The next heartbeat comes ten seconds after the first one.
      await clock.advance(1_000)
      await until(() => node.isAlive)
      assert.equal(await expiryOf(db, node), clock.now() + 10_000)
      await node.close()
    })

    test('a node removes its row when it stops; rows of crashed nodes are removed later', async () => {
      const clock = new ManualClock()
      const db = databaseAt(await engine.openDatabase(), clock)
      const stopped = await startNode(db, clock)
      const crashed = await startNode(db, clock)
      await stopped.close()
      assert.equal(await expiryOf(db, stopped), undefined)
      const expiresAtMs = clock.now() + 10_000
      await trimNodes(db, { beforeMs: expiresAtMs, limit: 10 })
      assert.equal(await expiryOf(db, crashed), expiresAtMs)
      await trimNodes(db, { beforeMs: expiresAtMs + 1, limit: 10 })
      assert.equal(await expiryOf(db, crashed), undefined)
      await crashed.close()
    })

    test('a node does not start without its database', async () => {
      const db = await engine.openDatabase()
      const failing: Database = { ...databaseAt(db, new ManualClock()), query: () => Promise.reject(new Error('no')) }
      await assert.rejects(startNode(failing, new ManualClock()), /no/)
    })
  })

  test('the next start on SQLite frees the leases of a crashed process at once', async () => {
    const dataDir = await mkdtemp(join(tmpdir(), 'test-nodes-'))
    try {
      const first = await openMigratedDatabase({ engine: 'sqlite', dataDir })
      await startNode(first.db, new ManualClock())
      const nodes = sql`select id from nodes`
      assert.equal((await first.db.query(nodes)).length, 1)
      await first.close()
      const second = await openMigratedDatabase({ engine: 'sqlite', dataDir })
      assert.deepEqual(await second.db.query(nodes), [])
      await second.close()
    } finally {
      await rm(dataDir, { recursive: true, force: true })
    }
  })
})

describe('the database’s clock on a node', () => {
  test('the database’s clock on a node keeps its time while the answers agree with it, and is corrected only as far as needed', async () => {
    const own = new ManualClock(1_000)
    const clock = new DatabaseClock(own, 500_000)
    await own.advance(100)
    assert.equal(clock.now(), 500_100)
    // Read at some moment between the question at 1,100 and the answer at 1,400.
    await own.advance(300)
    clock.synchronize(500_200, 1_100)
    assert.equal(clock.now(), 500_400)
    // The database's clock was set forward: no earlier than this.
    clock.synchronize(600_000, 1_100)
    assert.equal(clock.now(), 600_000)
    // It was set back: no later than this.
    clock.synchronize(400_000, 1_100)
    assert.equal(clock.now(), 400_300)
  })
})
