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
    test('a node uses the database’s clock instead of its own, and corrects small errors of its own', async () => {
      const database = new ManualClock()
      const own = new ManualClock(database.now() + 31 * MINUTE_MS)
      const db = databaseAt(await engine.openDatabase(), database)
      const node = await startNode(db, own)
      assert.equal(node.clock.now(), database.now())
      assert.equal(await expiryOf(db, node), database.now() + 10_000)
      // The machine's clock is slow.
      await database.advance(3_300)
      await own.advance(2_500)
      await until(() => node.clock.now() === database.now())
      assert.equal(node.clock.offsetMs, 0)
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
      assert.equal(node.holdsLeaseOf(clock.now()), true)
      assert.equal(node.holdsLeaseOf(clock.now() - 1_000), false, 'another node may have taken that lease meanwhile')
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
