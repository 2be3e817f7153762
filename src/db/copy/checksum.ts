import { hash } from 'node:crypto'
import type { Row } from '../database.ts'

const WORDS = 8

/** Counts rows and adds up their hashes: the same for the same rows in any order, on both engines. */
export class Checksum {
  rows = 0
  readonly #sums = new Uint32Array(WORDS)

  add(rows: readonly Row[]): void {
    for (const row of rows) {
      const cells = Object.keys(row)
        .sort()
        .map((name) => row[name])
      const digest = hash('sha256', JSON.stringify(cells), 'buffer')
      for (let word = 0; word < WORDS; word++) {
        this.#sums[word] = ((this.#sums[word] ?? 0) + digest.readUInt32LE(word * 4)) >>> 0
      }
    }
    this.rows += rows.length
  }

  get text(): string {
    return Buffer.from(this.#sums.buffer).toString('hex').slice(0, 32)
  }
}
