const MB = 1024 * 1024

interface ByteBounds {
  /** The bytes that are counted, as the metrics name them. */
  of: 'body' | 'answer'
  totalBytes: number
  principal: { totalBytes: number; callerBytes: number }
  unproven: { totalBytes: number; callerBytes: number }
}

/**
 * The most bytes of request bodies in memory. What principals and unproven callers cannot take is always free for proven
 * callbacks: 48 MB.
 */
export const BODY_BOUNDS = {
  of: 'body',
  totalBytes: 128 * MB,
  principal: { totalBytes: 64 * MB, callerBytes: 16 * MB },
  /** `callerBytes` is at least the largest allowed body, or that body could never be sent. */
  unproven: { totalBytes: 16 * MB, callerBytes: 10 * MB },
} as const satisfies ByteBounds

/** The most bytes of answers that their connections have not taken yet. */
export const ANSWER_BOUNDS = {
  of: 'answer',
  totalBytes: 128 * MB,
  principal: { totalBytes: 112 * MB, callerBytes: 16 * MB },
  unproven: { totalBytes: 16 * MB, callerBytes: 8 * MB },
} as const satisfies ByteBounds

/** A principal by its id, or a caller that is not authenticated by its address. Null: the sender of a proven callback. */
export type ByteOwner = { kind: 'principal' | 'unproven'; id: string } | null

/** The limit that is reached: of all callers, of one principal, of all unproven callers, or of one address. */
export type ExceededBound = ByteBounds['of'] | `${'principal' | 'unproven' | 'address'}_${ByteBounds['of']}`

/** Limits the bytes that requests hold in memory: of all callers, of each kind of caller, and of one caller. */
export class ByteBudget {
  readonly #bounds: ByteBounds
  readonly #shares: Record<'principal' | 'unproven', Share>
  #totalBytes = 0

  constructor(bounds: ByteBounds) {
    const { of } = bounds
    this.#bounds = bounds
    this.#shares = {
      principal: new Share(bounds.principal, { total: of, caller: `principal_${of}` }),
      unproven: new Share(bounds.unproven, { total: `unproven_${of}`, caller: `address_${of}` }),
    }
  }

  get totalBytes(): number {
    return this.#totalBytes
  }

  get unprovenBytes(): number {
    return this.#shares.unproven.totalBytes
  }

  /** Principals and addresses that hold bytes. */
  get callers(): number {
    return this.#shares.principal.callers + this.#shares.unproven.callers
  }

  bytesOf(owner: ByteOwner): number {
    return owner === null ? 0 : this.#shares[owner.kind].bytesOf(owner.id)
  }

  /** The limit that this many more bytes would exceed; null if there is room for them. */
  boundFor(bytes: number, owner: ByteOwner): ExceededBound | null {
    if (this.#totalBytes + bytes > this.#bounds.totalBytes) return this.#bounds.of
    return owner === null ? null : this.#shares[owner.kind].boundFor(bytes, owner.id)
  }

  /** A negative number returns bytes. */
  add(bytes: number, owner: ByteOwner): void {
    this.#totalBytes += bytes
    if (owner !== null) this.#shares[owner.kind].add(bytes, owner.id)
  }
}

/** The bytes of one kind of caller. */
class Share {
  readonly #bounds: { totalBytes: number; callerBytes: number }
  readonly #names: { total: ExceededBound; caller: ExceededBound }
  readonly #bytesByCaller = new Map<string, number>()
  totalBytes = 0

  constructor(
    bounds: { totalBytes: number; callerBytes: number },
    names: { total: ExceededBound; caller: ExceededBound },
  ) {
    this.#bounds = bounds
    this.#names = names
  }

  get callers(): number {
    return this.#bytesByCaller.size
  }

  bytesOf(caller: string): number {
    return this.#bytesByCaller.get(caller) ?? 0
  }

  boundFor(bytes: number, caller: string): ExceededBound | null {
    if (this.bytesOf(caller) + bytes > this.#bounds.callerBytes) return this.#names.caller
    return this.totalBytes + bytes > this.#bounds.totalBytes ? this.#names.total : null
  }

  add(bytes: number, caller: string): void {
    this.totalBytes += bytes
    const ofCaller = this.bytesOf(caller) + bytes
    if (ofCaller > 0) this.#bytesByCaller.set(caller, ofCaller)
    else this.#bytesByCaller.delete(caller)
  }
}
