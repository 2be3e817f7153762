import type { Clock } from './clock.ts'
import type { Random } from './random.ts'

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz'
const TIME_CHARS = 10
const RANDOM_CHARS = 16
const CHARS = TIME_CHARS + RANDOM_CHARS

export type IdPrefix =
  | 'prj'
  | 'svc'
  | 'key'
  | 'job'
  | 'dev'
  | 'ntf'
  | 'cbk'
  | 'rcb'
  | 'tml'
  | 'req'
  | 'aud'
  | 'opr'
  | 'dlv'
  | 'whe'

/**
 * Prefixed ids that sort by creation time: 48 bits of milliseconds and 80 random bits in Crockford base32. The ids of one
 * generator always increase: within a millisecond, or when the clock steps back, the random part is incremented.
 */
export class IdGenerator {
  readonly #clock: Pick<Clock, 'now'>
  readonly #random: Random
  #lastMs = -1
  // The last id as digits and as text: the next id of the same millisecond differs in one or two digits.
  readonly #digits = new Uint8Array(CHARS)
  readonly #text = Buffer.alloc(CHARS)

  constructor(clock: Pick<Clock, 'now'>, random: Random) {
    this.#clock = clock
    this.#random = random
  }

  /** Greater than every id that this generator made, and than `after`, which another one may have made. */
  next(prefix: IdPrefix, after?: string): string {
    const now = Math.max(this.#clock.now(), after === undefined ? 0 : timeOfId(after) + 1)
    if (now > this.#lastMs) this.#begin(now)
    else this.#countUp()
    return `${prefix}_${this.#text.toString('latin1')}`
  }

  #begin(ms: number): void {
    this.#writeTime(ms)
    const bytes = this.#random.bytes(RANDOM_CHARS)
    for (let i = 0; i < RANDOM_CHARS; i++) this.#write(TIME_CHARS + i, (bytes[i] ?? 0) & 31)
  }

  #countUp(): void {
    for (let i = CHARS - 1; i >= TIME_CHARS; i--) {
      const digit = this.#digits[i] ?? 0
      this.#write(i, (digit + 1) % 32)
      if (digit < 31) return
    }
    this.#writeTime(this.#lastMs + 1)
  }

  #writeTime(ms: number): void {
    this.#lastMs = ms
    for (let rest = ms, i = TIME_CHARS - 1; i >= 0; i--) {
      this.#write(i, rest % 32)
      rest = Math.floor(rest / 32)
    }
  }

  #write(index: number, digit: number): void {
    this.#digits[index] = digit
    this.#text[index] = ALPHABET.charCodeAt(digit)
  }
}

/** Sorts after every id created before this time, and before every other id. */
export function firstIdAt(prefix: IdPrefix, ms: number): string {
  let time = ''
  for (let rest = Math.max(0, ms), i = 0; i < TIME_CHARS; i++) {
    time = `${ALPHABET[rest % 32]}${time}`
    rest = Math.floor(rest / 32)
  }
  return `${prefix}_${time}`
}

/** The time at which an id was created, in epoch milliseconds. */
export function timeOfId(id: string): number {
  const time = id.slice(id.indexOf('_') + 1).slice(0, TIME_CHARS)
  return Array.from(time).reduce((ms, char) => ms * 32 + ALPHABET.indexOf(char), 0)
}
