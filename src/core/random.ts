import { randomBytes } from 'node:crypto'

/** Randomness is passed as an argument, so that the simulation can replay it. */
export interface Random {
  bytes(count: number): Uint8Array
  /** In [0, 1), for jitter. */
  fraction(): number
}

const POOL_BYTES = 4_096
let pool = new Uint8Array(0)
let used = 0

/** A system call for a page costs as much as for a few bytes, so this reads whole pages. No byte is used twice. */
function drawBytes(count: number): Uint8Array {
  if (count > POOL_BYTES) return randomBytes(count)
  if (used + count > pool.length) {
    pool = randomBytes(POOL_BYTES)
    used = 0
  }
  used += count
  return pool.subarray(used - count, used)
}

export const systemRandom: Random = {
  bytes: drawBytes,
  fraction: () => Math.random(),
}

/** A version 4 UUID. */
export function uuidFrom(random: Random): string {
  const bytes = random.bytes(16)
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80
  const hex = Buffer.from(bytes).toString('hex')
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')
}
