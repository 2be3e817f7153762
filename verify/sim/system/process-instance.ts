import type { VirtualTime } from '../time/virtual-time.ts'

/**
 * One run of a process, from its boot to its end. Whatever it waits for when it ends, it waits for in vain. It may also be
 * suspended for a while, as a whole: then nothing reaches it, its own timers least of all.
 */
export class Life {
  readonly name: string
  readonly #time: VirtualTime
  readonly #mourners = new Set<() => void>()
  #alive = true
  #suspendedUntilMs = 0

  constructor(name: string, time: VirtualTime) {
    this.name = name
    this.#time = time
  }

  get alive(): boolean {
    return this.#alive
  }

  get wasSuspended(): boolean {
    return this.#suspendedUntilMs > 0
  }

  end(): void {
    if (!this.#alive) return
    this.#alive = false
    for (const mourn of this.#mourners) mourn()
    this.#mourners.clear()
  }

  suspend(ms: number): void {
    this.#suspendedUntilMs = this.#time.now + ms
  }

  /** Now, or once it wakes up; never when it is dead by then. */
  reach(run: () => void): void {
    if (!this.#alive) return
    const leftMs = this.#suspendedUntilMs - this.#time.now
    if (leftMs <= 0) run()
    else this.#time.after(leftMs, () => this.reach(run))
  }

  /** Resolves once it can go on; for the dead, never. */
  awake(): Promise<void> {
    return new Promise((resolve) => this.reach(resolve))
  }

  /** Returns how to stop waiting for the end. */
  onEnd(mourn: () => void): () => void {
    this.#mourners.add(mourn)
    return () => void this.#mourners.delete(mourn)
  }
}

/** What a dead process gets. */
export function never<T>(): Promise<T> {
  return new Promise(() => {})
}
