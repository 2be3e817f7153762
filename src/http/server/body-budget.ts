const MB = 1024 * 1024

export interface BodyBounds {
  totalBytes: number
  /** The part of `bytes` for bodies of callers that are not authenticated yet. */
  unprovenBytes: number
  /**
   * The part of `unprovenBytes` for one address. It must be at least the largest allowed body, or that body could never be
   * sent.
   */
  unprovenBytesPerAddress: number
}

export const BODY_BOUNDS: BodyBounds = {
  totalBytes: 128 * MB,
  unprovenBytes: 16 * MB,
  unprovenBytesPerAddress: 10 * MB,
}

/** The limit that is reached. */
export type SpentBodyBound = 'body' | 'unproven_body' | 'address_body'

/**
 * Limits the bytes of all request bodies in memory. Bodies of callers that are not authenticated yet have lower limits, in
 * total and per address.
 */
export class BodyBudget {
  readonly #bounds: BodyBounds
  readonly #unprovenByAddress = new Map<string, number>()
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

  /** Addresses with an unproven body in memory. */
  get addresses(): number {
    return this.#unprovenByAddress.size
  }

  /** `unprovenFrom`: the address of a caller that is not authenticated yet; null for an authenticated caller. */
  hold(bytes: number, { unprovenFrom }: { unprovenFrom: string | null }): BodyHold | SpentBodyBound {
    const hold = new BodyHold(this, unprovenFrom)
    return hold.grow(bytes) ?? hold
  }

  /** Reserves the bytes, or returns the limit that they would exceed. */
  take(bytes: number, unprovenFrom: string | null): SpentBodyBound | null {
    if (this.#totalBytes + bytes > this.#bounds.totalBytes) return 'body'
    if (unprovenFrom !== null) {
      const ofAddress = (this.#unprovenByAddress.get(unprovenFrom) ?? 0) + bytes
      if (ofAddress > this.#bounds.unprovenBytesPerAddress) return 'address_body'
      if (this.#unprovenBytes + bytes > this.#bounds.unprovenBytes) return 'unproven_body'
      this.#unprovenBytes += bytes
      this.#unprovenByAddress.set(unprovenFrom, ofAddress)
    }
    this.#totalBytes += bytes
    return null
  }

  prove(bytes: number, unprovenFrom: string): void {
    this.#unprovenBytes -= bytes
    const left = (this.#unprovenByAddress.get(unprovenFrom) ?? 0) - bytes
    if (left > 0) this.#unprovenByAddress.set(unprovenFrom, left)
    else this.#unprovenByAddress.delete(unprovenFrom)
  }

  give(bytes: number, unprovenFrom: string | null): void {
    this.#totalBytes -= bytes
    if (unprovenFrom !== null) this.prove(bytes, unprovenFrom)
  }
}

/** The bytes of one body, until it is released. */
export class BodyHold {
  readonly #budget: BodyBudget
  #unprovenFrom: string | null
  #isReleased = false
  #bytes = 0

  constructor(budget: BodyBudget, unprovenFrom: string | null) {
    this.#budget = budget
    this.#unprovenFrom = unprovenFrom
  }

  /**
   * Returns the limit that is reached, or null. Bytes that arrive after the release are discarded, so they are not counted.
   */
  grow(bytes: number): SpentBodyBound | null {
    if (this.#isReleased) return null
    const spent = this.#budget.take(bytes, this.#unprovenFrom)
    if (spent === null) this.#bytes += bytes
    return spent
  }

  /** The signature over the body is valid: its bytes now count as those of an authenticated caller. */
  prove(): void {
    if (this.#unprovenFrom === null || this.#isReleased) return
    this.#budget.prove(this.#bytes, this.#unprovenFrom)
    this.#unprovenFrom = null
  }

  release(): void {
    if (this.#isReleased) return
    this.#isReleased = true
    this.#budget.give(this.#bytes, this.#unprovenFrom)
  }
}
