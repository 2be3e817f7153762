import { UnavailableError } from '../core/errors.ts'
import { LockTimeout } from './database.ts'

/** In place of a result: the commit left this item out, because another transaction holds a lock that it needs. */
export const LOCKED: unique symbol = Symbol('locked')

export interface WriteBatcherOptions<Item, Result> {
  /**
   * Commits all items together or none, but for those that are `LOCKED`; returns one result per item. An item that is
   * committed alone waits for its locks.
   */
  commit: (items: Item[], how: { isAlone: boolean }) => Promise<(Result | typeof LOCKED)[]>
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

/** How many items may wait for their locks at the same time, each for at most 2 s. */
const ALONE_AT_ONCE = 4
/** More items than this would get their turn after their senders have given up. */
const MAX_LOCKED = 200

interface Waiting<Item, Result> {
  item: Item
  size: number
  resolve: (result: Result) => void
  reject: (error: unknown) => void
}

/**
 * Commits in groups: while one transaction is written, the next items are collected, so that they share one wait for the
 * disk. When the service is idle, items do not wait. A batch that fails is split in halves until only the faulty item
 * fails. Items that meet a lock leave their batch and are committed one by one, beside the batches, so that only the item
 * whose row stays locked fails.
 */
export class WriteBatcher<Item, Result> {
  readonly #options: WriteBatcherOptions<Item, Result>
  #waiting: Waiting<Item, Result>[] = []
  #waitingBytes = 0
  #underWay = 0
  /** Left their batch because of a lock. */
  readonly #locked: Waiting<Item, Result>[] = []
  #alone = 0
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
    return this.#underWay + this.#waiting.length + this.#alone + this.#locked.length === 0
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
    while (this.#alone < ALONE_AT_ONCE && this.#locked.length > 0) {
      this.#alone += 1
      void this.#commit(this.#locked.splice(0, 1), { isAlone: true }).then(() => {
        this.#alone -= 1
        this.#startBatches()
      })
    }
    if (!this.#isIdle) return
    this.#idle?.resolve()
    this.#idle = undefined
  }

  #takeBatch(): Waiting<Item, Result>[] {
    const { maxBatch, maxBatchBytes } = this.#options
    let count = 0
    let bytes = 0
    for (const { size } of this.#waiting) {
      if (count === maxBatch || (count > 0 && bytes + size > maxBatchBytes)) break
      count += 1
      bytes += size
    }
    this.#waitingBytes -= bytes
    return this.#waiting.splice(0, count)
  }

  async #commit(batch: Waiting<Item, Result>[], how = { isAlone: false }): Promise<void> {
    const error = await this.#attempt(batch, how)
    if (error === undefined) return
    if (error instanceof LockTimeout && !how.isAlone) {
      for (const waiting of batch) this.#leaveBatch(waiting, error)
      return
    }
    // If the store cannot be reached, no item is at fault, and smaller batches would only cause more requests.
    if (batch.length === 1 || error instanceof UnavailableError) {
      for (const { reject } of batch) reject(error)
      return
    }
    const half = batch.length >> 1
    await this.#commit(batch.slice(0, half))
    await this.#commit(batch.slice(half))
  }

  #leaveBatch(waiting: Waiting<Item, Result>, error: LockTimeout): void {
    if (this.#locked.length < MAX_LOCKED) this.#locked.push(waiting)
    else waiting.reject(error)
  }

  /** Resolves with the error of a commit that failed. */
  async #attempt(batch: Waiting<Item, Result>[], how: { isAlone: boolean }): Promise<unknown> {
    try {
      const results = await this.#options.commit(
        batch.map(({ item }) => item),
        how,
      )
      batch.forEach((waiting, index) => {
        const result = results[index] as Result | typeof LOCKED
        if (result === LOCKED) this.#leaveBatch(waiting, new LockTimeout(undefined))
        else waiting.resolve(result)
      })
      return undefined
    } catch (error) {
      return error ?? new Error('The commit failed')
    }
  }
}
