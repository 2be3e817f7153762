import type { Clock } from '../../src/core/clock.ts'

interface Sleeper {
  dueMs: number
  wake: () => void
}

/** A clock that only the test advances. */
export class ManualClock implements Clock {
  #nowMs: number
  readonly #sleepers = new Set<Sleeper>()
  #onSleep: (() => void)[] = []

  constructor(startMs = Date.UTC(2026, 0, 1)) {
    this.#nowMs = startMs
  }

  now(): number {
    return this.#nowMs
  }

  calendar(): number {
    return this.#nowMs
  }

  elapsed(): number {
    return this.#nowMs
  }

  /** How many sleeps are still to end. */
  get sleeping(): number {
    return this.#sleepers.size
  }

  /** How long until the next sleep ends; infinite when there is none. */
  get nextWakeMs(): number {
    return Math.min(...Array.from(this.#sleepers, ({ dueMs }) => dueMs - this.#nowMs))
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      if (signal?.aborted) return resolve()
      const sleeper: Sleeper = {
        dueMs: this.#nowMs + Math.max(0, ms),
        wake: () => {
          this.#sleepers.delete(sleeper)
          signal?.removeEventListener('abort', sleeper.wake)
          resolve()
        },
      }
      this.#sleepers.add(sleeper)
      signal?.addEventListener('abort', sleeper.wake, { once: true })
      for (const notify of this.#onSleep.splice(0)) notify()
    })
  }

  /**
   * Ends each due sleep in order of time, with the clock set to that time. The sleeping code runs, and may sleep again
   * within the same span, before the time advances further.
   */
  async advance(ms: number): Promise<void> {
    const untilMs = this.#nowMs + ms
    for (let next = this.#nextDue(untilMs); next; next = this.#nextDue(untilMs)) {
      this.#nowMs = Math.max(this.#nowMs, next.dueMs)
      next.wake()
      await new Promise(setImmediate)
    }
    // Of two calls at once, the one that ends last may be the shorter one. A negative span sets the clock back.
    this.#nowMs = ms < 0 ? untilMs : Math.max(this.#nowMs, untilMs)
  }

  /**
   * Skips a long span: each sleep that becomes due in it ends once, at the end of the span, even if it would have repeated.
   */
  async leap(ms: number): Promise<void> {
    this.#nowMs += ms
    for (const sleeper of [...this.#sleepers]) if (sleeper.dueMs <= this.#nowMs) sleeper.wake()
    await new Promise(setImmediate)
  }

  /** Resolves once the code under test sleeps. */
  async untilSleeping(): Promise<void> {
    while (this.#sleepers.size === 0) {
      await new Promise<void>((resolve) => {
        this.#onSleep.push(resolve)
      })
    }
  }

  #nextDue(untilMs: number): Sleeper | undefined {
    let next: Sleeper | undefined
    for (const sleeper of this.#sleepers) {
      if (sleeper.dueMs <= untilMs && (next === undefined || sleeper.dueMs < next.dueMs)) next = sleeper
    }
    return next
  }
}
