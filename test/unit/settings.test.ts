import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { test } from 'node:test'
import { loadSettings } from '../../src/cli/startup/load-job-types.ts'
import { parseConfig } from '../../src/config.ts'
import { effectiveSettings } from '../../src/settings.ts'
import { Canaries } from '../support/canaries.ts'

/** Replaced by `ISSUER_URL`, which shows the address that they make. */
const MERGED = ['COGNITO_REGION', 'COGNITO_USER_POOL_ID']

test('every setting that the service reads is listed once', () => {
  const read = new Set<string>()
  const env = new Proxy({ NODE_ENV: 'test', ISSUER_URL: 'http://127.0.0.1:1' } as Record<string, string>, {
    get: (target, name) => {
      read.add(String(name))
      return target[String(name)]
    },
  })
  const { config } = loadSettings({ env, readFile: () => '{"types":{}}' })
  const names = effectiveSettings(config).map(({ name }) => name)
  const isFileOfSecret = (name: string) => name.endsWith('_FILE') && read.has(name.slice(0, -'_FILE'.length))
  const expected = [...read].filter((name) => !isFileOfSecret(name) && !MERGED.includes(name))
  assert.deepEqual(names, expected.sort())
})

test('no secret of any setting is shown, in no spelling', () => {
  const canaries = new Canaries()
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  const pem = privateKey.export({ type: 'pkcs8', format: 'pem' }).toString()
  const secret = (name: string) => canaries.watch(name, `canary-${name.toLowerCase()}-7f3a91c2`)
  canaries.watch('PUSH_PRIVATE_KEY', pem.split('\n')[3] ?? '')
  const env = {
    NODE_ENV: 'production',
    ISSUER_URL: 'https://issuer.example.com',
    DATABASE_URL: `postgres://user:${secret('DATABASE_URL')}@db.example.com/main`,
    REDIS_URL: `redis://:${secret('REDIS_URL')}@redis.example.com`,
    RUNTIME_URL: 'https://runtime.example.com',
    RUNTIME_API_KEY: secret('RUNTIME_API_KEY'),
    WEBHOOK_SECRET: `${secret('WEBHOOK_SECRET')},${secret('WEBHOOK_SECRET_2')}`,
    PUSH_PROJECT_ID: secret('PUSH_PROJECT_ID'),
    PUSH_CLIENT_EMAIL: secret('PUSH_CLIENT_EMAIL'),
    PUSH_PRIVATE_KEY: pem,
  }
  const settings = effectiveSettings(parseConfig(env, () => ''))
  canaries.hear('the settings', JSON.stringify(settings))
  assert.deepEqual(canaries.findLeaks(), [])
  const hidden = settings.filter((setting) => setting.secret)
  assert.equal(hidden.length, 7)
  assert.ok(hidden.every(({ value }) => value === '[redacted]'))
  assert.equal(settings.find(({ name }) => name === 'RUNTIME_URL')?.value, 'https://runtime.example.com')
})
