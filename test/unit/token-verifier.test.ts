import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { KeySet } from '../../src/auth/issuer/key-set.ts'
import type { UserPrincipal } from '../../src/auth/principal.ts'
import { TokenFault } from '../../src/auth/token-fault.ts'
import { TokenVerifier, type TokenVerifierOptions } from '../../src/auth/token-verifier.ts'
import { UnavailableError } from '../../src/core/errors.ts'
import { silentLog } from '../../src/core/log.ts'
import { type IdentityProvider, startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { goodTokens } from '../support/good-tokens.ts'
import { hostileTokens } from '../support/hostile-tokens.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { lendRsaPairs } from '../support/rsa-keys.ts'
import { TokenForge } from '../support/token-forge.ts'

const START_MS = Date.UTC(2026, 0, 1)
const clock = new ManualClock(START_MS)
let idp: IdentityProvider

before(async () => {
  idp = await startIdentityProvider({ clock, makeKey: lendRsaPairs() })
})
after(() => idp.close())

function setUp(options: Partial<TokenVerifierOptions> = {}) {
  const keySet = new KeySet({ url: idp.jwksUrl, fetch, clock, log: silentLog })
  const verifier = new TokenVerifier({ issuer: idp.issuer, clockToleranceSeconds: 0, clock, keySet, ...options })
  return { keySet, verifier }
}

async function refusal(verifier: TokenVerifier, token: string): Promise<string | undefined> {
  const outcome = await verifier.verify(token)
  return outcome instanceof TokenFault ? outcome.reason : undefined
}

/** The principal of a valid token. A remembered token gives the same object again, a new verification another one. */
async function accepted(verifier: TokenVerifier, token: string): Promise<UserPrincipal> {
  const outcome = await verifier.verify(token)
  assert.ok(outcome !== 'unchecked' && !(outcome instanceof TokenFault), String(outcome))
  return outcome
}

test('no hostile token passes, each refused for its own fault and never remembered', async (t) => {
  const table = await hostileTokens(idp)
  assert.ok(table.length >= 60)
  assert.equal(new Set(table.map(({ name }) => name)).size, table.length)
  const { verifier } = setUp()
  for (const { name, token, reason } of table) {
    await t.test(name, async () => {
      assert.equal(await refusal(verifier, token), reason)
      assert.equal(verifier.cacheSize, 0)
    })
  }
})

test('every unusual but valid token is accepted', async (t) => {
  const table = goodTokens(idp)
  const { verifier } = setUp()
  for (const { name, token } of table) {
    await t.test(name, async () => {
      const principal = await accepted(verifier, token)
      assert.equal(principal.kind, 'user')
      assert.equal(await accepted(verifier, token), principal)
    })
  }
  assert.equal(verifier.cacheSize, table.length)
})

test('a token names its user, email, scopes and expiry', async () => {
  const { verifier } = setUp()
  const token = idp.mint({
    sub: 'u-1',
    email: 'u@example.com',
    scopes: ['read:projects', 'admin:*'],
    expiresInSeconds: 60,
  })
  assert.deepEqual(await verifier.verify(token), {
    kind: 'user',
    sub: 'u-1',
    email: 'u@example.com',
    scopes: ['read:projects', 'admin:*'],
    expiresAtMs: START_MS + 60_000,
  })
})

test('a token without email and scopes names a user without them', async () => {
  const { verifier } = setUp()
  const { email, scopes } = await accepted(verifier, idp.mint({ sub: 'u-1' }))
  assert.deepEqual({ email, scopes }, { email: null, scopes: [] })
})

test('scopes are split on spaces alone, and the claim scope grants nothing', async () => {
  const { verifier } = setUp()
  const claims = { 'custom:scopes': '  a  b\tc ', scope: 'admin:*' }
  assert.deepEqual((await accepted(verifier, idp.mint({ claims }))).scopes, ['a', 'b\tc'])
})

test('a principal shared by requests cannot be altered by one of them', async () => {
  const { verifier } = setUp()
  const principal = await accepted(verifier, idp.mint())
  assert.throws(() => Object.assign(principal, { sub: 'another-user' }), TypeError)
  assert.throws(() => Array.prototype.push.call(principal.scopes, 'admin:*'), TypeError)
})

test('an expiry beyond all dates still is a date', async () => {
  const { verifier } = setUp()
  const { expiresAtMs } = await accepted(verifier, idp.mint({ claims: { exp: 1e300 } }))
  assert.equal(Number.isNaN(new Date(expiresAtMs).getTime()), false)
})

test('the leeway widens exp and nbf by exactly itself', async () => {
  const { verifier } = setUp({ clockToleranceSeconds: 5 })
  const nowSeconds = START_MS / 1000
  const having = (claims: object) => refusal(verifier, idp.mint({ claims: { ...claims } }))
  assert.equal(await having({ exp: nowSeconds - 4 }), undefined)
  assert.equal(await having({ exp: nowSeconds - 5 }), 'expired')
  assert.equal(await having({ nbf: nowSeconds + 5 }), undefined)
  assert.equal(await having({ nbf: nowSeconds + 6 }), 'not_yet_valid')
})

test('an allow-list of clients admits those on it and no other; an empty one admits all', async () => {
  const { verifier } = setUp({ clientIds: ['web', 'ios'] })
  assert.equal(await refusal(verifier, idp.mint({ clientId: 'ios' })), undefined)
  for (const client_id of ['android', '', undefined, null, ['web'], 'web ios', 'Web']) {
    assert.equal(await refusal(verifier, idp.mint({ claims: { client_id } })), 'client', String(client_id))
  }
  assert.equal(await refusal(setUp({ clientIds: [] }).verifier, idp.mint({ clientId: 'any' })), undefined)
})

test('a required token use admits that use and no other', async () => {
  const { verifier } = setUp({ tokenUse: 'access' })
  assert.equal(await refusal(verifier, idp.mint()), undefined)
  for (const token_use of ['id', '', undefined, null, ['access'], 'Access']) {
    assert.equal(await refusal(verifier, idp.mint({ claims: { token_use } })), 'token_use', String(token_use))
  }
})

test('a well-formed token gets 503 before any key was fetched, and a malformed one 401 without a fetch', async () => {
  const { verifier } = setUp()
  const hits = idp.hits
  idp.goDown()
  try {
    assert.equal(await refusal(verifier, 'nonsense'), 'malformed')
    assert.equal(await refusal(verifier, idp.mint({ expiresInSeconds: -1 })), 'expired')
    assert.equal(idp.hits, hits)
    await assert.rejects(async () => verifier.verify(idp.mint()), UnavailableError)
    assert.equal(idp.hits, hits + 1)
  } finally {
    idp.recover()
  }
})

test('a token that expires while its key is being fetched is refused', async () => {
  const own = new ManualClock(START_MS)
  const keySet = new KeySet({ url: idp.jwksUrl, fetch, clock: own, log: silentLog })
  const slow = {
    current: (kid: string) => keySet.current(kid),
    find: async (kid: string) => {
      await own.advance(60_000)
      return keySet.find(kid)
    },
  }
  const { verifier } = setUp({ keySet: slow, clock: own })
  assert.equal(await refusal(verifier, idp.mint({ expiresInSeconds: 60 })), 'expired')
})

test('concurrent verifications of one new token share one signature check, also when it fails', async () => {
  const { keySet } = setUp()
  let lookups = 0
  const counting = {
    current: (kid: string) => keySet.current(kid),
    find: async (kid: string) => {
      lookups += 1
      return keySet.find(kid)
    },
  }
  const { verifier } = setUp({ keySet: counting })
  const token = idp.mint()
  const principals = await Promise.all(Array.from({ length: 100 }, () => verifier.verify(token)))
  assert.equal(lookups, 1)
  assert.equal(new Set(principals).size, 1)

  const altered = new TokenForge(idp).altered(token)
  const refusals = await Promise.all([refusal(verifier, altered), refusal(verifier, altered)])
  assert.deepEqual(refusals, ['signature', 'signature'])
  assert.equal(lookups, 2)
  await refusal(verifier, altered)
  assert.equal(lookups, 3)
})

test('only a signature check needs a slot, and only a wrong signature fails it', async () => {
  const { verifier } = setUp()
  const refuse = () => null
  for (const { name, token, reason } of await hostileTokens(idp)) {
    if (reason === 'signature') continue
    assert.ok((await verifier.verify(token, refuse)) instanceof TokenFault, name)
  }
  const token = idp.mint()
  assert.equal(await verifier.verify(token, refuse), 'unchecked')
  const ended: boolean[] = []
  const begin = () => (hasFailed: boolean) => void ended.push(hasFailed)
  assert.ok((await verifier.verify(new TokenForge(idp).altered(token), begin)) instanceof TokenFault)
  const principal = await verifier.verify(token, begin)
  assert.deepEqual(ended, [true, false])
  assert.equal(await verifier.verify(token, refuse), principal, 'it is cached')
})

test('a verified token is remembered until the moment it expires, and not beyond', async () => {
  for (const clockToleranceSeconds of [0, 5]) {
    const own = new ManualClock(START_MS)
    const keySet = new KeySet({ url: idp.jwksUrl, fetch, clock: own, log: silentLog })
    const { verifier } = setUp({ clock: own, keySet, clockToleranceSeconds })
    const token = idp.mint({ expiresInSeconds: 60 })
    const principal = await accepted(verifier, token)
    await own.advance((60 + clockToleranceSeconds) * 1000 - 1)
    assert.equal(await accepted(verifier, token), principal)
    await own.advance(1)
    assert.equal(await refusal(verifier, token), 'expired')
    assert.equal(verifier.cacheSize, 0)
  }
})

test('a verified token becomes invalid when its key leaves the set', async () => {
  const own = new ManualClock(START_MS)
  const provider = await startIdentityProvider({ clock: own, makeKey: lendRsaPairs() })
  try {
    const keySet = new KeySet({ url: provider.jwksUrl, fetch, clock: own, log: silentLog })
    const { verifier } = setUp({ issuer: provider.issuer, clock: own, keySet })
    const token = provider.mint({ expiresInSeconds: 86_400 })
    const principal = await accepted(verifier, token)
    await provider.rotate({ keepOld: false })
    await own.advance(600_000)
    assert.equal(await accepted(verifier, token), principal, 'served while the aged set is renewed')
    await keySet.warmUp()
    assert.equal(await refusal(verifier, token), 'unknown_key')
    assert.equal(verifier.cacheSize, 0)
    assert.equal(await refusal(verifier, provider.mint()), undefined)
  } finally {
    await provider.close()
  }
})

test('a verified token survives a renewal that keeps its key', async () => {
  const own = new ManualClock(START_MS)
  const provider = await startIdentityProvider({ clock: own, makeKey: lendRsaPairs() })
  try {
    const keySet = new KeySet({ url: provider.jwksUrl, fetch, clock: own, log: silentLog })
    const { verifier } = setUp({ issuer: provider.issuer, clock: own, keySet })
    const token = provider.mint({ expiresInSeconds: 86_400 })
    const principal = await accepted(verifier, token)
    await provider.rotate()
    await own.advance(600_000)
    await keySet.warmUp()
    assert.equal(keySet.state().keys, 2)
    assert.equal(await accepted(verifier, token), principal)
  } finally {
    await provider.close()
  }
})

test('no more tokens are remembered than the cache may hold, and those used last stay', async () => {
  const { verifier } = setUp({ cacheSize: 3 })
  const tokens = Array.from({ length: 5 }, (_, index) => idp.mint({ sub: `u-${index}` }))
  const [first = '', second = ''] = tokens
  const principalOf = { first: await accepted(verifier, first), second: await accepted(verifier, second) }
  for (const token of tokens.slice(2)) {
    await verifier.verify(token)
    await verifier.verify(first)
  }
  assert.equal(verifier.cacheSize, 3)
  assert.equal(await accepted(verifier, first), principalOf.first)
  assert.notEqual(await accepted(verifier, second), principalOf.second)
})

test('another spelling of a remembered token misses the cache and is refused', async () => {
  const { verifier } = setUp()
  const token = idp.mint()
  const principal = await accepted(verifier, token)
  const respelt = TokenForge.respell(token)
  assert.deepEqual(
    Buffer.from(TokenForge.split(respelt)[2], 'base64url'),
    Buffer.from(TokenForge.split(token)[2], 'base64url'),
  )
  for (const other of [respelt, `${token}=`, `${token}\n`, ` ${token}`, new TokenForge(idp).altered(token)]) {
    assert.notEqual(other, token)
    assert.notEqual(await refusal(verifier, other), undefined)
  }
  assert.equal(await accepted(verifier, token), principal)
})
