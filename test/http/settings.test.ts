import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { reloadSecrets } from '../../src/cli/startup/reload-secrets.ts'
import { parseConfig } from '../../src/config.ts'
import { onOneService, type TestService } from '../support/service.ts'

interface Setting {
  name: string
  value: unknown
  secret: boolean
}

const SECRETS = { WEBHOOK_SECRET: 'a-webhook-secret-of-some-length', RUNTIME_API_KEY: 'a-key-of-the-runtime' }
const RUNTIME_URL = 'http://127.0.0.1:1'

/** The answer of `GET /v1/settings`, which never has a secret in it. */
async function readSettings(service: TestService): Promise<Record<string, unknown>> {
  const token = service.tokenFor({ sub: 'operator', scopes: ['read:operations'] })
  const { status, text, body } = await service.request<{ data: Setting[] }>('GET', '/v1/settings', { token })
  assert.equal(status, 200, text)
  for (const secret of Object.values(SECRETS)) assert.ok(!text.includes(secret))
  return Object.fromEntries(body.data.map(({ name, value }) => [name, value]))
}

describe('GET /v1/settings', () => {
  onOneService((under) => {
    test('the settings name the file of the job types, also the default one', async () => {
      assert.equal((await readSettings(await under.shared())).JOB_TYPES_FILE, 'job-types.json')
      const service = await under.start({ env: { JOB_TYPES_FILE: '/etc/types.json' } })
      assert.equal((await readSettings(service)).JOB_TYPES_FILE, '/etc/types.json')
    })

    test('the settings show a list as a list, also an empty one', async () => {
      const origins = ['https://a.example', 'https://b.example']
      const service = await under.start({ env: { CORS_ORIGINS: origins.join(',') } })
      const { CORS_ORIGINS, TRUST_PROXY } = await readSettings(service)
      assert.deepEqual([CORS_ORIGINS, TRUST_PROXY], [origins, []])
    })

    test('the settings show after a reload which secrets are set now, and still none of them', async () => {
      const service = await under.start({ env: { RUNTIME_URL } })
      const { idp, services } = service
      const shown = async () => {
        const { WEBHOOK_SECRET, RUNTIME_API_KEY } = await readSettings(service)
        return { WEBHOOK_SECRET, RUNTIME_API_KEY }
      }
      const reload = (secrets: Record<string, string>) => {
        const env = { NODE_ENV: 'test', ISSUER_URL: idp.issuer, RUNTIME_URL, ...secrets }
        return reloadSecrets(
          services,
          parseConfig(env, () => ''),
        )
      }
      const notSet = { WEBHOOK_SECRET: null, RUNTIME_API_KEY: null }
      assert.deepEqual(await shown(), notSet)
      await reload(SECRETS)
      assert.deepEqual(await shown(), { WEBHOOK_SECRET: '[redacted]', RUNTIME_API_KEY: '[redacted]' })
      await reload({})
      assert.deepEqual(await shown(), notSet)
    })
  })
})
