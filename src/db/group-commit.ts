import { UnavailableError } from '../core/errors.ts'

export interface GroupCommitOptions<Item, Result> {
  /** Commits all items together or none; returns one result per item. */
  commit: (items: Item[]) => Promise<Result[]>
  /** Bytes that a waiting item takes in memory. */
  sizeOf: (item: Item) => number
  maxBatch: number
  maxBatchBytes: number
  maxWaiting: number
  maxWaitingBytes: number
  /** How many batches may commit at the same time. */
  lanes: number
  /** Called with the number of items of each new batch. */
  onBatch?: (size: number) => void
}

interface Waiting<Item, Result> {
  item: Item
  size: number
  resolve: (result: Result) => void
  reject: (error: unknown) => void
}

/**
 * Commits in groups: while one transaction is written, the next items are collected, so that they share one wait for the
 * disk. An idle service adds no wait. A batch that fails is split in halves until only the faulty item fails.
 */
export class GroupCommit<Item, Result> {
  readonly #options: GroupCommitOptions<Item, Result>
  #waiting: Waiting<Item, Result>[] = []
  #waitingBytes = 0
  #underWay = 0
  #idle: PromiseWithResolvers<void> | undefined

  constructor(options: GroupCommitOptions<Item, Result>) {
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
      // After this turn of the event loop, so that all items that arrive in it share the first batch.
      if (this.#waiting.length === 1) setImmediate(() => this.#startBatches())
    })
  }

  /** Resolves once everything submitted so far has ended. */
  async drain(): Promise<void> {
    if (this.#underWay === 0 && this.#waiting.length === 0) return
    this.#idle ??= Promise.withResolvers()
    await this.#idle.promise
  }

  #startBatches(): void {
    while (this.#underWay < this.#options.lanes && this.#waiting.length > 0) {
      this.#underWay += 1
      const batch = this.#takeBatch()
      this.#options.onBatch?.(batch.length)
      void this.#commit(batch).then(() => {
        this.#underWay -= 1
        this.#startBatches()
        if (this.#underWay > 0 || this.#waiting.length > 0) return
        this.#idle?.resolve()
        this.#idle = undefined
      })
    }
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

  async #commit(batch: Waiting<Item, Result>[]): Promise<void> {
    try {
      const results = await this.#options.commit(batch.map(({ item }) => item))
      batch.forEach(({ resolve }, index) => {
        resolve(results[index] as Result)
      })
    } catch (error) {
      // No item is at fault when the store cannot be reached: smaller batches would only ask it more often.
      if (batch.length === 1 || error instanceof UnavailableError) {
        for (const { reject } of batch) reject(error)
        return
      }
      const half = batch.length >> 1
      await this.#commit(batch.slice(0, half))
      await this.#commit(batch.slice(half))
    }
  }
}
