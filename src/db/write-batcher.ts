import { UnavailableError } from '../core/errors.ts'
import { LockTimeout } from './database.ts'

export interface WriteBatcherOptions<Item, Result> {
  /** Commits all items together or none; returns one result per item. */
  commit: (items: Item[]) => Promise<Result[]>
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

/** While one item waits for its lock, the other worker commits the rest. */
const WORKERS_AFTER_LOCK = 2
/**
 * After this many locked items, each of which takes 2 s, a worker stops. The rest of the batch waits for another round, so
 * that other batches get their turn.
 */
const MAX_LOCKED_PER_WORKER = 2
/** Three rounds take at most 18 s. After that an HTTP client has got its 503 anyway. */
const MAX_ROUNDS = 3

interface Waiting<Item, Result> {
  item: Item
  size: number
  /** In how many rounds the batch of the item had too many locked items. */
  rounds: number
  resolve: (result: Result) => void
  reject: (error: unknown) => void
}

/**
 * Commits in groups: while one transaction is written, the next items are collected, so that they share one wait for the
 * disk. When the service is idle, items do not wait. A batch that fails is split in halves until only the faulty item
 * fails. If a row of the batch is locked, the items are committed one by one, so that only the item of that row fails. If
 * many rows are locked, this takes several rounds; after the last round, the items that were not tried fail too.
 */
export class WriteBatcher<Item, Result> {
  readonly #options: WriteBatcherOptions<Item, Result>
  #waiting: Waiting<Item, Result>[] = []
  #waitingBytes = 0
  #underWay = 0
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
      this.#waiting.push({ item, size, rounds: 0, resolve, reject })
      this.#waitingBytes += size
      // Start after this turn of the event loop, so that all items of this turn share the first batch.
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
    while (this.#underWay < this.#options.commitsAtOnce && this.#waiting.length > 0) {
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
    // New items do not share a batch with items beside which others are locked: they would wait for those locks.
    const round = this.#waiting[0]?.rounds
    let count = 0
    let bytes = 0
    for (const { size, rounds } of this.#waiting) {
      if (count === maxBatch || rounds !== round || (count > 0 && bytes + size > maxBatchBytes)) break
      count += 1
      bytes += size
    }
    this.#waitingBytes -= bytes
    return this.#waiting.splice(0, count)
  }

  async #commit(batch: Waiting<Item, Result>[]): Promise<void> {
    const error = await this.#attempt(batch)
    if (error === undefined) return
    if (batch.length > 1 && error instanceof LockTimeout) return this.#commitEach(batch, error)
    // If the store cannot be reached, no item is at fault, and smaller batches would only cause more requests.
    if (batch.length === 1 || error instanceof UnavailableError) {
      for (const { reject } of batch) reject(error)
      return
    }
    const half = batch.length >> 1
    await this.#commit(batch.slice(0, half))
    await this.#commit(batch.slice(half))
  }

  async #commitEach(batch: Waiting<Item, Result>[], locked: LockTimeout): Promise<void> {
    const rest = [...batch]
    const work = async () => {
      let lockedItems = 0
      while (lockedItems < MAX_LOCKED_PER_WORKER) {
        const waiting = rest.shift()
        if (waiting === undefined) return
        const error = await this.#attempt([waiting])
        if (error === undefined) continue
        waiting.reject(error)
        if (error instanceof LockTimeout) lockedItems += 1
      }
    }
    await Promise.all(Array.from({ length: WORKERS_AFTER_LOCK }, work))
    for (const waiting of rest) this.#putBack(waiting, locked)
  }

  #putBack(waiting: Waiting<Item, Result>, locked: LockTimeout): void {
    waiting.rounds += 1
    if (waiting.rounds === MAX_ROUNDS) {
      waiting.reject(locked)
      return
    }
    this.#waiting.push(waiting)
    this.#waitingBytes += waiting.size
  }

  /** Resolves with the error of a commit that failed. */
  async #attempt(batch: Waiting<Item, Result>[]): Promise<unknown> {
    try {
      const results = await this.#options.commit(batch.map(({ item }) => item))
      batch.forEach(({ resolve }, index) => {
        resolve(results[index] as Result)
      })
      return undefined
    } catch (error) {
      return error ?? new Error('The commit failed')
    }
  }
}
