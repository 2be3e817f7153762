import { createHash } from 'node:crypto'
import { crc32 } from 'node:zlib'
import type { Random } from '../core/random.ts'

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
const SECRET_CHARS = 40
const CHECK_CHARS = 6
const SHAPE = new RegExp(`^pak_[0-9A-Za-z]{${SECRET_CHARS + CHECK_CHARS}}$`)

/**
 * Service keys: `pak_`, 40 random base62 characters (238 bits) and 6 of CRC32, so that a typo is refused without a database
 * query. With this entropy a fast hash is enough; a slow hash would help an attacker to overload the service.
 */
export function createServiceKey(random: Random): string {
  let secret = ''
  while (secret.length < SECRET_CHARS) {
    for (const byte of random.bytes(SECRET_CHARS)) {
      // 248 = 4 × 62: bytes from 248 on would make the first letters of the alphabet more likely.
      if (byte < 248 && secret.length < SECRET_CHARS) secret += ALPHABET[byte % 62]
    }
  }
  return `pak_${secret}${checkOf(secret)}`
}

export function isWellFormedServiceKey(key: string): boolean {
  if (!SHAPE.test(key)) return false
  const secret = key.slice('pak_'.length, -CHECK_CHARS)
  return checkOf(secret) === key.slice(-CHECK_CHARS)
}

export function hashServiceKey(key: string): string {
  return createHash('sha256').update(key).digest('hex')
}

/** The last characters: enough to recognise a key in a list, too few to guess it. */
export function hintOf(key: string): string {
  return key.slice(-4)
}

function checkOf(secret: string): string {
  let rest = crc32(secret)
  let text = ''
  for (let i = 0; i < CHECK_CHARS; i++) {
    text = ALPHABET[rest % 62] + text
    rest = Math.floor(rest / 62)
  }
  return text
}
