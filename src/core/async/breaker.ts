import type { Clock } from '../clock.ts'

interface BreakerOptions {
  clock: Clock
  /** Failures in a row that open it. */
  threshold: number
  openMs: number
  maxOpenMs: number
}

/**
 * A circuit breaker: stops calls to a dependency that keeps failing. After a pause one call is admitted as a probe. Success
 * closes the breaker, a failure doubles the pause up to its cap.
 */
export class Breaker {
  readonly #options: BreakerOptions
  #failures = 0
  #openings = 0
  #openUntilMs = 0
  #probing = false

  constructor(options: BreakerOptions) {
    this.#options = options
  }

  get state(): 'closed' | 'open' | 'probing' {
    if (this.#failures < this.#options.threshold) return 'closed'
    return this.#probing || this.#options.clock.now() < this.#openUntilMs ? 'open' : 'probing'
  }

  /** Whether a call may be made now; only one probe is admitted. Each admitted call must end in `succeeded`, `failed` or `abandoned`. */
  admit(): boolean {
    const { state } = this
    if (state === 'open') return false
    if (state === 'probing') this.#probing = true
    return true
  }

  succeeded(): void {
    this.#failures = 0
    this.#openings = 0
    this.#probing = false
  }

  /** We aborted the call, so its result says nothing about the dependency. */
  abandoned(): void {
    this.#probing = false
  }

  failed(): void {
    // Ignore the failure of a call that was in flight when the breaker opened.
    if (this.state === 'open' && !this.#probing) return
    this.#failures += 1
    this.#probing = false
    if (this.#failures < this.#options.threshold) return
    const pauseMs = Math.min(this.#options.maxOpenMs, this.#options.openMs * 2 ** Math.min(this.#openings, 20))
    this.#openings += 1
    this.#openUntilMs = this.#options.clock.now() + pauseMs
  }
}
