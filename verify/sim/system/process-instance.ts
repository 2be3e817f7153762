import type { VirtualTime } from '../time/virtual-time.ts'

/** The longest lease of a job: a start of a minute, eight calls of three seconds, and slack. */
const LEASE_MS = 89_000

/**
 * One process from its boot to its end. When it ends, its pending promises never resolve. It can be suspended for a while:
 * during that time no response and no timer reaches it.
 */
export class ProcessInstance {
  readonly name: string
  readonly #time: VirtualTime
  readonly #endListeners = new Set<() => void>()
  #endedAtMs = Number.POSITIVE_INFINITY
  #suspendedUntilMs = 0
  #leasesLostUntilMs = Number.NEGATIVE_INFINITY

  constructor(name: string, time: VirtualTime) {
    this.name = name
    this.#time = time
  }

  get alive(): boolean {
    return this.#endedAtMs === Number.POSITIVE_INFINITY
  }

  /** Infinite while it is alive. */
  get endedAtMs(): number {
    return this.#endedAtMs
  }

  /**
   * Whether other processes may have taken its leases while one of its calls was in progress. A check that began before
   * ends with its lease.
   */
  get mayHaveLostLeases(): boolean {
    return this.#time.now < this.#leasesLostUntilMs + LEASE_MS
  }

  /** Until then the process may count as stopped. */
  loseLeases(untilMs: number): void {
    this.#leasesLostUntilMs = Math.max(this.#leasesLostUntilMs, untilMs)
  }

  end(): void {
    if (!this.alive) return
    this.#endedAtMs = this.#time.now
    for (const listener of this.#endListeners) listener()
    this.#endListeners.clear()
  }

  suspend(ms: number): void {
    this.#suspendedUntilMs = this.#time.now + ms
    this.loseLeases(this.#suspendedUntilMs)
  }

  /** Runs the function now, or at the end of the suspension; never if the process has ended by then. */
  whenAwake(run: () => void): void {
    if (!this.alive) return
    const leftMs = this.#suspendedUntilMs - this.#time.now
    if (leftMs <= 0) run()
    else this.#time.after(leftMs, () => this.whenAwake(run))
  }

  /** Resolves when it is not suspended; never when it has ended. */
  untilAwake(): Promise<void> {
    return new Promise((resolve) => this.whenAwake(resolve))
  }

  /** Returns how to remove the listener. */
  onEnd(listener: () => void): () => void {
    this.#endListeners.add(listener)
    return () => void this.#endListeners.delete(listener)
  }
}

/** For a process that has ended. */
export function never<T>(): Promise<T> {
  return new Promise(() => {})
}
