const MB = 1024 * 1024

export interface BodyBounds {
  totalBytes: number
  /** Of them, for bodies of callers that have proved nothing yet. */
  unprovenBytes: number
}

export const BODY_BOUNDS: BodyBounds = { totalBytes: 128 * MB, unprovenBytes: 16 * MB }

/** Bounds the bytes of all request bodies in memory, those without a proven caller more tightly. */
export class BodyBudget {
  readonly #bounds: BodyBounds
  #totalBytes = 0
  #unprovenBytes = 0

  constructor(bounds: BodyBounds = BODY_BOUNDS) {
    this.#bounds = bounds
  }

  get totalBytes(): number {
    return this.#totalBytes
  }

  get unprovenBytes(): number {
    return this.#unprovenBytes
  }

  /** Null when there is no room for so many bytes. */
  hold(bytes: number, { isProven }: { isProven: boolean }): BodyHold | null {
    const hold = new BodyHold(this, isProven)
    return hold.grow(bytes) ? hold : null
  }

  take(bytes: number, isProven: boolean): boolean {
    if (this.#totalBytes + bytes > this.#bounds.totalBytes) return false
    if (!isProven && this.#unprovenBytes + bytes > this.#bounds.unprovenBytes) return false
    this.#totalBytes += bytes
    if (!isProven) this.#unprovenBytes += bytes
    return true
  }

  prove(bytes: number): void {
    this.#unprovenBytes -= bytes
  }

  give(bytes: number, isProven: boolean): void {
    this.#totalBytes -= bytes
    if (!isProven) this.#unprovenBytes -= bytes
  }
}

/** The bytes of one body, until it is released. */
export class BodyHold {
  readonly #budget: BodyBudget
  #isProven: boolean
  #isReleased = false
  #bytes = 0

  constructor(budget: BodyBudget, isProven: boolean) {
    this.#budget = budget
    this.#isProven = isProven
  }

  /** What arrives after the release is discarded, so it is not counted. */
  grow(bytes: number): boolean {
    if (this.#isReleased) return true
    if (!this.#budget.take(bytes, this.#isProven)) return false
    this.#bytes += bytes
    return true
  }

  /** The signature over the body holds: its bytes now count as those of a known caller. */
  prove(): void {
    if (this.#isProven || this.#isReleased) return
    this.#isProven = true
    this.#budget.prove(this.#bytes)
  }

  release(): void {
    if (this.#isReleased) return
    this.#isReleased = true
    this.#budget.give(this.#bytes, this.#isProven)
  }
}
