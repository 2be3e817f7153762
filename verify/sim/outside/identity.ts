import { generateKeyPairSync, KeyObject, sign, verify } from 'node:crypto'

export const ISSUER = 'http://127.0.0.1:9100'
/** A minute and a half before a month ends, so that usage falls into two periods. */
export const START_MS = Date.UTC(2026, 0, 31, 23, 58, 30)
/** When the short-lived token ends, after the start. */
export const SHORT_TOKEN_MS = 20_000

export interface Identity {
  jwks: string
  user(index: number): { sub: string; token: string }
  admin: { sub: string; token: string }
  /** Good until `SHORT_TOKEN_MS`. */
  short: { sub: string; token: string }
  /** Well formed, and signed by somebody else. */
  forged: string
}

const MAX_USERS = 3

/** The identity provider: signing takes time, so each process signs once, and every seed uses the same tokens. */
export function createIdentity(): Identity {
  const { privateKey, publicKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  const kid = 'sim-key'
  const mint = (sub: string, claims: object, lifeMs: number, key: KeyObject = privateKey): string => {
    const iat = Math.floor(START_MS / 1000) - 60
    const exp = Math.floor((START_MS + lifeMs) / 1000)
    const head = encode({ alg: 'RS256', kid, typ: 'JWT' })
    const body = encode({ iss: ISSUER, sub, iat, exp, token_use: 'access', client_id: 'sim', ...claims })
    return `${head}.${body}.${sign('sha256', Buffer.from(`${head}.${body}`), key).toString('base64url')}`
  }
  const monthMs = 30 * 86_400_000
  const users = Array.from({ length: MAX_USERS }, (_, index) => {
    const sub = `user-${index + 1}`
    return { sub, token: mint(sub, { email: `${sub}@example.com` }, monthMs) }
  })
  const stranger = generateKeyPairSync('rsa', { modulusLength: 2048 })
  return {
    jwks: JSON.stringify({ keys: [{ ...publicKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'RS256' }] }),
    user: (index) => users[index] as { sub: string; token: string },
    admin: { sub: 'admin', token: mint('admin', { 'custom:scopes': 'admin:*' }, monthMs) },
    short: { sub: 'short', token: mint('short', {}, SHORT_TOKEN_MS) },
    forged: mint('admin', { 'custom:scopes': 'admin:*' }, monthMs, stranger.privateKey),
  }
}

function encode(value: object): string {
  return Buffer.from(JSON.stringify(value)).toString('base64url')
}

/**
 * WebCrypto checks signatures on the thread pool, whose timing no seed controls. Here it answers on the spot, with the
 * same verdict.
 */
export function makeSignaturesSynchronous(): void {
  const verdicts = new Map<string, boolean>()
  const verifyNow = async (
    _algorithm: unknown,
    key: CryptoKey,
    signature: Uint8Array,
    data: Uint8Array,
  ): Promise<boolean> => {
    const name = `${Buffer.from(signature).toString('latin1')}.${Buffer.from(data).toString('latin1')}`
    const known = verdicts.get(name)
    if (known !== undefined) return known
    const verdict = verify('sha256', data, KeyObject.from(key), signature)
    verdicts.set(name, verdict)
    return verdict
  }
  Object.defineProperty(crypto.subtle, 'verify', { value: verifyNow, configurable: true })
}
