import type { AuditOrigin } from '../audit/record-audit.ts'
import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import { UnavailableError } from '../core/errors.ts'
import type { Log } from '../core/log.ts'
import { type Random, uuidFrom } from '../core/random.ts'
import type { Database, Transaction } from '../db/database.ts'
import type { Node } from '../db/nodes/node.ts'
import type { BulkAction, ItemResult, OperationActions, SteppedAction } from './bulk-actions.ts'
import {
  addFailures,
  addProgress,
  completeOperation,
  findItems,
  findOperation,
  finishOperation,
  leaseOperation,
  lockOperation,
  noteFailing,
  type OperationItem,
  type OperationRow,
  postponeOperation,
  recordItems,
  releaseOperation,
} from './operation-store.ts'

const EVERY_MS = 1_000
const AT_ONCE = 2
/** How long an operation rests after a step that failed for an internal reason. */
const AFTER_FAILURE_MS = 60_000
const FAILED_INSIDE = 'it failed for an internal reason'

interface OperationRunnerOptions {
  db: Database
  /** Holds the leases of this process. */
  node: Pick<Node, 'id'>
  clock: Clock
  random: Random
  log: Log
  actions: OperationActions
  /** The only operation to work on; absent: all. */
  only?: string
}

/** `done`: nothing is left to do now. `lost`: another node has taken the operation, or it was stopped. */
type Progress = 'left' | 'done' | 'lost'

interface Running {
  operation: OperationRow
  by: AuditOrigin
  token: string
}

/**
 * Processes operations, two at a time on each node, at most one of them long. The effects of a batch and the operation's
 * position commit together, under the lock of the operation: after a crash, or with two nodes at once, no item is done twice.
 */
export class OperationRunner {
  readonly #options: OperationRunnerOptions
  readonly #loop: Loop
  readonly #running = new Map<OperationRow, Promise<void>>()

  constructor(options: OperationRunnerOptions) {
    const { clock, log } = options
    this.#options = options
    this.#loop = startLoop({
      clock,
      everyMs: EVERY_MS,
      run: (signal) => this.#round(signal),
      onError: (error) => log.warn({ err: error }, 'operation.interrupted'),
    })
  }

  wake(): void {
    this.#loop.wake()
  }

  async close(): Promise<void> {
    await this.#loop.stop()
    await Promise.all(this.#running.values())
  }

  async #round(signal: AbortSignal): Promise<void> {
    const { db, node, clock, random, only } = this.#options
    // If another node takes an operation away, this node waits for the next round before it takes one again.
    for (let places = AT_ONCE - this.#running.size; places > 0; places--) {
      const token = uuidFrom(random)
      const running = [...this.#running.keys()]
      const operation = await leaseOperation(db, { token, node: node.id, nowMs: clock.now(), only, running })
      if (!operation) return
      this.#running.set(operation, this.#work({ operation, by: JSON.parse(operation.origin), token }, signal))
    }
  }

  async #work(running: Running, signal: AbortSignal): Promise<void> {
    const { db, log } = this.#options
    const { operation, token } = running
    let progress: Progress = 'left'
    try {
      while (!signal.aborted && progress === 'left') {
        progress = await this.#batch(running, signal)
        await new Promise(setImmediate)
      }
    } catch (error) {
      if (!signal.aborted) log.warn({ err: error }, 'operation.interrupted')
    }
    // If the database is unavailable, this node takes the operation again later.
    await releaseOperation(db, { id: operation.id, token }).catch(() => {})
    this.#running.delete(operation)
    // Not if the lease was lost: two nodes whose heartbeats both fail would take the operation from each other without a pause.
    if (progress === 'done') this.#loop.wake()
  }

  async #batch(running: Running, signal: AbortSignal): Promise<Progress> {
    const { actions, db, clock, log } = this.#options
    const { id, action: name } = running.operation
    const action = actions[name]
    if (!('batch' in action)) return this.#step(running, action, signal)
    try {
      return await this.#apply(running, action, action.batch)
    } catch (error) {
      // The database is unavailable, or the process is stopping: the operation continues later.
      if (error instanceof UnavailableError) throw error
      log.warn({ operationId: id, err: error }, 'operation.batch_failed')
    }
    // One faulty item made the whole batch fail. Now each item runs alone, so that only the faulty one fails.
    for (let n = 0; n < action.batch; n++) {
      try {
        const progress = await this.#apply(running, action, 1)
        if (progress !== 'left') return progress
      } catch (error) {
        if (error instanceof UnavailableError) throw error
        await db.transaction(async (tx) => {
          const [item] = await this.#take(tx, running, 1)
          if (item) await this.#record(tx, running, [item], [{ error: FAILED_INSIDE }], clock.now())
        })
      }
    }
    return 'left'
  }

  /** A step that fails is tried again later, for as long as it takes: such an operation is never left half done. */
  async #step(running: Running, action: SteppedAction, signal: AbortSignal): Promise<Progress> {
    const { db, clock, log } = this.#options
    const { token, by } = running
    const { id } = running.operation
    try {
      const [[item], operation] = await Promise.all([findItems(db, { id, after: 0, limit: 1 }), findOperation(db, id)])
      if (!item || !operation) return 'lost'
      const { created_at: startedAtMs, failing_since: failingSinceMs } = operation
      const wanted = { objectId: item.object_id, operationId: id, by, startedAtMs, failingSinceMs, signal }
      const result = await action.transact(wanted, async (tx, step) => {
        if (!(await this.#lock(tx, running))) return null
        const stepped = await step()
        const { done, next, failures = [], isFailing } = stepped
        await addFailures(tx, { id, failures })
        if (isFailing !== undefined) await noteFailing(tx, { id, isFailing, atMs: clock.now() })
        if (done > 0) await addProgress(tx, { id, done })
        if (next === 'end') await completeOperation(tx, { id, atMs: clock.now() })
        else if (next === 'stop') await finishOperation(tx, { id, state: 'cancelled', atMs: clock.now() })
        else if (next !== 'more') await postponeOperation(tx, { id, token, dueAtMs: clock.now() + next.waitMs })
        return stepped
      })
      result?.afterCommit?.()
      if (result === null) return 'lost'
      return result.next === 'more' ? 'left' : 'done'
    } catch (error) {
      if (error instanceof UnavailableError || signal.aborted) throw error
      log.warn({ operationId: id, err: error }, 'operation.batch_failed')
      await postponeOperation(db, { id, token, dueAtMs: clock.now() + AFTER_FAILURE_MS })
      return 'done'
    }
  }

  async #apply(running: Running, action: BulkAction, batch: number): Promise<Progress> {
    const { db, clock } = this.#options
    if ('ask' in action) {
      const items = await db.transaction((tx) => this.#take(tx, running, batch))
      const results = await action.ask(items.map(({ object_id }) => object_id))
      return db.transaction(async (tx) => {
        const same = await this.#take(tx, running, items.length)
        const isSame = same[0]?.place === items[0]?.place
        return isSame ? this.#record(tx, running, same, results, clock.now()) : 'lost'
      })
    }
    const { progress, afterCommit } = await action.transact(async (tx, apply) => {
      const items = await this.#take(tx, running, batch)
      const results = items.length === 0 ? [] : await apply(items, running.by)
      return {
        progress: await this.#record(tx, running, items, results, clock.now()),
        afterCommit: results.flatMap((result) => (result.afterCommit ? [result.afterCommit] : [])),
      }
    })
    for (const call of afterCommit) call()
    return progress
  }

  /** The next items, if this worker still holds the operation and it was not stopped. */
  async #take(tx: Transaction, running: Running, batch: number): Promise<OperationItem[]> {
    const held = await this.#lock(tx, running)
    return held ? findItems(tx, { id: held.id, after: held.position, limit: batch }) : []
  }

  /** Null when another worker has taken the operation, or it was stopped. */
  async #lock(tx: Transaction, { operation, token }: Running): Promise<OperationRow | null> {
    const held = await lockOperation(tx, operation.id)
    return held && held.lease_token === token && held.state === 'running' ? held : null
  }

  async #record(
    tx: Transaction,
    { operation: { id, total } }: Running,
    items: readonly OperationItem[],
    results: readonly ItemResult[],
    atMs: number,
  ): Promise<Progress> {
    const last = items.at(-1)
    if (!last) return 'lost'
    const notes = items.flatMap(({ place }, at) => {
      const { error = null, skipped = null } = results[at] ?? {}
      return error === null && skipped === null ? [] : [{ place, error, skipped }]
    })
    await recordItems(tx, { id, position: last.place, notes })
    if (last.place < total) return 'left'
    await finishOperation(tx, { id, state: 'done', atMs })
    return 'done'
  }
}
