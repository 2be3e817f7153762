import type { Clock } from '../../core/clock.ts'

/** One request that can be stopped at any stage. Only its current stage listens. */
export class Attempt {
  readonly startedAtMs: number
  #reason: Error | null = null
  #listener: ((reason: Error) => void) | null = null

  constructor(startedAtMs: number) {
    this.startedAtMs = startedAtMs
  }

  throwIfStopped(): void {
    if (this.#reason) throw this.#reason
  }

  stop(reason: Error): void {
    if (this.#reason) return
    this.#reason = reason
    this.#listener?.(reason)
  }

  /** Calls the listener at once if the attempt was stopped already. */
  onStop(listener: (reason: Error) => void): void {
    this.#listener = listener
    if (this.#reason) listener(this.#reason)
  }

  offStop(): void {
    this.#listener = null
  }
}

interface AttemptsOptions {
  clock: Clock
  timeoutMs: number
  /** The thing that the attempt waits for; named in the reason of a timeout. */
  awaited: 'answer' | 'connection'
}

/**
 * Stops each attempt at its timeout, or when its caller aborts. All attempts have the same timeout, so the oldest ends
 * first. So one timer for all attempts and one listener per signal are enough. A timer and a listener for each attempt
 * would cost more than the sending itself.
 */
export class Attempts {
  readonly #options: AttemptsOptions
  readonly #byAge = new Set<Attempt>()
  readonly #bySignal = new Map<AbortSignal, { attempts: Set<Attempt>; giveUp: () => void }>()
  #watch: AbortController | null = null

  constructor(options: AttemptsOptions) {
    this.#options = options
  }

  /** Runs the work as one attempt. */
  async run<Value>(signal: AbortSignal, work: (attempt: Attempt) => Promise<Value>): Promise<Value> {
    const attempt = new Attempt(this.#options.clock.now())
    this.#begin(attempt, signal)
    try {
      return await work(attempt)
    } finally {
      this.#end(attempt, signal)
    }
  }

  #begin(attempt: Attempt, signal: AbortSignal): void {
    this.#byAge.add(attempt)
    if (signal.aborted) attempt.stop(this.#givenUp())
    const followers = this.#bySignal.get(signal)
    if (followers) {
      followers.attempts.add(attempt)
    } else {
      const attempts = new Set([attempt])
      const giveUp = () => {
        for (const one of attempts) one.stop(this.#givenUp())
      }
      this.#bySignal.set(signal, { attempts, giveUp })
      signal.addEventListener('abort', giveUp, { once: true })
    }
    if (this.#watch) return
    this.#watch = new AbortController()
    void this.#stopOverdue(this.#watch.signal)
  }

  #end(attempt: Attempt, signal: AbortSignal): void {
    attempt.offStop()
    this.#byAge.delete(attempt)
    const followers = this.#bySignal.get(signal)
    followers?.attempts.delete(attempt)
    if (followers?.attempts.size === 0) {
      this.#bySignal.delete(signal)
      signal.removeEventListener('abort', followers.giveUp)
    }
    if (this.#byAge.size > 0) return
    this.#watch?.abort()
    this.#watch = null
  }

  async #stopOverdue(over: AbortSignal): Promise<void> {
    const { clock, timeoutMs, awaited } = this.#options
    while (!over.aborted) {
      let pauseMs = timeoutMs
      for (const attempt of this.#byAge) {
        pauseMs = attempt.startedAtMs + timeoutMs - clock.now()
        if (pauseMs > 0) break
        // Removed first, so that the loop reaches the next attempt even if the work of this one does not end.
        this.#byAge.delete(attempt)
        attempt.stop(new Error(`no ${awaited} within ${timeoutMs} ms`))
        pauseMs = timeoutMs
      }
      await clock.sleep(pauseMs, over)
    }
  }

  #givenUp(): Error {
    return new Error(`aborted while waiting for the ${this.#options.awaited}`)
  }
}
