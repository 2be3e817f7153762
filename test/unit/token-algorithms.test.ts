import assert from 'node:assert/strict'
import { constants, createHmac, generateKeyPairSync, type KeyObject, sign } from 'node:crypto'
import { describe, test } from 'node:test'
import { ALGORITHMS, type Algorithm } from '../../src/auth/issuer/algorithms.ts'
import { KeySet } from '../../src/auth/issuer/key-set.ts'
import type { UserPrincipal } from '../../src/auth/principal.ts'
import { parseScopesMap } from '../../src/auth/scopes.ts'
import { TokenFault } from '../../src/auth/token-fault.ts'
import { TokenVerifier, type TokenVerifierOptions } from '../../src/auth/token-verifier.ts'
import { silentLog } from '../../src/core/log.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { rsaPair } from '../support/rsa-keys.ts'

const ISSUER = 'https://login.example.com/'
const START_MS = Date.UTC(2026, 0, 1)
const CLAIMS = { iss: ISSUER, sub: 'ada', exp: START_MS / 1000 + 3600 }
const ALL = Object.keys(ALGORITHMS) as Algorithm[]

const rsa = rsaPair('algorithms')
const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const ed = generateKeyPairSync('ed25519')
const PAIRS = { RS256: rsa, PS256: rsa, ES256: ec, EdDSA: ed }

const SIGN: Record<Algorithm, (input: Buffer, key: KeyObject) => Buffer> = {
  RS256: (input, key) => sign('sha256', input, key),
  PS256: (input, key) => sign('sha256', input, { key, padding: constants.RSA_PKCS1_PSS_PADDING, saltLength: 32 }),
  ES256: (input, key) => sign('sha256', input, { key, dsaEncoding: 'ieee-p1363' }),
  EdDSA: (input, key) => sign(null, input, key),
}

const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
const jwkOf = (alg: Algorithm, more: object = {}) => ({
  ...PAIRS[alg].publicKey.export({ format: 'jwk' }),
  kid: alg,
  ...more,
})

function seal(header: object, claims: object, signer: (input: Buffer) => Buffer): string {
  const input = `${encode(header)}.${encode(claims)}`
  return `${input}.${signer(Buffer.from(input)).toString('base64url')}`
}

function tokenOf(alg: Algorithm, claims: object = {}, header: object = {}): string {
  const signer = (input: Buffer) => SIGN[alg](input, PAIRS[alg].privateKey)
  return seal({ alg, kid: alg, ...header }, { ...CLAIMS, ...claims }, signer)
}

interface Setup extends Partial<TokenVerifierOptions> {
  keys?: object[]
}

function setUp({ keys = ALL.map((alg) => jwkOf(alg)), algorithms = ALL, ...rules }: Setup = {}) {
  const clock = new ManualClock(START_MS)
  const answer = async () => new Response(JSON.stringify({ keys }))
  const keySet = new KeySet({ url: `${ISSUER}keys`, algorithms, fetch: answer, clock, log: silentLog })
  const options = { issuer: ISSUER, clockToleranceSeconds: 0, keySet, algorithms, clock, ...rules }
  return { keySet, verifier: new TokenVerifier(options) }
}

async function refusal({ verifier }: ReturnType<typeof setUp>, token: string): Promise<string | undefined> {
  const outcome = await verifier.verify(token)
  return outcome instanceof TokenFault ? outcome.reason : undefined
}

async function scopesOf(setup: ReturnType<typeof setUp>, token: string): Promise<readonly string[]> {
  const outcome = await setup.verifier.verify(token)
  assert.ok(!(outcome instanceof TokenFault), String(outcome))
  return (outcome as UserPrincipal).scopes
}

describe('the algorithms of tokens', () => {
  for (const alg of ALL) {
    test(`${alg} is accepted if it is listed, and no other algorithm is`, async () => {
      for (const token of ALL.map((one) => tokenOf(one))) {
        const setup = setUp({ algorithms: [alg] })
        assert.equal(
          await refusal(setup, token),
          token.startsWith(`${encode({ alg, kid: alg })}.`) ? undefined : 'algorithm',
        )
      }
      assert.equal(await refusal(setUp(), tokenOf(alg)), undefined)
    })

    test(`an altered token with ${alg} is refused`, async () => {
      const setup = setUp()
      const [header, , signature] = tokenOf(alg).split('.')
      assert.equal(await refusal(setup, `${header}.${encode({ ...CLAIMS, sub: 'grace' })}.${signature}`), 'signature')
      const other = seal({ alg, kid: alg }, CLAIMS, () =>
        Buffer.alloc(Buffer.from(signature ?? '', 'base64url').length),
      )
      assert.equal(await refusal(setup, other), 'signature')
    })

    test(`a key for ${alg} verifies no algorithm of another type of key`, async () => {
      for (const other of ALL.filter((one) => ALGORITHMS[one].kty !== ALGORITHMS[alg].kty)) {
        assert.equal(await refusal(setUp(), tokenOf(other, {}, { kid: alg })), 'algorithm')
      }
    })

    test(`a key that the set names for another algorithm than ${alg} is not used for it`, async () => {
      const setup = setUp({ keys: [jwkOf(alg, { alg: 'RS512' }), jwkOf('RS256', { kid: 'sound' })] })
      assert.equal(await refusal(setup, tokenOf(alg)), 'unknown_key')
    })
  }

  test('an RSA key without a named algorithm verifies both, and one with a name only that one', async () => {
    const both = setUp({ keys: [jwkOf('RS256')] })
    assert.equal(await refusal(both, tokenOf('RS256')), undefined)
    assert.equal(await refusal(both, tokenOf('PS256', {}, { kid: 'RS256' })), undefined)
    const named = setUp({ keys: [jwkOf('RS256', { alg: 'PS256' })] })
    assert.equal(await refusal(named, tokenOf('PS256', {}, { kid: 'RS256' })), undefined)
    assert.equal(await refusal(named, tokenOf('RS256')), 'algorithm')
  })

  test('a signature of one algorithm under the name of the other is refused', async () => {
    const swap = (alg: Algorithm, by: Algorithm) =>
      seal({ alg, kid: alg }, CLAIMS, (input) => SIGN[by](input, PAIRS[by].privateKey))
    assert.equal(await refusal(setUp(), swap('PS256', 'RS256')), 'signature')
    assert.equal(await refusal(setUp(), swap('RS256', 'PS256')), 'signature')
    const der = seal({ alg: 'ES256', kid: 'ES256' }, CLAIMS, (input) => sign('sha256', input, ec.privateKey))
    assert.equal(await refusal(setUp(), der), 'signature', 'ES256 in DER')
  })

  test('with every algorithm listed, none of the others is accepted', async () => {
    const setup = setUp()
    const by = (alg: string) => seal({ alg, kid: 'ES256' }, CLAIMS, (input) => SIGN.ES256(input, ec.privateKey))
    for (const alg of ['none', 'ES256K', 'ES384', 'es256', 'Ed25519', 'RS384', 'PS512', 'toString', '']) {
      assert.equal(await refusal(setup, by(alg)), 'algorithm', alg)
    }
    const secret = JSON.stringify(jwkOf('ES256'))
    const hmac = seal({ alg: 'HS256', kid: 'ES256' }, CLAIMS, (input) =>
      createHmac('sha256', secret).update(input).digest(),
    )
    assert.equal(await refusal(setup, hmac), 'algorithm')
  })

  test('bad keys on curves are ignored and do not break the others', async () => {
    const p384 = generateKeyPairSync('ec', { namedCurve: 'P-384' }).publicKey.export({ format: 'jwk' })
    const x25519 = generateKeyPairSync('x25519').publicKey.export({ format: 'jwk' })
    const { x, y } = jwkOf('ES256') as { x: string; y: string }
    const bad = [
      { ...p384, kid: 'P-384' },
      { ...x25519, kid: 'X25519' },
      jwkOf('ES256', { kid: 'not on the curve', y: x }),
      jwkOf('ES256', { kid: 'padded', x: `${x}=` }),
      jwkOf('ES256', { kid: 'short', x: Buffer.from(x, 'base64url').subarray(1).toString('base64url') }),
      jwkOf('ES256', { kid: 'no y', y: undefined }),
      jwkOf('ES256', { kid: 'number', y: 1 }),
      jwkOf('ES256', { kid: 'private', d: 'AAAA' }),
      jwkOf('ES256', { kid: 'encryption', use: 'enc' }),
      jwkOf('ES256', { kid: 'other curve', crv: 'P-384' }),
      jwkOf('EdDSA', { kid: 'other type', kty: 'EC' }),
      jwkOf('EdDSA', { kid: 'Ed448', crv: 'Ed448' }),
      jwkOf('EdDSA', {
        kid: 'long',
        x: Buffer.concat([Buffer.from(x, 'base64url'), Buffer.from(y, 'base64url')]).toString('base64url'),
      }),
    ]
    const { keySet } = setUp({ keys: [...bad, jwkOf('ES256'), jwkOf('EdDSA')] })
    assert.equal((await keySet.find('ES256'))?.kid, 'ES256')
    assert.equal(keySet.state().keys, 2)
    for (const { kid } of bad) assert.equal(keySet.current(kid), undefined, kid)
  })
})

describe('the audience of tokens', () => {
  const audiences = ['api', 'https://api.example.com/']
  const heard = (rules: Setup, claims: object) => refusal(setUp(rules), tokenOf('RS256', claims))

  test('a token must name one of the audiences', async () => {
    for (const aud of ['api', ['other', 'https://api.example.com/'], ['api']]) {
      assert.equal(await heard({ audiences }, { aud }), undefined, String(aud))
    }
    for (const aud of [
      undefined,
      null,
      '',
      'API',
      'api ',
      'other',
      [],
      ['other'],
      [['api']],
      { api: 1 },
      'api other',
    ]) {
      assert.equal(await heard({ audiences }, { aud }), 'audience', JSON.stringify(aud))
    }
  })

  test('without audiences, the claim is not read', async () => {
    for (const aud of [undefined, 'other', 7]) assert.equal(await heard({}, { aud }), undefined)
  })
})

describe('the scopes of tokens', () => {
  const scopesClaim = 'permissions'
  const scopes = (rules: Setup, claims: object) => scopesOf(setUp(rules), tokenOf('RS256', claims))

  test('another claim is a text or a list, and custom:scopes then grants nothing', async () => {
    const claims = (permissions: unknown) => ({ permissions, 'custom:scopes': 'admin:*' })
    assert.deepEqual(await scopes({ scopesClaim }, claims('read:projects  read:users')), [
      'read:projects',
      'read:users',
    ])
    assert.deepEqual(await scopes({ scopesClaim }, claims(['read:projects', ''])), ['read:projects'])
    assert.deepEqual(await scopes({ scopesClaim }, claims([])), [])
    assert.deepEqual(await scopes({ scopesClaim }, claims(undefined)), [])
  })

  test('a name in a list is one scope, also with a space in it', async () => {
    assert.deepEqual(await scopes({ scopesClaim }, { permissions: ['x admin:*'] }), ['x admin:*'])
  })

  test('a claim that holds anything else is refused', async () => {
    for (const permissions of [null, 1, true, {}, [1], [['admin:*']], [null], { 0: 'admin:*' }]) {
      const token = tokenOf('RS256', { permissions })
      assert.equal(await refusal(setUp({ scopesClaim }), token), 'claims', JSON.stringify(permissions))
    }
    assert.equal(await refusal(setUp(), tokenOf('RS256', { 'custom:scopes': ['admin:*'] })), 'claims')
  })

  test("the provider's names stand for ours; a name that is not in the map stays as it is", async () => {
    const entries = [
      'editor=read:projects write:projects',
      'urn:x=1 = admin:*',
      'write:users=read:users',
      'API Admin=admin:*',
    ]
    const scopesMap = parseScopesMap(entries)
    const claims = { 'custom:scopes': 'editor unknown urn:x=1 read:operations write:users', permissions: ['API Admin'] }
    const expected = ['read:projects', 'write:projects', 'unknown', 'admin:*', 'read:operations', 'read:users']
    assert.deepEqual(await scopes({ scopesMap }, claims), expected)
    assert.deepEqual(await scopes({ scopesMap, scopesClaim }, claims), ['admin:*'])
    for (const name of ['constructor', '__proto__', 'EDITOR']) {
      assert.deepEqual(await scopes({ scopesMap }, { 'custom:scopes': name }), [name])
    }
  })
})
