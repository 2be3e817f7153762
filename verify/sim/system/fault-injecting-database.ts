import { UnavailableError } from '../../../src/core/errors.ts'
import { Announcements, type Topic, type TopicListener } from '../../../src/db/announcements.ts'
import type { Database, Row, Transaction, TransactionOptions } from '../../../src/db/database.ts'
import type { Sql } from '../../../src/db/sql.ts'
import type { ArmedFaults } from '../faults/armed-faults.ts'
import type { FaultPoint } from '../faults/plan.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import { LockOrder } from './lock-order.ts'
import { never, type ProcessInstance } from './process-instance.ts'

export interface FaultInjectingDatabaseOptions {
  /** Shared by all processes. Committed data survives a crash. */
  store: Database
  instance: ProcessInstance
  time: VirtualTime
  faults: ArmedFaults
  /** Whether this process cannot reach the database now. */
  isDown: () => boolean
  /** Whether another transaction holds this job's lock, for a statement that skips locked jobs. */
  isLocked: (jobId: string) => boolean
  onWrongOrder: (what: string) => void
}

class Killed extends Error {}

const SKIPS_LOCKED_JOBS = /^\s*select\b[\s\S]*\bfrom jobs\b[\s\S]*for update skip locked/

/**
 * The database as one process sees it: it may be unavailable, slow, or lose the answer to a commit. When the process ends,
 * its open transaction is rolled back, its committed data stays, and its pending calls never resolve.
 */
export class FaultInjectingDatabase implements Database {
  readonly engine: Database['engine']
  readonly #options: FaultInjectingDatabaseOptions
  // Commits of other processes are not announced here, so that only polling finds them.
  readonly #announcements = new Announcements()

  constructor(options: FaultInjectingDatabaseOptions) {
    this.#options = options
    this.engine = options.store.engine
  }

  get now(): Sql {
    return this.#options.store.now
  }

  async query<R extends Row>(statement: Sql): Promise<R[]> {
    const { store } = this.#options
    const point = pointOf(statement.parts[0] ?? '')
    return this.#reach(point, async () => {
      const rows = await store.query<R>(statement)
      // Skip lease attempts that found nothing: a crash there is not interesting.
      if (point !== 'read' && rows.length > 0) await this.#pass('written')
      return rows
    })
  }

  transaction<T>(work: (tx: Transaction) => Promise<T>, options?: TransactionOptions): Promise<T> {
    const { store, instance } = this.#options
    return this.#reach('tx.begin', async () => {
      const topics = new Set<Topic>()
      let movesCursor = false
      const onStatement = ({ text }: Sql) => {
        movesCursor ||= text.includes('update webhook_cursor')
      }
      const runOrRollBack = (tx: Transaction) =>
        unlessKilled(instance, async () => {
          const done = await work(boundTo(this.#watched(tx, onStatement), instance, topics))
          await this.#pass('tx.commit')
          return done
        })
      const result = await store.transaction(runOrRollBack, options)
      if (!instance.alive) return never()
      await this.#pass('tx.committed')
      if (movesCursor) await this.#pass('cursor.moved')
      this.#announcements.publish(topics)
      return result
    })
  }

  #watched(tx: Transaction, onStatement: (statement: Sql) => void): Omit<Transaction, 'announce'> {
    const { isLocked, onWrongOrder } = this.#options
    const order = new LockOrder(tx)
    return {
      engine: tx.engine,
      query: async <R extends Row>(statement: Sql) => {
        onStatement(statement)
        const rows = await order.run<R>(statement, onWrongOrder)
        return SKIPS_LOCKED_JOBS.test(statement.text) ? rows.filter(({ id }) => !isLocked(String(id))) : rows
      },
      tryLock: (name) => tx.tryLock(name),
      tryQuery: (statement) => tx.tryQuery(statement),
      exec: (script) => tx.exec(script),
    }
  }

  listen(listener: TopicListener): () => void {
    return this.#announcements.listen(listener)
  }

  async ping(): Promise<void> {
    await this.#reach('read', () => this.#options.store.ping())
  }

  async close(): Promise<void> {}

  /** Never resolves once the process has ended. */
  async #reach<T>(point: FaultPoint, run: () => Promise<T>): Promise<T> {
    const { instance, isDown } = this.#options
    if (!instance.alive) return never()
    try {
      await this.#pass(point)
      if (isDown()) throw unavailable()
      const result = await run()
      await instance.untilAwake()
      return result
    } catch (error) {
      await instance.untilAwake()
      throw error
    }
  }

  async #pass(point: FaultPoint): Promise<void> {
    const { faults, instance, time } = this.#options
    const effect = faults.trigger(point)
    if (effect === undefined) return
    if (effect.kind === 'crash') instance.end()
    if (effect.kind === 'stall') await time.sleep(effect.ms)
    if (effect.kind === 'suspend') await instance.untilAwake()
    if (!instance.alive) throw new Killed()
    if (effect.kind === 'unavailable' || effect.kind === 'unknown') throw unavailable()
  }
}

/** Leases and heartbeats have a point of their own: they are so frequent that they would use up all faults armed for writes. */
function pointOf(text: string): FaultPoint {
  if (/^\s*select/i.test(text)) return 'read'
  return /^\s*(?:with|update deliveries|update job_checks set lease_id|insert into nodes)/i.test(text)
    ? 'lease'
    : 'write'
}

function unavailable(): UnavailableError {
  return new UnavailableError('The database is unavailable')
}

/** Rolls a transaction back at the moment its process ends, so that the other processes can go on. */
function unlessKilled<T>(instance: ProcessInstance, run: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    if (!instance.alive) return reject(new Killed())
    const forget = instance.onEnd(() => reject(new Killed()))
    run().then(resolve, reject).finally(forget)
  })
}

function boundTo(tx: Omit<Transaction, 'announce'>, instance: ProcessInstance, topics: Set<Topic>): Transaction {
  const whileAlive = async <T>(run: () => Promise<T>): Promise<T> => {
    if (!instance.alive) return never()
    const result = await run()
    return instance.alive ? result : never()
  }
  return {
    engine: tx.engine,
    query: (statement) => whileAlive(() => tx.query(statement)),
    tryLock: (name) => whileAlive(() => tx.tryLock(name)),
    tryQuery: (statement) => whileAlive(() => tx.tryQuery(statement)),
    exec: (script) => whileAlive(() => tx.exec(script)),
    announce: (topic) => void topics.add(topic),
  }
}
