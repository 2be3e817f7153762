/** The number of requests that one principal may have in progress on one node. */
export const UNDER_WAY_BOUNDS = { read: 250, change: 50 } as const

type UnderWayKind = keyof typeof UNDER_WAY_BOUNDS

/** Counts the requests in progress of each principal, so that one caller cannot use all the capacity of a node. */
export class UnderWay {
  readonly #counts = new Map<string, number>()

  /** Principals with at least one request in progress. */
  get size(): number {
    return this.#counts.size
  }

  /** Returns the function that ends the request; null when the principal has too many. */
  enter(principal: string, kind: UnderWayKind): (() => void) | null {
    const key = `${kind} ${principal}`
    const count = this.#counts.get(key) ?? 0
    if (count >= UNDER_WAY_BOUNDS[kind]) return null
    this.#counts.set(key, count + 1)
    return () => this.#leave(key)
  }

  #leave(key: string): void {
    const count = this.#counts.get(key) ?? 0
    if (count > 1) this.#counts.set(key, count - 1)
    else this.#counts.delete(key)
  }
}
