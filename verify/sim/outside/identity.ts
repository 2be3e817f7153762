import { generateKeyPairSync, KeyObject, verify } from 'node:crypto'
import { type MintRequest, TokenMint } from '../../../src/sandbox/identity-provider/token-mint.ts'

export const ISSUER = 'https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_Simulated'
/** A minute and a half before a month ends, so that usage falls into two periods. */
export const START_MS = Date.UTC(2026, 0, 31, 23, 58, 30)
/** When the short-lived token expires, counted from the start. */
export const SHORT_TOKEN_MS = 20_000

export interface Identity {
  jwks: string
  user(index: number): { sub: string; token: string }
  admin: { sub: string; token: string }
  /** Valid until `SHORT_TOKEN_MS`. */
  short: { sub: string; token: string }
  /** Well formed, but signed with a key that is not the provider's. */
  forged: string
}

const MAX_USERS = 8
const MONTH_MS = 30 * 86_400_000

export function subOf(index: number): string {
  return `user-${index + 1}`
}

/** The scopes of a principal's token. */
export function scopesOf(sub: string): string[] {
  return sub === 'admin' ? ['admin:*'] : ['read:projects', `orders:${sub}`]
}

/** Tokens of the sandbox's identity provider. Signing takes time, so each process signs once, and all seeds use the same tokens. */
export async function createIdentity(): Promise<Identity> {
  const issuedAtMs = START_MS - 60_000
  const issued = () => issuedAtMs
  const clock = { now: issued, calendar: issued, elapsed: issued, sleep: () => Promise.resolve() }
  const mint = new TokenMint({ issuer: ISSUER, clock, users: [] })
  await mint.rotate()
  const tokenFor = (request: MintRequest, lifeMs: number) =>
    mint.mint({ ...request, expiresInSeconds: (START_MS + lifeMs - issuedAtMs) / 1000 })
  const users = Array.from({ length: MAX_USERS }, (_, index) => {
    const sub = subOf(index)
    return { sub, token: tokenFor({ sub, email: `${sub}@example.com`, scopes: scopesOf(sub) }, MONTH_MS) }
  })
  const admin = { sub: 'admin', scopes: scopesOf('admin') }
  const { privateKey: key } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  return {
    jwks: JSON.stringify(mint.jwks),
    user: (index) => users[index] as { sub: string; token: string },
    admin: { sub: 'admin', token: tokenFor(admin, MONTH_MS) },
    short: { sub: 'short', token: tokenFor({ sub: 'short' }, SHORT_TOKEN_MS) },
    forged: tokenFor({ ...admin, key }, MONTH_MS),
  }
}

/**
 * WebCrypto checks signatures on the thread pool, whose timing the seed does not control. This version returns the same
 * result synchronously.
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
