import type { Clock } from '../../core/clock.ts'

/** One request on its way, that may be stopped at any stage; the stage it is in listens, and no other. */
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

  /** Called at once when it has been stopped already. */
  onStop(listener: (reason: Error) => void): void {
    this.#listener = listener
    if (this.#reason) listener(this.#reason)
  }

  offStop(): void {
    this.#listener = null
  }
}

export interface AttemptsOptions {
  clock: Clock
  timeoutMs: number
  /** What is waited for, in the words of the reason. */
  awaited: 'answer' | 'connection'
}

/**
 * Stops each attempt when its time is over or its caller gives up. All have the same time, so the oldest is the first to
 * end: one timer watches it, and one listener each signal, as a timer and listeners for each cost more than sending.
 */
export class Attempts {
  readonly #options: AttemptsOptions
  readonly #byAge = new Set<Attempt>()
  readonly #bySignal = new Map<AbortSignal, { attempts: Set<Attempt>; giveUp: () => void }>()
  #watch: AbortController | null = null

  constructor(options: AttemptsOptions) {
    this.#options = options
  }

  /** Runs the work with an attempt of its own. */
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
    void this.#stopTheLate(this.#watch.signal)
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

  async #stopTheLate(over: AbortSignal): Promise<void> {
    const { clock, timeoutMs, awaited } = this.#options
    while (!over.aborted) {
      let pauseMs = timeoutMs
      for (const attempt of this.#byAge) {
        pauseMs = attempt.startedAtMs + timeoutMs - clock.now()
        if (pauseMs > 0) break
        // Out of the way, whatever its work makes of it: the next one is looked at in any case.
        this.#byAge.delete(attempt)
        attempt.stop(new Error(`no ${awaited} within ${timeoutMs} ms`))
        pauseMs = timeoutMs
      }
      await clock.sleep(pauseMs, over)
    }
  }

  #givenUp(): Error {
    return new Error(`given up while waiting for the ${this.#options.awaited}`)
  }
}
