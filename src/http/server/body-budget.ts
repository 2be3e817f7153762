const MB = 1024 * 1024

/**
 * The most bytes of request bodies in memory. What principals and unproven callers cannot take is always free for proven
 * callbacks: 48 MB.
 */
export const BODY_BOUNDS = {
  totalBytes: 128 * MB,
  principal: { totalBytes: 64 * MB, callerBytes: 16 * MB },
  /** `callerBytes` is at least the largest allowed body, or that body could never be sent. */
  unproven: { totalBytes: 16 * MB, callerBytes: 10 * MB },
} as const

/** A principal by its id, or a caller that is not authenticated yet by its address. Null: the sender of a proven callback. */
export type BodyOwner = { kind: 'principal' | 'unproven'; id: string } | null

/** The limit that is reached. */
export type ExceededBodyBound = 'body' | 'principal' | 'unproven_body' | 'address_body'

/** Limits the bytes of all request bodies in memory: of all callers, of each kind of caller, and of one caller. */
export class BodyBudget {
  readonly #shares = {
    principal: new Share(BODY_BOUNDS.principal, { total: 'body', caller: 'principal' }),
    unproven: new Share(BODY_BOUNDS.unproven, { total: 'unproven_body', caller: 'address_body' }),
  }
  #totalBytes = 0

  get totalBytes(): number {
    return this.#totalBytes
  }

  get unprovenBytes(): number {
    return this.#shares.unproven.totalBytes
  }

  /** Principals and addresses with a body in memory. */
  get callers(): number {
    return this.#shares.principal.callers + this.#shares.unproven.callers
  }

  /** The limit that this many more bytes would exceed; null if there is room for them. */
  boundFor(bytes: number, owner: BodyOwner): ExceededBodyBound | null {
    if (this.#totalBytes + bytes > BODY_BOUNDS.totalBytes) return 'body'
    return owner === null ? null : this.#shares[owner.kind].boundFor(bytes, owner.id)
  }

  /** A negative number returns bytes. */
  add(bytes: number, owner: BodyOwner): void {
    this.#totalBytes += bytes
    if (owner !== null) this.#shares[owner.kind].add(bytes, owner.id)
  }
}

/** The bytes of one kind of caller. */
class Share {
  readonly #bounds: { totalBytes: number; callerBytes: number }
  readonly #names: { total: ExceededBodyBound; caller: ExceededBodyBound }
  readonly #bytesByCaller = new Map<string, number>()
  totalBytes = 0

  constructor(
    bounds: { totalBytes: number; callerBytes: number },
    names: { total: ExceededBodyBound; caller: ExceededBodyBound },
  ) {
    this.#bounds = bounds
    this.#names = names
  }

  get callers(): number {
    return this.#bytesByCaller.size
  }

  boundFor(bytes: number, caller: string): ExceededBodyBound | null {
    if ((this.#bytesByCaller.get(caller) ?? 0) + bytes > this.#bounds.callerBytes) return this.#names.caller
    return this.totalBytes + bytes > this.#bounds.totalBytes ? this.#names.total : null
  }

  add(bytes: number, caller: string): void {
    this.totalBytes += bytes
    const ofCaller = (this.#bytesByCaller.get(caller) ?? 0) + bytes
    if (ofCaller > 0) this.#bytesByCaller.set(caller, ofCaller)
    else this.#bytesByCaller.delete(caller)
  }
}

/** The bytes of one body, until it is released. */
export class BodyHold {
  readonly #budget: BodyBudget
  #owner: BodyOwner
  #isReleased = false
  #bytes = 0

  constructor(budget: BodyBudget, owner: BodyOwner) {
    this.#budget = budget
    this.#owner = owner
  }

  /**
   * Returns the limit that is reached, or null. Bytes that arrive after the release are discarded, so they are not counted.
   */
  growTo(bytes: number): ExceededBodyBound | null {
    if (this.#isReleased) return null
    const more = bytes - this.#bytes
    const bound = this.#budget.boundFor(more, this.#owner)
    if (bound !== null) return bound
    this.#budget.add(more, this.#owner)
    this.#bytes = bytes
    return null
  }

  /** The signature over the body is valid: its bytes now count as those of a proven callback. */
  prove(): void {
    if (this.#isReleased) return
    this.#budget.add(-this.#bytes, this.#owner)
    this.#owner = null
    this.#budget.add(this.#bytes, this.#owner)
  }

  release(): void {
    if (this.#isReleased) return
    this.#isReleased = true
    this.#budget.add(-this.#bytes, this.#owner)
  }
}
