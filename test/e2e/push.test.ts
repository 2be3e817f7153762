import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { type SandboxPushProvider, startPushProvider } from '../../src/sandbox/push-provider/push-provider.ts'
import { sharedIssuer, startServe } from '../support/served.ts'
import { until } from '../support/until.ts'

async function startProvider(t: TestContext): Promise<SandboxPushProvider> {
  const provider = await startPushProvider()
  t.after(() => provider.close())
  return provider
}

function settingsOf({ credentials, plainUrl }: SandboxPushProvider) {
  return {
    PUSH_PROJECT_ID: credentials.projectId,
    PUSH_CLIENT_EMAIL: credentials.clientEmail,
    PUSH_PRIVATE_KEY: credentials.privateKey.replaceAll('\n', '\\n'),
    PUSH_API_URL: plainUrl,
    PUSH_TOKEN_URL: `${plainUrl}/token`,
  }
}

interface Ready {
  checks: { push: { state: string; detail: string | null } }
}

test('refused credentials are in /readyz before the first delivery', async (t) => {
  const provider = await startProvider(t)
  provider.setFaults({ exchange: 'refused' })
  const served = await startServe({ settings: settingsOf(provider) })
  await until(async () => {
    const { status, body } = await served.request<Ready>('GET', '/readyz')
    return status === 200 && body.checks.push.state === 'degraded'
  })
  assert.equal(provider.stats.sends, 0)
})

test('the service leases no more deliveries after SIGTERM, but still serves requests', async (t) => {
  const provider = await startProvider(t)
  // It listens for a quarter of this time after the signal: long enough, also if this process stands still for two seconds.
  const served = await startServe({ settings: { ...settingsOf(provider), SHUTDOWN_TIMEOUT_MS: '16000' } })
  const token = (await sharedIssuer()).mint({ sub: 'root', scopes: ['admin:*'] })
  await served.request('POST', '/v1/devices', { token, body: { token: 'phone', platform: 'web' } })
  const notify = async () => {
    const body = { title: 'Hello', body: '', users: ['root'] }
    return (await served.request('POST', '/v1/notifications', { token, body })).status
  }
  assert.equal(await notify(), 201)
  await provider.untilArrivals(1)
  served.program.signal('SIGTERM')
  await served.program.untilSaid(/service\.draining/)
  assert.equal(await notify(), 201)
  assert.equal((await served.program.untilEnded()).code, 0)
  assert.equal(provider.stats.sends, 1)
})
