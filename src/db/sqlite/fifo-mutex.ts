import { UnavailableError } from '../../core/errors.ts'

/** One holder at a time, in order of arrival; at most `maxWaiting` wait, and whoever comes beyond that is told to retry. */
export class FifoMutex {
  readonly #maxWaiting: number
  readonly #waiting: Waiter[] = []
  #held = false
  #closing: Promise<void> | undefined
  #onIdle: (() => void) | undefined

  constructor(maxWaiting: number) {
    this.#maxWaiting = maxWaiting
  }

  async run<T>(work: () => T | Promise<T>): Promise<T> {
    if (this.#closing) throw closed()
    if (this.#held) await this.#turn()
    this.#held = true
    try {
      return await work()
    } finally {
      this.#handOver()
    }
  }

  /** Those who wait are refused; resolves when the present holder is done. */
  close(): Promise<void> {
    this.#closing ??= new Promise((resolve) => {
      for (const waiter of this.#waiting.splice(0)) waiter.refuse(closed())
      if (!this.#held) return resolve()
      this.#onIdle = resolve
    })
    return this.#closing
  }

  #turn(): Promise<void> {
    if (this.#waiting.length >= this.#maxWaiting) {
      throw new UnavailableError('The database is overloaded', {
        cause: new Error(`${this.#maxWaiting} callers already wait for the database`),
      })
    }
    return new Promise((admit, refuse) => {
      this.#waiting.push({ admit, refuse })
    })
  }

  #handOver(): void {
    const next = this.#waiting.shift()
    if (next) {
      // By way of the event loop: a long queue of synchronous commits, run as microtasks, would keep every socket waiting.
      setImmediate(next.admit)
      return
    }
    this.#held = false
    this.#onIdle?.()
  }
}

interface Waiter {
  admit: () => void
  refuse: (error: Error) => void
}

function closed(): UnavailableError {
  return new UnavailableError('The database is unavailable', { cause: new Error('The database is closed') })
}
