import { type Loop, startLoop } from '../../core/async/loop.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { type Random, uuidFrom } from '../../core/random.ts'
import type { Database } from '../database.ts'
import { DatabaseClock } from './database-clock.ts'
import { beat, removeNode } from './node-store.ts'

export const NODE_HEARTBEAT_MS = 2_500
/** The leases of a crashed node are free after this time. */
const NODE_LIFE_MS = 10_000
/** The node gives up its leases this long before other nodes may take them. */
const MARGIN_MS = 1_000

/**
 * This process among the nodes that share the database. Its heartbeat holds its leases, and keeps its clock in step with
 * the database's. `close` frees the leases at once.
 */
export class Node {
  readonly id: string
  readonly clock: DatabaseClock
  readonly #db: Database
  readonly #loop: Loop
  #aliveUntilElapsedMs: number

  private constructor(parts: { id: string; clock: DatabaseClock; db: Database; log: Log; beganAtElapsedMs: number }) {
    const { id, clock, db, log, beganAtElapsedMs } = parts
    this.id = id
    this.clock = clock
    this.#db = db
    this.#aliveUntilElapsedMs = beganAtElapsedMs + NODE_LIFE_MS - MARGIN_MS
    this.#loop = startLoop({
      clock,
      everyMs: NODE_HEARTBEAT_MS,
      run: () => this.#beat(),
      onError: (error) => log.warn({ err: error }, 'heartbeat.failed'),
    })
  }

  /** Rejects when the database cannot be reached. */
  static async start(context: { db: Database; clock: Clock; random: Random; log: Log }): Promise<Node> {
    const { db, clock: own, random, log } = context
    const id = uuidFrom(random)
    const beganAtElapsedMs = own.elapsed()
    const databaseMs = await beat(db, { id, lifeMs: NODE_LIFE_MS })
    return new Node({ id, clock: new DatabaseClock(own, databaseMs), db, log, beganAtElapsedMs })
  }

  /** False if the last heartbeat is so old that other nodes may have taken the leases of this node. */
  get isAlive(): boolean {
    return this.clock.elapsed() < this.#aliveUntilElapsedMs
  }

  async close(): Promise<void> {
    await this.#loop.stop()
    // If the database is unavailable, the row stays until it expires.
    await removeNode(this.#db, this.id).catch(() => {})
  }

  async #beat(): Promise<void> {
    const askedAtElapsedMs = this.clock.elapsed()
    const databaseMs = await beat(this.#db, { id: this.id, lifeMs: NODE_LIFE_MS })
    this.clock.synchronize(databaseMs, askedAtElapsedMs)
    this.#aliveUntilElapsedMs = askedAtElapsedMs + NODE_LIFE_MS - MARGIN_MS
    // The database was slow, so the next heartbeat is due already.
    if (this.clock.elapsed() - askedAtElapsedMs >= NODE_HEARTBEAT_MS) this.#loop.wake()
  }
}
