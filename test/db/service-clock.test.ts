import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Log } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { Node } from '../../src/db/nodes/node.ts'
import { countRunningNodes } from '../../src/db/nodes/node-store.ts'
import { databaseAt, SteppedClock } from '../support/clocked-database.ts'
import { type EngineUnderTest, forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { until } from '../support/until.ts'

const HOUR_MS = 3_600_000
const STEPS = { forward: 2 * HOUR_MS, back: -HOUR_MS, 'forward by seconds': 5_000, 'back by seconds': -5_000 }
/** Nodes agree within the time of an answer; here the time stands still meanwhile. */
const HALF_A_SECOND_MS = 500

/** The clock of a machine that can be suspended, and may be able to tell. */
class Machine extends ManualClock {
  lostMs = 0
  tells = false

  override elapsed(): number {
    return super.elapsed() - this.lostMs
  }

  suspendedMs(): number {
    return this.tells ? this.lostMs : 0
  }
}

/** Nodes on one database whose clock a test steps. `time` is the real time. */
class Cluster {
  readonly time = new ManualClock()
  readonly database = new SteppedClock(this.time)
  readonly machines: Machine[] = []
  readonly nodes: Node[] = []
  readonly log: { event: string; fields: object }[] = []
  readonly db: Database

  constructor(db: Database) {
    this.db = databaseAt(db, this.database)
  }

  static async start(engine: EngineUnderTest, nodes: number): Promise<Cluster> {
    const cluster = new Cluster(await engine.openDatabase())
    for (let count = 0; count < nodes; count++) await cluster.startNode()
    return cluster
  }

  async startNode(): Promise<Node> {
    const { node } = this.begin()
    return node
  }

  /** A start that may have to wait. */
  begin(): { node: Promise<Node>; machine: Machine } {
    const machine = new Machine(this.time.now())
    this.machines.push(machine)
    const warn: Log['warn'] = (fields: object, event: string) => void this.log.push({ event, fields })
    const log: Log = { debug: () => {}, info: () => {}, warn, error: warn }
    const node = Node.start({ db: this.db, clock: machine, random: systemRandom, log }).then((started) => {
      this.nodes.push(started)
      return started
    })
    return { node, machine }
  }

  /**
   * Time passes for all. Neither a start nor a heartbeat is in progress when it does: a start that has asked the database
   * in one half second would otherwise have its answer in the next one.
   */
  async pass(ms: number): Promise<void> {
    for (const machine of this.machines) await until(() => machine.sleeping > 0)
    for (let left = ms; left > 0; left -= HALF_A_SECOND_MS) {
      const step = Math.min(left, HALF_A_SECOND_MS)
      await this.time.advance(step)
      for (const machine of this.machines) await machine.advance(step)
      for (const machine of this.machines) await until(() => machine.sleeping > 0)
    }
  }

  /** A long time, in which each node has one heartbeat. */
  async leap(ms: number): Promise<void> {
    await this.time.leap(ms)
    for (const machine of this.machines) {
      await machine.leap(ms)
      await until(() => machine.sleeping > 0)
    }
  }

  /** All nodes agree on the real time. */
  assertRight(what: string): void {
    for (const node of this.nodes) assertNear(node.clock.now(), this.time.now(), what)
  }

  events(): string[] {
    return this.log.map(({ event }) => event)
  }

  async close(): Promise<void> {
    for (const node of this.forget()) await node.close()
  }

  /** From now on these nodes stand still, as if they had crashed. */
  forget(): Node[] {
    this.machines.splice(0)
    return this.nodes.splice(0)
  }
}

function assertNear(actual: number, expected: number, what: string, withinMs = 1_000): void {
  assert.ok(Math.abs(actual - expected) <= withinMs, `${what}: ${actual - expected} ms off`)
}

describe('a step of the database’s clock', () => {
  forEachEngine((engine) => {
    for (const [name, stepMs] of Object.entries(STEPS)) {
      test(`a step ${name} that lasts for ten seconds changes no node’s time, and each node logs it once`, async () => {
        const cluster = await Cluster.start(engine, 2)
        await cluster.pass(3_000)
        cluster.database.stepMs = stepMs
        for (let second = 0; second < 10; second++) {
          await cluster.pass(1_000)
          cluster.assertRight(`${second} s after the step`)
          for (const { clock, isAlive } of cluster.nodes) {
            assertNear(clock.calendar(), cluster.time.now(), 'the calendar waits for a minute')
            assert.ok(isAlive)
          }
        }
        assert.equal(await countRunningNodes(cluster.db), 2)
        assert.deepEqual(cluster.events(), ['clock.stepped', 'clock.stepped'])
        for (const { fields } of cluster.log)
          assertNear((fields as { stepMs: number }).stepMs, stepMs, 'the logged step')
        for (const { clock } of cluster.nodes) assertNear(clock.offsetMs, -stepMs, 'shown')
        cluster.database.stepMs = 0
        await cluster.pass(5_000)
        cluster.assertRight('after the step back')
        for (const { clock } of cluster.nodes) assert.equal(clock.offsetMs, 0)
        assert.equal(cluster.log.length, 4)
        await cluster.close()
      })
    }

    test('a node that starts during a short step waits until another node has noted its end, too', async () => {
      const cluster = await Cluster.start(engine, 1)
      await cluster.pass(2_000)
      cluster.database.stepMs = -HOUR_MS
      const { node } = cluster.begin()
      await cluster.pass(3_000)
      // The new node reads the clock again before the other one does.
      cluster.database.stepMs = 0
      await cluster.pass(1_000)
      assert.equal(cluster.nodes.length, 1)
      await cluster.pass(4_000)
      assertNear((await node).clock.now(), cluster.time.now(), 'the new node')
      await cluster.close()
    })

    test('a lasting step forward is followed by the calendar after a minute, and by the service’s time at most half a percent too fast', async () => {
      const cluster = await Cluster.start(engine, 2)
      cluster.database.stepMs = 2 * HOUR_MS
      await cluster.pass(55_000)
      for (const { clock } of cluster.nodes) assertNear(clock.calendar(), cluster.time.now(), 'the calendar waits')
      await cluster.pass(10_000)
      for (const { clock } of cluster.nodes)
        assertNear(clock.calendar(), cluster.database.now(), 'the calendar follows')
      cluster.assertRight('after a minute')
      for (let hour = 1; hour <= 10; hour++) {
        await cluster.leap(HOUR_MS)
        for (const { clock } of cluster.nodes) {
          const aheadMs = clock.now() - cluster.time.now()
          assert.ok(aheadMs >= 0 && aheadMs <= hour * 18_500, `${aheadMs} ms ahead after ${hour} h`)
        }
      }
      for (let day = 0; day < 17; day++) await cluster.leap(24 * HOUR_MS)
      for (const { clock } of cluster.nodes) {
        assertNear(clock.now(), cluster.database.now(), 'in the end it is the database’s time')
        assert.equal(clock.offsetMs, 0)
      }
      assert.deepEqual(cluster.events(), ['clock.stepped', 'clock.stepped'])
      await cluster.close()
    })

    test('after a lasting step back the service’s time goes on, a tenth slower at most, until it is the database’s', async () => {
      const cluster = await Cluster.start(engine, 2)
      cluster.database.stepMs = -HOUR_MS
      const [first] = cluster.nodes
      assert.ok(first)
      let beforeMs = first.clock.now()
      for (let minute = 0; minute < 30; minute++) {
        await cluster.leap(60_000)
        const nowMs = first.clock.now()
        assert.ok(nowMs - beforeMs >= 53_000, 'it does not stand still')
        beforeMs = nowMs
      }
      for (const { clock } of cluster.nodes)
        assertNear(clock.calendar(), cluster.database.now(), 'the calendar follows')
      for (let hour = 0; hour < 11; hour++) await cluster.leap(HOUR_MS)
      for (const { clock } of cluster.nodes) assertNear(clock.now(), cluster.database.now(), 'in the end')
      await cluster.close()
    })

    for (const stepMs of [2 * HOUR_MS, 2_800, -2_800]) {
      test(`two steps of ${stepMs} ms between the heartbeats of two nodes change no node’s time`, async () => {
        const cluster = await Cluster.start(engine, 1)
        await cluster.pass(1_500)
        await cluster.startNode()
        await cluster.pass(500)
        // The first node notes the step half a second later, and the second node only sees that it was noted.
        cluster.database.stepMs = stepMs
        await cluster.pass(1_000)
        cluster.database.stepMs = 0
        for (let half = 0; half < 12; half++) {
          await cluster.pass(500)
          cluster.assertRight(`${half} half seconds after the second step`)
        }
        for (const { clock } of cluster.nodes) assert.equal(clock.offsetMs, 0)
        await cluster.close()
      })
    }

    for (const [name, stepMs] of [
      ['forward', 2 * HOUR_MS],
      ['back', -HOUR_MS],
    ] as const) {
      test(`a node that starts after a step ${name} has the time of the others, whether the step was noted or not`, async () => {
        const cluster = await Cluster.start(engine, 1)
        cluster.database.stepMs = stepMs
        const early = cluster.begin()
        await cluster.pass(4_000)
        assertNear((await early.node).clock.now(), cluster.time.now(), 'the step was not noted')
        await cluster.pass(3_000)
        assertNear((await cluster.startNode()).clock.now(), cluster.time.now(), 'the step was noted')
        await cluster.pass(5_000)
        cluster.assertRight('later')
        await cluster.close()
      })
    }

    for (const stepMs of [5_000, -2_500]) {
      test(`a node that starts right after a step of ${stepMs} ms takes the time of the others, and no node notes it twice`, async () => {
        const cluster = await Cluster.start(engine, 1)
        await cluster.pass(2_000)
        cluster.database.stepMs = stepMs
        await cluster.startNode()
        await cluster.pass(6_000)
        cluster.assertRight('after two heartbeats')
        await cluster.pass(20_000)
        assert.deepEqual(
          cluster.nodes.map(({ clock }) => clock.version),
          [1, 1],
        )
        await cluster.close()
      })
    }

    test('a node that starts in a step shorter than a heartbeat changes the time of no other node', async () => {
      const cluster = await Cluster.start(engine, 1)
      const [first] = cluster.nodes
      await cluster.pass(500)
      cluster.database.stepMs = 5_000
      await cluster.startNode()
      await cluster.pass(500)
      cluster.database.stepMs = 0
      for (let second = 0; second < 20; second++) {
        await cluster.pass(1_000)
        assertNear(first?.clock.now() ?? 0, cluster.time.now(), 'the first node')
      }
      cluster.assertRight('the new node')
      assert.equal(first?.clock.version, 0)
      await cluster.close()
    })

    test('a service that starts again after a lasting step goes on with its own time', async () => {
      const cluster = await Cluster.start(engine, 1)
      cluster.database.stepMs = 2 * HOUR_MS
      await cluster.pass(5_000)
      await cluster.close()
      assertNear((await cluster.startNode()).clock.now(), cluster.time.now(), 'the new node')
      await cluster.close()
    })

    test('a service that was stopped does not go back in time if the clock was set back meanwhile', async () => {
      const cluster = await Cluster.start(engine, 1)
      await cluster.pass(3_000)
      await cluster.close()
      cluster.database.stepMs = -HOUR_MS
      const { clock } = await cluster.startNode()
      assertNear(clock.now(), cluster.time.now(), 'after a clean stop')
      assert.deepEqual(cluster.events(), ['clock.stepped'])
      await cluster.pass(3_000)
      const [crashed] = cluster.forget()
      cluster.database.stepMs = -3 * HOUR_MS
      const { node: next } = cluster.begin()
      await cluster.pass(5_000)
      assertNear((await next).clock.now(), cluster.time.now(), 'after a crash', 10_000)
      await crashed?.close()
      await cluster.close()
    })

    test('a node whose machine was suspended takes the time of the others, and is no step', async () => {
      const cluster = await Cluster.start(engine, 2)
      await cluster.pass(3_000)
      const [machine, other] = cluster.machines
      assert.ok(machine && other)
      await cluster.time.leap(600_000)
      await other.leap(600_000)
      await until(() => other.sleeping > 0)
      machine.lostMs = 600_000
      await machine.leap(600_000)
      await cluster.pass(6_000)
      cluster.assertRight('after the suspension')
      assert.deepEqual(cluster.events(), ['clock.corrected'])
      await cluster.close()
    })

    test('a node alone takes the database’s time if its machine was suspended as long', async () => {
      const cluster = await Cluster.start(engine, 1)
      await cluster.pass(3_000)
      const [machine] = cluster.machines
      assert.ok(machine)
      machine.tells = true
      await cluster.time.leap(600_000)
      machine.lostMs = 600_000
      await machine.leap(600_000)
      await cluster.pass(3_000)
      cluster.assertRight('after the suspension')
      assert.deepEqual(cluster.events(), ['clock.corrected'])
      await cluster.close()
    })
  })
})
