import type { ColumnType } from '../database.ts'
import type { SqlValue } from '../sql.ts'

/** The ids of the element types in PostgreSQL. */
const TYPE_IDS: Readonly<Record<ColumnType, number>> = { bigint: 20, text: 25 }
const HEADER_BYTES = 20
const LENGTH_BYTES = 4
const BIGINT_BYTES = 8
const NULL_LENGTH = -1
const TWO_TO_32 = 2 ** 32

/**
 * An array in the binary format of PostgreSQL. The server copies it; an array as text or JSON it would have to parse, and
 * texts in it would have to be escaped.
 */
export function toBinaryArray(type: ColumnType, values: readonly SqlValue[]): Buffer {
  const sizes = values.map((value) => sizeOf(type, value))
  const bytes = sizes.reduce((sum, size) => sum + LENGTH_BYTES + Math.max(0, size), HEADER_BYTES)
  const array = Buffer.allocUnsafe(bytes)
  array.writeInt32BE(1, 0) // one dimension
  array.writeInt32BE(sizes.includes(NULL_LENGTH) ? 1 : 0, 4) // whether some values are null
  array.writeInt32BE(TYPE_IDS[type], 8)
  array.writeInt32BE(values.length, 12)
  array.writeInt32BE(1, 16) // the index of the first value
  let at = HEADER_BYTES
  values.forEach((value, index) => {
    const size = sizes[index] ?? NULL_LENGTH
    at = array.writeInt32BE(size, at)
    if (value === null) return
    if (type === 'text') array.write(String(value), at)
    else writeBigint(array, Number(value), at)
    at += size
  })
  return array
}

function sizeOf(type: ColumnType, value: SqlValue): number {
  if (value === null) return NULL_LENGTH
  if (type === 'bigint') return BIGINT_BYTES
  const text = String(value)
  // The encoding would replace it by another character.
  if (!text.isWellFormed()) throw new RangeError('A text with an unpaired surrogate cannot be stored')
  return Buffer.byteLength(text)
}

function writeBigint(array: Buffer, value: number, at: number): void {
  if (!Number.isSafeInteger(value)) throw new RangeError(`${value} is not a safe integer`)
  const high = Math.floor(value / TWO_TO_32)
  array.writeInt32BE(high, at)
  array.writeUInt32BE(value - high * TWO_TO_32, at + LENGTH_BYTES)
}
