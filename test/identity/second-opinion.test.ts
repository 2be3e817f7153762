import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { mock, test } from 'node:test'
import type { Algorithm } from '../../src/auth/issuer/algorithms.ts'
import { KeySet } from '../../src/auth/issuer/key-set.ts'
import { TokenFault } from '../../src/auth/token-fault.ts'
import { TokenVerifier } from '../../src/auth/token-verifier.ts'
import { silentLog } from '../../src/core/log.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { importPackage } from '../support/oidc-provider.ts'
import { AUDIENCE, ISSUER, JWKS, mutatedTokens, NOW_SECONDS, soundTokens } from './mutated-tokens.ts'

interface AwsJwtVerify {
  JwtVerifier: {
    create(options: { issuer: string; audience: string; jwksUri: string }): {
      cacheJwks(jwks: object): void
      verifySync(token: string): object
    }
  }
}

/** Their algorithms, without RS384 and the like, which ours never accept. They have no PS256. */
const algorithms: Algorithm[] = ['RS256', 'ES256', 'EdDSA']
const COUNT = 500

/** Null: accepted. */
interface Difference {
  ours: TokenFault | null
  theirs: Error | null
}

const oursSays =
  (reason: string, message: RegExp) =>
  ({ ours }: Difference) =>
    ours?.reason === reason && message.test(ours.message)

/** Every kind of difference, by its name in docs/authentication.md. */
const EXPLANATIONS: Record<string, (difference: Difference) => boolean> = {
  'another spelling of base64url': oursSays('malformed', /canonical/),
  'bytes that are not UTF-8': oursSays('malformed', /JSON in UTF-8/),
  'a repeated name': oursSays('malformed', /repeats a name/),
  'over 8 KB': oursSays('too_long', /./),
  'a refused header parameter': oursSays('header', /parameter/),
  'another `typ`': oursSays('header', /type/),
  'RS384 and RS512': oursSays('algorithm', /./),
  'an unsafe key': oursSays('unknown_key', /./),
  'no `exp`': oursSays('claims', /exp/),
  'at the second of `exp`': oursSays('expired', /./),
  '`sub`': oursSays('claims', /sub/),
  '`email`': oursSays('claims', /email/),
  '`custom:scopes`': oursSays('claims', /custom:scopes/),
  'claims that we do not read': ({ ours, theirs }) =>
    ours === null && /(scope|jti) claim is not a string|aud claim is not a string or array/.test(theirs?.message ?? ''),
}

test(`aws-jwt-verify and the gate agree on ${COUNT} mutated tokens, but for differences that the docs explain`, async (t) => {
  const { JwtVerifier } = await importPackage<AwsJwtVerify>('aws-jwt-verify')
  const second = JwtVerifier.create({ issuer: ISSUER, audience: AUDIENCE, jwksUri: `${ISSUER}/.well-known/jwks.json` })
  second.cacheJwks(JWKS)
  const clock = new ManualClock(NOW_SECONDS * 1000)
  const answer = async () => new Response(JSON.stringify(JWKS))
  const keySet = new KeySet({ url: ISSUER, algorithms, fetch: answer, clock, log: silentLog })
  const rules = { issuer: ISSUER, audiences: [AUDIENCE], clockToleranceSeconds: 0 }
  const gate = new TokenVerifier({ ...rules, keySet, algorithms, clock })

  const judge = async (token: string): Promise<Difference> => {
    const verdict = await gate.verify(token)
    const ours = verdict instanceof TokenFault ? verdict : null
    try {
      second.verifySync(token)
      return { ours, theirs: null }
    } catch (error) {
      return { ours, theirs: error as Error }
    }
  }

  mock.timers.enable({ apis: ['Date'], now: NOW_SECONDS * 1000 })
  try {
    for (const token of soundTokens()) assert.deepEqual(await judge(token), { ours: null, theirs: null })
    const tokens = mutatedTokens(COUNT)
    assert.equal(new Set(tokens).size, COUNT)
    const seen = new Map<string, number>()
    const agreed = { accepted: 0, refused: 0 }
    for (const token of tokens) {
      const verdicts = await judge(token)
      if ((verdicts.ours === null) === (verdicts.theirs === null)) {
        agreed[verdicts.ours === null ? 'accepted' : 'refused'] += 1
        continue
      }
      const name = Object.keys(EXPLANATIONS).find((one) => EXPLANATIONS[one]?.(verdicts))
      assert.ok(name, `No explanation: ours ${verdicts.ours}, theirs ${verdicts.theirs}, of ${token.slice(0, 2000)}`)
      seen.set(name, (seen.get(name) ?? 0) + 1)
    }
    t.diagnostic(JSON.stringify({ ...agreed, ...Object.fromEntries(seen) }))
    assert.deepEqual([...seen.keys()].sort(), Object.keys(EXPLANATIONS).sort(), 'each explanation is needed')
    assert.ok(agreed.accepted > 30 && agreed.refused > 100, JSON.stringify(agreed))
  } finally {
    mock.timers.reset()
  }
})

test('docs/authentication.md explains each difference, and no other', () => {
  const page = readFileSync(new URL('../../docs/authentication.md', import.meta.url), 'utf8')
  const [, section = ''] = page.split('### A second opinion')
  const [table = ''] = section.split(/^#/m)
  const rows = Array.from(table.matchAll(/^\| (.+?) \| (?:refused|accepted) \|/gm), ([, name]) => name)
  assert.deepEqual(rows.sort(), Object.keys(EXPLANATIONS).sort())
})
