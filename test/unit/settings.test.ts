import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { loadSettings } from '../../src/cli/startup/load-job-types.ts'
import { effectiveSettings, parseConfig } from '../../src/config.ts'
import { GOOGLE } from '../../src/push/fcm/fcm-sender.ts'
import { isSetting, SETTINGS, type Setting, type SettingTable } from '../../src/settings.ts'
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

test('every setting is shown with the value that it has', () => {
  const given = {
    HOST: '0.0.0.0',
    PORT: 3000,
    PUBLIC_URL: 'https://api.example.com',
    API_VARIANT: 'A',
    COGNITO_CLIENT_IDS: ['one', 'two'],
    TOKEN_USE: 'access',
    TOKEN_ALGORITHMS: ['ES256', 'PS256'],
    TOKEN_AUDIENCE: ['api'],
    SCOPES_CLAIM: 'permissions',
    SCOPES_MAP: ['boss=admin:*'],
    CLOCK_TOLERANCE_SECONDS: 5,
    DATABASE_POOL_SIZE: 20,
    DATABASE_PREPARED: 'off',
    REDIS_PREFIX: 'api:',
    RUNTIME_URL: 'https://runtime.example.com',
    RUNTIME_TIMEOUT_MS: 5000,
    RUNTIME_IDENTITY: 'none',
    JOB_TYPES_FILE: '/etc/types.json',
    PUSH_API_URL: 'https://push.example.com',
    PUSH_TOKEN_URL: 'https://push.example.com/token',
    RATE_LIMIT_UNAUTHENTICATED: 1,
    RATE_LIMIT_AUTHENTICATED: 2,
    RATE_LIMIT_SERVICE: 3,
    RATE_LIMIT_HEADERS: 'draft-8',
    TRUST_PROXY: ['10.0.0.7'],
    EGRESS_ALLOW: ['10.1.0.0/16'],
    CORS_ORIGINS: ['https://app.example.com'],
    CONSOLE: 'on',
    CONSOLE_CLIENT_ID: '4k2n',
    CONSOLE_AUTH_URL: 'https://login.example.com',
    CONSOLE_SCOPE: 'openid email',
    USAGE_LIMIT_RUNS: 500,
    MAX_UNFINISHED_JOBS: 501,
    MAX_PROJECTS: 502,
    EVENTS_RETENTION_HOURS: 24,
    HISTORY_RETENTION_DAYS: 90,
    JOB_RETENTION_DAYS: 91,
    AUDIT_RETENTION_DAYS: 92,
    SHUTDOWN_TIMEOUT_MS: 30_000,
    LOG_LEVEL: 'warn',
    OTEL_EXPORTER_OTLP_ENDPOINT: 'http://collector:4318',
    METRICS_PUBLIC: true,
  }
  const pool = { COGNITO_REGION: 'eu-central-1', COGNITO_USER_POOL_ID: 'eu-central-1_AbC' }
  const shown = (env: Record<string, string>) => {
    const texts = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, String(value)]))
    const config = parseConfig({ NODE_ENV: 'test', ...pool, ...texts, ...env }, () => '')
    const settings = effectiveSettings(config).filter(({ secret }) => !secret)
    return Object.fromEntries(settings.map(({ name, value }) => [name, value]))
  }
  const ISSUER_URL = 'https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_AbC'
  const all = { ...given, NODE_ENV: 'development or test', ISSUER_URL, DATA_DIR: null }
  assert.deepEqual(shown({ DATABASE_URL: 'postgres://db' }), all)
  const notInForce = { DATABASE_POOL_SIZE: null, DATABASE_PREPARED: null, RUNTIME_URL: null, RUNTIME_TIMEOUT_MS: null }
  const off = { CONSOLE: 'off', CONSOLE_CLIENT_ID: null, CONSOLE_AUTH_URL: null, CONSOLE_SCOPE: null }
  const least = { ...all, ...notInForce, ...off, DATA_DIR: './data' }
  assert.deepEqual(shown({ RUNTIME_URL: '', CONSOLE: 'off' }), least)
})

/** Defaults that the table of settings does not have as a value. */
const DESCRIBED: Record<string, string> = {
  NODE_ENV: 'strict',
  PUSH_API_URL: `\`${GOOGLE.apiUrl}\``,
  PUSH_TOKEN_URL: `\`${GOOGLE.tokenUrl}\``,
}

function rowsOf(table: SettingTable): Setting[] {
  return Object.values(table).flatMap((row) => (isSetting(row) ? [row] : rowsOf(row)))
}

/** A missing default is described in words, such as "none" or "for ever". */
function documentedDefault({ name, default: value }: Setting): string | RegExp {
  const isMissing = value === null || value === '' || Array.isArray(value)
  return DESCRIBED[name] ?? (isMissing ? /^[^`]+$/ : `\`${value}\``)
}

test('docs/configuration.md lists every setting with its default, marks the secrets, and lists no other', () => {
  const page = readFileSync(new URL('../../docs/configuration.md', import.meta.url), 'utf8')
  const rows = Array.from(page.matchAll(/^\| `([A-Z][A-Z_]*)` \| ([^|]+) \| ([^|]*)/gm), ([, ...cells]) => cells)
  const settings = rowsOf(SETTINGS)
  const names = (all: readonly (string | undefined)[]) => all.toSorted()
  assert.deepEqual(names(rows.map(([name]) => name)), names(settings.map(({ name }) => name)))
  for (const setting of settings) {
    const [, value = '', meaning = ''] = rows.find(([name]) => name === setting.name) ?? []
    const expected = documentedDefault(setting)
    if (typeof expected === 'string') assert.equal(value, expected, setting.name)
    else assert.match(value, expected, setting.name)
    assert.equal(meaning.includes('*secret*'), setting.secret !== undefined, setting.name)
  }
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
    RUNTIME_IDENTITY_SECRET: secret('RUNTIME_IDENTITY_SECRET'),
    WEBHOOK_SECRET: `${secret('WEBHOOK_SECRET')},${secret('WEBHOOK_SECRET_2')}`,
    PUSH_PROJECT_ID: secret('PUSH_PROJECT_ID'),
    PUSH_CLIENT_EMAIL: secret('PUSH_CLIENT_EMAIL'),
    PUSH_PRIVATE_KEY: pem,
  }
  const settings = effectiveSettings(parseConfig(env, () => ''))
  canaries.hear('the settings', JSON.stringify(settings))
  assert.deepEqual(canaries.findLeaks(), [])
  const hidden = settings.filter((setting) => setting.secret)
  assert.equal(hidden.length, 8)
  assert.ok(hidden.every(({ value }) => value === '[redacted]'))
  assert.equal(settings.find(({ name }) => name === 'RUNTIME_URL')?.value, 'https://runtime.example.com')
})
