import type { Random } from '../../../src/core/random.ts'

/** The only source of randomness: one seed gives one sequence, and each part has a sequence of its own. */
export class Prng implements Random {
  readonly #key: string
  #a: number
  #b: number
  #c: number
  #counter = 1

  constructor(key: string) {
    this.#key = key
    ;[this.#a, this.#b, this.#c] = [hashOf(`${key}#a`), hashOf(`${key}#b`), hashOf(`${key}#c`)]
    for (let warmUp = 0; warmUp < 12; warmUp++) this.#next()
  }

  /** A sequence for one part: its draws never change those of other parts. */
  split(name: string): Prng {
    return new Prng(`${this.#key}/${name}`)
  }

  fraction(): number {
    return this.#next() / 2 ** 32
  }

  bytes(count: number): Uint8Array {
    const bytes = new Uint8Array(count)
    for (let at = 0, word = 0; at < count; at++, word >>>= 8) {
      if (at % 4 === 0) word = this.#next()
      bytes[at] = word
    }
    return bytes
  }

  chance(probability: number): boolean {
    return this.fraction() < probability
  }

  /** An integer from `min` to `max`, both included. */
  int(min: number, max: number): number {
    return min + Math.floor(this.fraction() * (max - min + 1))
  }

  pick<T>(choices: readonly T[]): T {
    return choices[this.int(0, choices.length - 1)] as T
  }

  weighted<Name extends string>(weights: Readonly<Partial<Record<Name, number>>>): Name {
    const entries = Object.entries<number | undefined>(weights) as [Name, number][]
    let left = this.fraction() * entries.reduce((sum, [, weight]) => sum + weight, 0)
    for (const [name, weight] of entries) {
      left -= weight
      if (left < 0) return name
    }
    return (entries[0] as [Name, number])[0]
  }

  /** sfc32: small and fast, and random enough to choose faults. */
  #next(): number {
    const sum = (this.#a + this.#b + this.#counter++) | 0
    this.#a = this.#b ^ (this.#b >>> 9)
    this.#b = (this.#c + (this.#c << 3)) | 0
    this.#c = ((this.#c << 21) | (this.#c >>> 11)) + sum
    return sum >>> 0
  }
}

/** FNV-1a with a final mix. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193)
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return hash ^ (hash >>> 16)
}
