import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import type { BulkAction, OperationActions, SteppedAction } from '../../src/operations/bulk-actions.ts'
import { OperationRunner } from '../../src/operations/operation-runner.ts'
import { findOperation, insertOperation, type OperationAction } from '../../src/operations/operation-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { until } from '../support/until.ts'

/** Actions that note their items. A check waits for `release`, like one of many jobs at a slow runtime. */
function fakeActions(db: Database) {
  const done: string[] = []
  const released = Promise.withResolvers<void>()
  const short: BulkAction = {
    batch: 1,
    transact: (work) =>
      db.transaction((tx) =>
        work(tx, async (items) => {
          done.push(...items.map(({ object_id }) => object_id))
          return items.map(() => ({ error: null }))
        }),
      ),
  }
  const check: BulkAction = {
    batch: 1,
    ask: async (ids) => {
      await released.promise
      done.push(...ids)
      return ids.map(() => ({ error: null }))
    },
  }
  const erase: SteppedAction = {
    transact: (_wanted, work) => db.transaction((tx) => work(tx, async () => ({ done: 0, next: 'end' }))),
  }
  const actions: OperationActions = { cancel: short, retry: short, replay: short, check, erase, recover: erase }
  return { actions, done, release: released.resolve }
}

async function create(db: Database, actions: Record<string, OperationAction>): Promise<void> {
  const by = { actor: { kind: 'user', id: 'root' }, address: null, requestId: null } as const
  for (const [id, action] of Object.entries(actions)) {
    await db.transaction((tx) => insertOperation(tx, { id, action, by, objectIds: [`item of ${id}`], atMs: 1 }))
  }
}

function startRunner(db: Database, actions: OperationActions): OperationRunner {
  const clock = new ManualClock()
  return new OperationRunner({ db, node: { id: 'n' }, clock, random: systemRandom, log: silentLog, actions })
}

describe('the operations of one node', () => {
  forEachEngine((engine) => {
    test('a cancel does not wait for checks that were created before it, and at most one of those runs at a time', async () => {
      const db = await engine.openDatabase()
      const { actions, done, release } = fakeActions(db)
      const stateOf = async (id: string) => (await findOperation(db, id))?.state
      await create(db, { opr_1: 'check', opr_2: 'check' })
      const runner = startRunner(db, actions)
      runner.wake()
      await until(async () => (await stateOf('opr_1')) === 'running')
      await create(db, { opr_3: 'cancel', opr_4: 'retry' })
      runner.wake()
      await until(async () => (await stateOf('opr_4')) === 'done')
      assert.deepEqual(done, ['item of opr_3', 'item of opr_4'])
      assert.deepEqual([await stateOf('opr_1'), await stateOf('opr_2')], ['running', 'pending'])
      release()
      await until(async () => (await stateOf('opr_2')) === 'done')
      assert.deepEqual(done, ['item of opr_3', 'item of opr_4', 'item of opr_1', 'item of opr_2'])
      await runner.close()
    })

    test('short operations go before long ones that wait longer', async () => {
      const db = await engine.openDatabase()
      const { actions, done, release } = fakeActions(db)
      await create(db, { opr_1: 'check', opr_2: 'replay', opr_3: 'cancel' })
      const runner = startRunner(db, actions)
      release()
      runner.wake()
      await until(() => done.length === 3)
      // The first of two short ones that ends makes room for the long one.
      assert.notEqual(done[0], 'item of opr_1')
      await runner.close()
    })
  })
})
