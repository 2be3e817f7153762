import { UnavailableError } from '../../../src/core/errors.ts'
import { Announcements, type Topic, type TopicListener } from '../../../src/db/announcements.ts'
import type { Database, Row, Transaction, TransactionOptions } from '../../../src/db/database.ts'
import type { Sql } from '../../../src/db/sql.ts'
import type { ArmedFaults } from '../faults/armed-faults.ts'
import type { Point } from '../faults/plan.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import { type Life, never } from './process-instance.ts'

export interface MortalDatabaseOptions {
  /** Shared by all processes; what is committed there stays. */
  store: Database
  life: Life
  time: VirtualTime
  faults: ArmedFaults
  /** Whether this process cannot reach the store now. */
  isDown: () => boolean
}

class Killed extends Error {}

/**
 * The store as one process sees it: it may be out of reach, slow, or silent about what it did. When the process ends, its
 * open transaction is rolled back and nothing it waits for ever comes; what it had committed stays.
 */
export class MortalDatabase implements Database {
  readonly engine: Database['engine']
  readonly #options: MortalDatabaseOptions
  // Commits of another process are not heard of here: that is what the polls are for.
  readonly #announcements = new Announcements()

  constructor(options: MortalDatabaseOptions) {
    this.#options = options
    this.engine = options.store.engine
  }

  async query<R extends Row>(statement: Sql): Promise<R[]> {
    const { store } = this.#options
    const point = pointOf(statement.parts[0] ?? '')
    return this.#reach(point, async () => {
      const rows = await store.query<R>(statement)
      // A lease that found nothing is no moment worth dying at.
      if (point !== 'read' && rows.length > 0) await this.#pass('written')
      return rows
    })
  }

  transaction<T>(work: (tx: Transaction) => Promise<T>, options?: TransactionOptions): Promise<T> {
    const { store, life } = this.#options
    return this.#reach('tx.begin', async () => {
      const topics = new Set<Topic>()
      const mortally = (tx: Transaction) =>
        unlessKilled(life, async () => {
          const done = await work(mortal(tx, life, topics))
          await this.#pass('tx.commit')
          return done
        })
      const result = await store.transaction(mortally, options)
      if (!life.alive) return never()
      await this.#pass('tx.committed')
      this.#announcements.publish(topics)
      return result
    })
  }

  listen(listener: TopicListener): () => void {
    return this.#announcements.listen(listener)
  }

  async ping(): Promise<void> {
    await this.#reach('read', () => this.#options.store.ping())
  }

  async close(): Promise<void> {}

  /** Before, during and after: the dead get no answer, whatever it would have been. */
  async #reach<T>(point: Point, run: () => Promise<T>): Promise<T> {
    const { life, isDown } = this.#options
    if (!life.alive) return never()
    try {
      await this.#pass(point)
      if (isDown()) throw outOfReach()
      const result = await run()
      await life.awake()
      return result
    } catch (error) {
      await life.awake()
      throw error
    }
  }

  async #pass(point: Point): Promise<void> {
    const { faults, life, time } = this.#options
    const effect = faults.strike(point)
    if (effect === undefined) return
    if (effect.kind === 'crash') life.end()
    if (effect.kind === 'stall') await time.sleep(effect.ms)
    if (effect.kind === 'suspend') await life.awake()
    if (!life.alive) throw new Killed()
    if (effect.kind === 'unavailable' || effect.kind === 'unknown') throw outOfReach()
  }
}

/** Leases are taken every second, found or not; a fault in store for a write should not always meet one. */
function pointOf(text: string): Point {
  if (/^\s*select/i.test(text)) return 'read'
  return /^\s*(?:with|update deliveries|update jobs set lease_token =)/i.test(text) ? 'lease' : 'write'
}

function outOfReach(): UnavailableError {
  return new UnavailableError('The database is unavailable')
}

/** Ends a transaction in progress the moment its process ends, so that the store is free for the others. */
function unlessKilled<T>(life: Life, run: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    if (!life.alive) return reject(new Killed())
    const forget = life.onEnd(() => reject(new Killed()))
    run().then(resolve, reject).finally(forget)
  })
}

function mortal(tx: Transaction, life: Life, topics: Set<Topic>): Transaction {
  const unlessDead = async <T>(run: () => Promise<T>): Promise<T> => {
    if (!life.alive) return never()
    const result = await run()
    return life.alive ? result : never()
  }
  return {
    engine: tx.engine,
    query: (statement) => unlessDead(() => tx.query(statement)),
    tryLock: (name) => unlessDead(() => tx.tryLock(name)),
    exec: (script) => unlessDead(() => tx.exec(script)),
    announce: (topic) => void topics.add(topic),
  }
}
