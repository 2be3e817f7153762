import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { describe, test } from 'node:test'
import type { Algorithm } from '../../src/auth/issuer/algorithms.ts'
import { KeySet } from '../../src/auth/issuer/key-set.ts'
import type { UserPrincipal } from '../../src/auth/principal.ts'
import { TokenFault } from '../../src/auth/token-fault.ts'
import { TokenVerifier } from '../../src/auth/token-verifier.ts'
import { silentLog } from '../../src/core/log.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { importPackage } from '../support/oidc-provider.ts'

const ISSUER = 'https://login.example.com/'
const START_MS = Date.UTC(2026, 0, 1)
const CLAIMS = {
  iss: ISSUER,
  sub: 'ada',
  iat: START_MS / 1000,
  exp: START_MS / 1000 + 60,
  'custom:scopes': 'read:users',
}
const PAIRS = { ES256: generateKeyPairSync('ec', { namedCurve: 'P-256' }), EdDSA: generateKeyPairSync('ed25519') }

interface Jose {
  SignJWT: new (
    claims: object,
  ) => {
    setProtectedHeader(header: object): { sign(key: unknown): Promise<string> }
  }
}
interface FastJwt {
  createSigner(options: object): (claims: object) => string
}
interface HonoJwt {
  sign(claims: object, key: object, algorithm: string): Promise<string>
}

/** Each library signs with its own form of the private key. */
const LIBRARIES: Record<string, (alg: keyof typeof PAIRS) => Promise<string>> = {
  jose: async (alg) => {
    const { SignJWT } = await importPackage<Jose>('jose')
    return new SignJWT(CLAIMS).setProtectedHeader({ alg, kid: alg, typ: 'at+jwt' }).sign(PAIRS[alg].privateKey)
  },
  'fast-jwt': async (alg) => {
    const { createSigner } = await importPackage<FastJwt>('fast-jwt')
    const key = PAIRS[alg].privateKey.export({ type: 'pkcs8', format: 'pem' }).toString()
    return createSigner({ algorithm: alg, key, kid: alg })(CLAIMS)
  },
  hono: async (alg) => {
    const { sign } = await importPackage<HonoJwt>('hono/jwt')
    return sign(CLAIMS, { ...PAIRS[alg].privateKey.export({ format: 'jwk' }), alg, kid: alg }, alg)
  },
}

function verifierFor(algorithms: Algorithm[]): TokenVerifier {
  const clock = new ManualClock(START_MS)
  const keys = Object.entries(PAIRS).map(([kid, pair]) => ({ ...pair.publicKey.export({ format: 'jwk' }), kid }))
  const answer = async () => new Response(JSON.stringify({ keys }))
  const keySet = new KeySet({ url: ISSUER, algorithms, fetch: answer, clock, log: silentLog })
  return new TokenVerifier({ issuer: ISSUER, clockToleranceSeconds: 0, keySet, algorithms, clock })
}

describe('tokens of several libraries', () => {
  for (const [library, mint] of Object.entries(LIBRARIES)) {
    for (const alg of ['ES256', 'EdDSA'] as const) {
      test(`the gate accepts ${alg} of ${library}, refuses it altered, and refuses it where it is not listed`, async () => {
        const token = await mint(alg)
        const principal = (await verifierFor(['ES256', 'EdDSA']).verify(token)) as UserPrincipal
        assert.deepEqual([principal.sub, principal.scopes], ['ada', ['read:users']])
        const [header, , signature] = token.split('.')
        const forged = Buffer.from(JSON.stringify({ ...CLAIMS, 'custom:scopes': 'admin:*' })).toString('base64url')
        const refused = await verifierFor([alg]).verify(`${header}.${forged}.${signature}`)
        assert.ok(refused instanceof TokenFault && refused.reason === 'signature')
        const unlisted = await verifierFor(alg === 'ES256' ? ['EdDSA'] : ['ES256']).verify(token)
        assert.ok(unlisted instanceof TokenFault && unlisted.reason === 'algorithm')
      })
    }
  }
})
