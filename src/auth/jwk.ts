import { importJWK } from 'jose/key/import'

const MAX_KEYS = 100
export const MAX_KID_LENGTH = 256
/** A modulus below 2048 bits can be factored; above 8192 one signature check takes too long for a request. */
const MODULUS_BITS = { min: 2048, max: 8192 }
/** FIPS 186-5 requires at least 2^16 + 1: small exponents made many verifiers insecure. */
const EXPONENT = { min: 65537, max: 0xffffffff }

/**
 * A key of the issuer. While the key is unchanged, every fetch of the set returns the same object, so `===` shows whether
 * the key is still in the set.
 */
export interface VerificationKey {
  readonly kid: string
  readonly modulus: string
  readonly exponent: string
  readonly publicKey: CryptoKey
}

/**
 * Imports the keys of a set that may verify RS256, at most 100. A bad key is ignored and never breaks the others. If two
 * usable keys have the same `kid`, the first is used. Throws if the document is not a key set.
 */
export async function importKeys(document: unknown, known: ReadonlyMap<string, VerificationKey>) {
  const entries = isRecord(document) ? document.keys : undefined
  if (!Array.isArray(entries)) throw new Error('the response is not a key set')
  const keys = new Map<string, VerificationKey>()
  for (const entry of entries) {
    if (keys.size === MAX_KEYS) break
    if (!isUsable(entry) || keys.has(entry.kid)) continue
    const before = known.get(entry.kid)
    if (before?.modulus === entry.n && before.exponent === entry.e) {
      keys.set(entry.kid, before)
      continue
    }
    const imported = await importKey(entry)
    if (imported) keys.set(entry.kid, imported)
  }
  return { keys, ignored: entries.length - keys.size }
}

interface UsableJwk {
  kid: string
  n: string
  e: string
}

function isUsable(jwk: unknown): jwk is UsableJwk {
  if (!isRecord(jwk)) return false
  const { kid, kty, use, alg, n, e } = jwk
  if (typeof kid !== 'string' || kid === '' || kid.length > MAX_KID_LENGTH) return false
  if (kty !== 'RSA' || (use !== undefined && use !== 'sig') || (alg !== undefined && alg !== 'RS256')) return false
  if (jwk.key_ops !== undefined && !(Array.isArray(jwk.key_ops) && jwk.key_ops.includes('verify'))) return false
  // The set contains the private part, so every reader of the set can sign with this key.
  if (jwk.d !== undefined) return false
  const modulus = unsigned(n)
  const exponent = unsigned(e)
  if (!modulus || !exponent) return false
  const bits = modulus.toString(2).length
  if (bits < MODULUS_BITS.min || bits > MODULUS_BITS.max || modulus % 2n === 0n) return false
  return exponent >= EXPONENT.min && exponent <= EXPONENT.max && exponent % 2n === 1n
}

function unsigned(text: unknown): bigint | undefined {
  if (typeof text !== 'string' || text.length > 2048) return undefined
  const bytes = Buffer.from(text, 'base64url')
  if (bytes.length === 0 || bytes.toString('base64url') !== text) return undefined
  return BigInt(`0x${bytes.toString('hex')}`)
}

/** Only `n` and `e` are used, so that no other member of the document changes the import. */
async function importKey({ kid, n, e }: UsableJwk): Promise<VerificationKey | undefined> {
  try {
    return { kid, modulus: n, exponent: e, publicKey: await importJWK({ kty: 'RSA', n, e }, 'RS256') }
  } catch {
    return undefined
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
