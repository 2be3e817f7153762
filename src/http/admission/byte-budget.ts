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
  /** By kind of caller, and by kind and id of a caller. A caller that holds nothing has no entry. */
  readonly #bytes = new Map<string, number>()
  #totalBytes = 0

  constructor(bounds: ByteBounds) {
    this.#bounds = bounds
  }

  get totalBytes(): number {
    return this.#totalBytes
  }

  get unprovenBytes(): number {
    return this.#bytes.get('unproven') ?? 0
  }

  get isEmpty(): boolean {
    return this.#totalBytes === 0 && this.#bytes.size === 0
  }

  bytesOf(owner: ByteOwner): number {
    return owner === null ? 0 : (this.#bytes.get(keyOf(owner)) ?? 0)
  }

  /** The limit that this many more bytes would exceed; null if there is room for them. */
  boundFor(bytes: number, owner: ByteOwner): ExceededBound | null {
    const { of } = this.#bounds
    if (this.#totalBytes + bytes > this.#bounds.totalBytes) return of
    if (owner === null) return null
    const isPrincipal = owner.kind === 'principal'
    const { callerBytes, totalBytes } = this.#bounds[owner.kind]
    if (this.bytesOf(owner) + bytes > callerBytes) return isPrincipal ? `principal_${of}` : `address_${of}`
    const isFull = (this.#bytes.get(owner.kind) ?? 0) + bytes > totalBytes
    return isFull ? (isPrincipal ? of : `unproven_${of}`) : null
  }

  /** A negative number returns bytes. */
  add(bytes: number, owner: ByteOwner): void {
    this.#totalBytes += bytes
    if (bytes === 0 || owner === null) return
    for (const key of [owner.kind, keyOf(owner)]) {
      const sum = (this.#bytes.get(key) ?? 0) + bytes
      if (sum > 0) this.#bytes.set(key, sum)
      else this.#bytes.delete(key)
    }
  }
}

function keyOf({ kind, id }: ByteOwner & object): string {
  return `${kind} ${id}`
}
