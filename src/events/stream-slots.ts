import { ApiError, UnavailableError } from '../core/errors.ts'

const MAX_STREAMS = 20_000
const MAX_STREAMS_PER_CALLER = 50

/** Limits the open streams of all kinds in this process, for one caller and in total. */
export class StreamSlots {
  readonly #perCaller = new Map<string, number>()
  #taken = 0

  /** Returns the function that releases the slot; a second call does nothing. Throws if no slot is free. */
  take(caller: string): () => void {
    const mine = this.#perCaller.get(caller) ?? 0
    if (mine >= MAX_STREAMS_PER_CALLER) {
      throw new ApiError('rate_limit_exceeded', 'Too many open streams', { headers: { 'retry-after': '5' } })
    }
    if (this.#taken >= MAX_STREAMS) throw new UnavailableError('Too many open streams', { retryAfterSeconds: 5 })
    this.#perCaller.set(caller, mine + 1)
    this.#taken += 1
    let isReleased = false
    return () => {
      if (isReleased) return
      isReleased = true
      this.#taken -= 1
      const left = (this.#perCaller.get(caller) ?? 1) - 1
      if (left > 0) this.#perCaller.set(caller, left)
      else this.#perCaller.delete(caller)
    }
  }
}
