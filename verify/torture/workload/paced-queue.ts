/** Hands out the numbers that were released, so that the work keeps the pace of the faults. */
export class PacedQueue {
  readonly #total: number
  #released = 0
  #given = 0
  #waiting: (() => void)[] = []

  constructor(total: number) {
    this.#total = total
  }

  releaseUpTo(count: number): void {
    this.#released = Math.max(this.#released, Math.min(count, this.#total))
    for (const wake of this.#waiting.splice(0)) wake()
  }

  /** Released and not yet dequeued. */
  get backlog(): number {
    return this.#released - this.#given
  }

  /** Null once all were given. */
  async next(): Promise<number | null> {
    while (this.#given === this.#released && this.#given < this.#total) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    }
    if (this.#given === this.#total) {
      for (const wake of this.#waiting.splice(0)) wake()
      return null
    }
    this.#given += 1
    return this.#given - 1
  }
}
