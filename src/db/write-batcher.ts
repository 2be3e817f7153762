import { UnavailableError } from '../core/errors.ts'
import { LockTimeout } from './database.ts'

/**
 * In place of a result: the commit left this item out, because another transaction holds a lock that it needs. Items with
 * the same `by`, such as those of one owner, wait together.
 */
export class Locked {
  readonly by: string

  constructor(by: string) {
    this.by = by
  }
}

export interface WriteBatcherOptions<Item, Result> {
  /**
   * Commits all items together or none, but for those that are `Locked`; returns one result per item. `waits`: the items
   * were left out before. Now the commit waits for their locks.
   */
  commit: (items: Item[], how: { waits: boolean }) => Promise<(Result | Locked)[]>
  /** Bytes that a waiting item takes in memory. */
  sizeOf: (item: Item) => number
  maxBatch: number
  maxBatchBytes: number
  maxWaiting: number
  maxWaitingBytes: number
  /** How many batches may commit at the same time. */
  commitsAtOnce: number
  /** Called with the number of items of each new batch. */
  onBatch?: (size: number) => void
}

/** How many groups of locked items may wait at the same time, each for at most 2 s and on a connection of its own. */
const LOCKS_AT_ONCE = 3
/** How many locks items may wait for. */
const MAX_LOCKS = 1_000
/**
 * How many items may wait for locks, and how many of them for one lock. An owner of all jobs loses no callback when a commit
 * stalls for a second. 4,000 callbacks may be in progress, so that there is room left for those that meet no lock.
 */
export const MAX_LOCKED = { items: 3_000, together: 2_000 } as const

interface Waiting<Item, Result> {
  item: Item
  size: number
  resolve: (result: Result) => void
  reject: (error: unknown) => void
}

/**
 * Commits in groups: while one transaction is written, the next items are collected, so that they share one wait for the
 * disk. When the service is idle, items do not wait. A batch that fails is split in halves until only the faulty item
 * fails. Items that meet a lock leave their batch and are committed beside the batches, those with the same `by` together,
 * so that a lock delays no others. If the lock stays, the items that the commit leaves out again fail.
 */
export class WriteBatcher<Item, Result> {
  readonly #options: WriteBatcherOptions<Item, Result>
  #waiting: Waiting<Item, Result>[] = []
  #waitingBytes = 0
  #underWay = 0
  /** Left their batch because of a lock, by what they wait for. */
  readonly #locked = new Map<string, Waiting<Item, Result>[]>()
  /** What the groups that are being committed wait for. */
  readonly #awaited = new Set<string>()
  #lockedItems = 0
  #unnamedLocks = 0
  #idle: PromiseWithResolvers<void> | undefined

  constructor(options: WriteBatcherOptions<Item, Result>) {
    this.#options = options
  }

  get waiting(): number {
    return this.#waiting.length
  }

  submit(item: Item): Promise<Result> {
    const { sizeOf, maxWaiting, maxWaitingBytes } = this.#options
    const size = sizeOf(item)
    if (this.#waiting.length >= maxWaiting || this.#waitingBytes + size > maxWaitingBytes) {
      return Promise.reject(new UnavailableError('Too much is waiting to be written'))
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ item, size, resolve, reject })
      this.#waitingBytes += size
      // Start after this turn of the event loop, so that all items of this turn share the first batch.
      if (this.#waiting.length === 1) setImmediate(() => this.#startBatches())
    })
  }

  /** Resolves once everything submitted so far has ended. */
  async drain(): Promise<void> {
    if (this.#isIdle) return
    this.#idle ??= Promise.withResolvers()
    await this.#idle.promise
  }

  get #isIdle(): boolean {
    return this.#underWay + this.#waiting.length + this.#awaited.size + this.#locked.size === 0
  }

  #startBatches(): void {
    while (this.#underWay < this.#options.commitsAtOnce && this.#waiting.length > 0) {
      this.#underWay += 1
      const batch = this.#takeBatch()
      this.#options.onBatch?.(batch.length)
      void this.#commit(batch).then(() => {
        this.#underWay -= 1
        this.#startBatches()
      })
    }
    for (const [by, group] of this.#locked) {
      if (this.#awaited.size >= LOCKS_AT_ONCE) break
      if (this.#awaited.has(by)) continue
      const batch = this.#takeFrom(group)
      this.#lockedItems -= batch.length
      // What is left waits behind the other locks.
      this.#locked.delete(by)
      if (group.length > 0) this.#locked.set(by, group)
      this.#awaited.add(by)
      void this.#commitLocked(batch).then(() => {
        this.#awaited.delete(by)
        this.#startBatches()
      })
    }
    if (!this.#isIdle) return
    this.#idle?.resolve()
    this.#idle = undefined
  }

  #takeBatch(): Waiting<Item, Result>[] {
    const batch = this.#takeFrom(this.#waiting)
    for (const { size } of batch) this.#waitingBytes -= size
    return batch
  }

  /** Takes the first items that fit into one commit. */
  #takeFrom(waiting: Waiting<Item, Result>[]): Waiting<Item, Result>[] {
    const { maxBatch, maxBatchBytes } = this.#options
    let count = 0
    let bytes = 0
    for (const { size } of waiting) {
      if (count === maxBatch || (count > 0 && bytes + size > maxBatchBytes)) break
      count += 1
      bytes += size
    }
    return waiting.splice(0, count)
  }

  async #commit(batch: Waiting<Item, Result>[]): Promise<void> {
    const error = await this.#attempt(batch, { waits: false })
    if (error instanceof LockTimeout) for (const waiting of batch) this.#leaveBatch(waiting)
    else if (error !== undefined) await this.#split(batch, error, (half) => this.#commit(half))
  }

  /** If the locks stay, the others of the group are committed without the items that are still locked, which fail. */
  async #commitLocked(group: Waiting<Item, Result>[]): Promise<void> {
    const fail = ({ reject }: Waiting<Item, Result>) => reject(new LockTimeout(undefined))
    let error = await this.#attempt(group, { waits: true, onLocked: fail })
    if (error instanceof LockTimeout && group.length > 1) {
      error = await this.#attempt(group, { waits: false, onLocked: fail })
    }
    if (error instanceof LockTimeout) for (const { reject } of group) reject(error)
    else if (error !== undefined) await this.#split(group, error, (half) => this.#commitLocked(half))
  }

  async #split(
    batch: Waiting<Item, Result>[],
    error: unknown,
    commit: (half: Waiting<Item, Result>[]) => Promise<void>,
  ): Promise<void> {
    // If the store cannot be reached, no item is at fault, and smaller batches would only cause more requests.
    if (batch.length === 1 || error instanceof UnavailableError) {
      for (const { reject } of batch) reject(error)
      return
    }
    const half = batch.length >> 1
    await commit(batch.slice(0, half))
    await commit(batch.slice(half))
  }

  /** Items that name no lock wait each for itself. */
  #leaveBatch(waiting: Waiting<Item, Result>, by = `unnamed ${this.#unnamedLocks++}`): void {
    const group = this.#locked.get(by) ?? []
    const isFull = group.length === 0 ? this.#locked.size >= MAX_LOCKS : group.length >= MAX_LOCKED.together
    if (isFull || this.#lockedItems >= MAX_LOCKED.items) {
      waiting.reject(new LockTimeout(undefined))
      return
    }
    group.push(waiting)
    this.#lockedItems += 1
    this.#locked.set(by, group)
  }

  /** Resolves with the error of a commit that failed. */
  async #attempt(
    batch: Waiting<Item, Result>[],
    { waits, onLocked }: { waits: boolean; onLocked?: (waiting: Waiting<Item, Result>) => void },
  ): Promise<unknown> {
    try {
      const results = await this.#options.commit(
        batch.map(({ item }) => item),
        { waits },
      )
      batch.forEach((waiting, index) => {
        const result = results[index] as Result | Locked
        if (!(result instanceof Locked)) waiting.resolve(result)
        else if (onLocked) onLocked(waiting)
        else this.#leaveBatch(waiting, result.by)
      })
      return undefined
    } catch (error) {
      return error ?? new Error('The commit failed')
    }
  }
}
