import { Readable } from 'node:stream'
import type { Hold } from './admission.ts'
import type { ByteOwner, ExceededBound } from './byte-budget.ts'

/**
 * A body of at most this length counts whole from the beginning: counting its bytes would cost more than it saves. The bytes
 * of an unproven caller are always counted, because it may open any number of connections.
 */
export const SMALL_BODY = 4 * 1024

/** What a chunk takes in memory besides its bytes (measured: 212). A body may come in chunks of one byte. */
const CHUNK_BYTES = 256

interface BodyOptions {
  hold: Hold
  owner: ByteOwner
  /** Null: the body comes in chunks. */
  length: number | null
  refusal: (bound: ExceededBound) => Error
}

/** Bytes count as they arrive, so a connection that only declares a great length takes no room. */
export function countBody(source: Readable, options: BodyOptions): Readable {
  const { hold, owner, length } = options
  if (length === null || length > SMALL_BODY || owner?.kind === 'unproven') return new CountedBody(source, options)
  hold.growBody(length, owner)
  return source
}

/** A body without room ends with the refusal. */
class CountedBody extends Readable {
  readonly #source: Readable
  readonly #options: BodyOptions
  #isRead = false
  #bytes = 0
  #chunks = 0

  constructor(source: Readable, options: BodyOptions) {
    super()
    this.#source = source
    this.#options = options
    // The parser stops listening when it refuses a body. Without a listener, a connection that breaks then ends the process.
    this.on('error', () => {})
  }

  override _read(): void {
    if (!this.#isRead) this.#begin()
    this.#source.resume()
  }

  /** Not earlier: Node discards the rest of a body only if it was never read. */
  #begin(): void {
    this.#isRead = true
    this.#source
      .on('data', (chunk: Buffer) => this.#receive(chunk))
      .on('end', () => this.push(null))
      .on('error', (error) => this.destroy(error))
  }

  #receive(chunk: Buffer): void {
    // The rest of a refused body is discarded, so that the connection stays open for the answer.
    if (this.destroyed) return
    this.#bytes += chunk.length
    this.#chunks += 1
    const { hold, owner, refusal } = this.#options
    const bound = hold.growBody(Math.max(this.#bytes, this.#chunks * CHUNK_BYTES), owner)
    if (bound !== null) this.destroy(refusal(bound))
    else if (!this.push(chunk)) this.#source.pause()
  }
}
