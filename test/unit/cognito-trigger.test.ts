import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { KeySet } from '../../src/auth/issuer/key-set.ts'
import { TokenVerifier } from '../../src/auth/token-verifier.ts'
import { silentLog } from '../../src/core/log.ts'
import { type IdentityProvider, startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { lendRsaPairs } from '../support/rsa-keys.ts'

interface TriggerEvent {
  version: string
  triggerSource: string
  request: { userAttributes?: Record<string, string>; [name: string]: unknown }
  response: unknown
  [name: string]: unknown
}
type Handler = (event: TriggerEvent) => Promise<TriggerEvent>

const clock = new ManualClock(Date.UTC(2026, 0, 1))
const TRIGGER: string = new URL('../../deploy/cognito/index.mjs', import.meta.url).href
let idp: IdentityProvider
let handler: Handler

before(async () => {
  idp = await startIdentityProvider({ clock, makeKey: lendRsaPairs() })
  handler = ((await import(TRIGGER)) as { handler: Handler }).handler
})
after(() => idp.close())

const SUB = '11aa22bb-33cc-44dd-55ee-66ff77aa88bb'
const ATTRIBUTES = {
  sub: SUB,
  'cognito:user_status': 'CONFIRMED',
  email_verified: 'true',
  email: 'ada@example.com',
  'custom:scopes': 'read:projects write:projects',
}

/** An event of this version with the members that the documentation of the trigger lists. */
function eventOf(version: '2' | '3', request: TriggerEvent['request'], triggerSource: string): TriggerEvent {
  return {
    version,
    triggerSource,
    region: 'eu-central-1',
    userPoolId: 'eu-central-1_AbCdEfGhI',
    ...(request.userAttributes ? { userName: 'ada' } : {}),
    callerContext: { awsSdkVersion: 'aws-sdk-unknown-unknown', clientId: '4k2nexample' },
    request: {
      ...request,
      groupConfiguration: { groupsToOverride: [], iamRolesToOverride: [], preferredRole: null },
      scopes: ['aws.cognito.signin.user.admin', 'openid'],
    },
    response: { claimsAndScopeOverrideDetails: null },
  }
}

/** Issues the access token that the pool would issue after this answer of the trigger, and passes it through the gate. */
async function verdictOf(answer: TriggerEvent, sub: string) {
  const { claimsAndScopeOverrideDetails: details } = answer.response as {
    claimsAndScopeOverrideDetails: { accessTokenGeneration: { claimsToAddOrOverride: Record<string, unknown> } }
  }
  const claims = details.accessTokenGeneration.claimsToAddOrOverride
  const keySet = new KeySet({ url: idp.jwksUrl, fetch, clock, log: silentLog })
  const verifier = new TokenVerifier({ issuer: idp.issuer, clockToleranceSeconds: 0, clock, keySet })
  return verifier.verify(idp.mint({ sub, claims }))
}

for (const version of ['2', '3'] as const) {
  for (const source of [
    'TokenGeneration_HostedAuth',
    'TokenGeneration_Authentication',
    'TokenGeneration_RefreshTokens',
  ]) {
    test(`after an event V${version}_0 of ${source}, the access token carries the user's scopes and email`, async () => {
      const answer = await handler(eventOf(version, { userAttributes: ATTRIBUTES }, source))
      const { expiresAtMs, ...user } = (await verdictOf(answer, SUB)) as { expiresAtMs: number }
      assert.deepEqual(user, {
        kind: 'user',
        sub: SUB,
        email: 'ada@example.com',
        scopes: ['read:projects', 'write:projects'],
      })
    })
  }
}

test('an unconfirmed email and a missing attribute are left out', async () => {
  const userAttributes = { sub: SUB, email: 'ada@example.com', email_verified: 'false' }
  const answer = await handler(eventOf('2', { userAttributes }, 'TokenGeneration_Authentication'))
  const verdict = await verdictOf(answer, SUB)
  assert.deepEqual(
    { ...(verdict as object), expiresAtMs: 0 },
    {
      kind: 'user',
      sub: SUB,
      email: null,
      scopes: [],
      expiresAtMs: 0,
    },
  )
})

test('a client-credentials grant (V3_0) has no user: its token gets no scopes, and the rest of the event is unchanged', async () => {
  for (const request of [{}, { userAttributes: {} }]) {
    const event = eventOf('3', request, 'TokenGeneration_ClientCredentials')
    const { response, ...rest } = structuredClone(event)
    const answer = await handler(event)
    assert.deepEqual({ ...answer, response }, { ...rest, response })
    const verdict = (await verdictOf(answer, '4k2nexample')) as { scopes: readonly string[] }
    assert.deepEqual(verdict.scopes, [])
  }
})
