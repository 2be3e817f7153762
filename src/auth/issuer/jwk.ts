import { importJWK } from 'jose/key/import'
import { ALGORITHMS, type Algorithm } from './algorithms.ts'

const MAX_KEYS = 100
export const MAX_KID_LENGTH = 256
/** A modulus below 2048 bits can be factored; above 8192 one signature check takes too long for a request. */
const MODULUS_BITS = { min: 2048, max: 8192 }
/** FIPS 186-5 requires at least 2^16 + 1: small exponents made many verifiers insecure. */
const EXPONENT = { min: 65537, max: 0xffffffff }
/** The size of a coordinate of P-256 and of a key of Ed25519. */
const CURVE_BYTES = 32

/**
 * A key of the issuer. While the key is unchanged, every fetch of the set returns the same object, so `===` shows whether
 * the key is still in the set.
 */
export interface VerificationKey {
  readonly kid: string
  /** The public part and the algorithms, as text. */
  readonly material: string
  /** One for each algorithm that the key may verify. */
  readonly publicKeys: ReadonlyMap<Algorithm, CryptoKey>
}

interface ImportOptions {
  known: ReadonlyMap<string, VerificationKey>
  algorithms: readonly Algorithm[]
}

/**
 * Imports the keys of a set that may verify one of the algorithms, at most 100. A bad key is ignored and never breaks the
 * others. If two usable keys have the same `kid`, the first is used. Throws if the document is not a key set.
 */
export async function importKeys(document: unknown, { known, algorithms }: ImportOptions) {
  const entries = isRecord(document) ? document.keys : undefined
  if (!Array.isArray(entries)) throw new Error('the response is not a key set')
  const keys = new Map<string, VerificationKey>()
  for (const entry of entries) {
    if (keys.size === MAX_KEYS) break
    const usable = readKey(entry, algorithms)
    if (!usable || keys.has(usable.kid)) continue
    const before = known.get(usable.kid)
    const key = before?.material === usable.material ? before : await importKey(usable)
    if (key) keys.set(usable.kid, key)
  }
  return { keys, ignored: entries.length - keys.size }
}

type PublicJwk = { kty: 'RSA' | 'EC' | 'OKP'; crv?: string } & Record<string, string>

interface UsableKey {
  kid: string
  material: string
  jwk: PublicJwk
  fitting: readonly Algorithm[]
}

function readKey(entry: unknown, algorithms: readonly Algorithm[]): UsableKey | undefined {
  if (!isRecord(entry)) return undefined
  const { kid, use, alg, key_ops: operations } = entry
  if (typeof kid !== 'string' || kid === '' || kid.length > MAX_KID_LENGTH) return undefined
  if (use !== undefined && use !== 'sig') return undefined
  if (operations !== undefined && !(Array.isArray(operations) && operations.includes('verify'))) return undefined
  // The set contains the private part, so every reader of the set can sign with this key.
  if (entry.d !== undefined) return undefined
  const jwk = readPublicPart(entry)
  if (!jwk) return undefined
  const fitting = algorithms.filter((name) => {
    const needed: { kty: string; crv?: string } = ALGORITHMS[name]
    return jwk.kty === needed.kty && jwk.crv === needed.crv && (alg === undefined || alg === name)
  })
  if (fitting.length === 0) return undefined
  return { kid, material: JSON.stringify([fitting, jwk]), jwk, fitting }
}

/** Only the members that the type of the key needs, so that no other member of the document changes the import. */
function readPublicPart({ kty, crv, n, e, x, y }: Record<string, unknown>): PublicJwk | undefined {
  if (kty === 'RSA' && isText(n) && isText(e) && isSoundRsa(n, e)) return { kty, n, e }
  if (kty === 'EC' && crv === 'P-256' && isCoordinate(x) && isCoordinate(y)) return { kty, crv, x, y }
  if (kty === 'OKP' && crv === 'Ed25519' && isCoordinate(x)) return { kty, crv, x }
  return undefined
}

function isSoundRsa(n: string, e: string): boolean {
  const modulus = unsigned(n)
  const exponent = unsigned(e)
  if (!modulus || !exponent) return false
  const bits = modulus.toString(2).length
  if (bits < MODULUS_BITS.min || bits > MODULUS_BITS.max || modulus % 2n === 0n) return false
  return exponent >= EXPONENT.min && exponent <= EXPONENT.max && exponent % 2n === 1n
}

function isCoordinate(text: unknown): text is string {
  return isText(text) && decode(text)?.length === CURVE_BYTES
}

function unsigned(text: string): bigint | undefined {
  const bytes = decode(text)
  return bytes && BigInt(`0x${bytes.toString('hex')}`)
}

/** Undefined for text that is not canonical base64url. */
function decode(text: string): Buffer | undefined {
  if (text.length > 2048) return undefined
  const bytes = Buffer.from(text, 'base64url')
  return bytes.length > 0 && bytes.toString('base64url') === text ? bytes : undefined
}

async function importKey({ kid, material, jwk, fitting }: UsableKey): Promise<VerificationKey | undefined> {
  try {
    const imports = fitting.map(async (name) => [name, await importJWK(jwk, name)] as const)
    return { kid, material, publicKeys: new Map(await Promise.all(imports)) }
  } catch {
    return undefined
  }
}

function isText(value: unknown): value is string {
  return typeof value === 'string'
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
