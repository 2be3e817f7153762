import { ConfigReader, type Env, splitList } from './config-reader.ts'
import { isLoopbackHost } from './core/loopback.ts'
import { readRsaPrivateKey } from './core/rsa-key.ts'
import { RATE_LIMIT_HEADER_STYLES, type RateLimitHeaderStyle } from './limits/rate-limit-headers.ts'
import { DEFAULT_LIMITS, type TierLimits } from './limits/tiers.ts'

export type Variant = 'A' | 'B'
export type LogLevel = 'debug' | 'info' | 'warn' | 'error' | 'silent'

const MIN_WEBHOOK_KEY_BYTES = 24

export interface Config {
  /** Strict unless `NODE_ENV` is `development` or `test`. */
  production: boolean
  host: string
  port: number
  /** The address at which the runtime reaches this service; callback URLs begin with it. */
  publicUrl: string | null
  variant: Variant
  issuerUrl: string
  clientIds: readonly string[]
  tokenUse: string | null
  clockToleranceSeconds: number
  database: { engine: 'sqlite'; dataDir: string } | { engine: 'postgres'; url: string }
  redisUrl: string | null
  runtime: { url: string; apiKey: string | null; timeoutMs: number } | null
  webhookSecrets: readonly string[]
  push: { projectId: string; clientEmail: string; privateKey: string } | null
  /** Null: the push provider's own addresses. */
  pushApiUrl: string | null
  pushTokenUrl: string | null
  limits: TierLimits
  rateLimitHeaders: RateLimitHeaderStyle
  trustProxy: readonly string[]
  usageLimitRuns: number | null
  eventsRetentionHours: number
  /** Null: the history of ended jobs is never deleted. */
  historyRetentionDays: number | null
  /** Null: ended jobs are never deleted by themselves. */
  jobRetentionDays: number | null
  shutdownTimeoutMs: number
  logLevel: LogLevel
  metricsPublic: boolean
}

/** Turns the environment into settings, or throws a `ConfigError` with every fault. A fault never contains a secret's value. */
export function parseConfig(env: Env, readFile: (path: string) => string): Config {
  const read = new ConfigReader(env, readFile)
  const mode = read.text('NODE_ENV')
  const production = mode !== 'development' && mode !== 'test'
  const config: Config = {
    production,
    host: read.text('HOST') ?? '127.0.0.1',
    port: read.integer('PORT', { min: 0, max: 65_535 }) ?? 8080,
    publicUrl: read.baseUrl('PUBLIC_URL'),
    variant: read.choice('API_VARIANT', ['A', 'B']) ?? 'B',
    issuerUrl: issuerUrl(read, production),
    clientIds: read.list('COGNITO_CLIENT_IDS'),
    tokenUse: read.choice('TOKEN_USE', ['access', 'id']),
    clockToleranceSeconds: read.integer('CLOCK_TOLERANCE_SECONDS', { min: 0, max: 300 }) ?? 0,
    database: database(read),
    redisUrl: read.secretUrl('REDIS_URL', ['redis:', 'rediss:']),
    runtime: runtime(read),
    webhookSecrets: webhookSecrets(read, production),
    push: push(read),
    pushApiUrl: read.baseUrl('PUSH_API_URL'),
    pushTokenUrl: read.url('PUSH_TOKEN_URL'),
    limits: {
      unauthenticated: read.integer('RATE_LIMIT_UNAUTHENTICATED', { min: 1 }) ?? DEFAULT_LIMITS.unauthenticated,
      authenticated: read.integer('RATE_LIMIT_AUTHENTICATED', { min: 1 }) ?? DEFAULT_LIMITS.authenticated,
      service: read.integer('RATE_LIMIT_SERVICE', { min: 1 }) ?? DEFAULT_LIMITS.service,
    },
    rateLimitHeaders: read.choice('RATE_LIMIT_HEADERS', RATE_LIMIT_HEADER_STYLES) ?? 'draft-6',
    trustProxy: read.networks('TRUST_PROXY'),
    usageLimitRuns: read.integer('USAGE_LIMIT_RUNS', { min: 0 }),
    eventsRetentionHours: read.integer('EVENTS_RETENTION_HOURS', { min: 1, max: 8760 }) ?? 168,
    historyRetentionDays: read.integer('HISTORY_RETENTION_DAYS', { min: 1, max: 3650 }),
    jobRetentionDays: read.integer('JOB_RETENTION_DAYS', { min: 1, max: 3650 }),
    shutdownTimeoutMs: read.integer('SHUTDOWN_TIMEOUT_MS', { min: 100, max: 600_000 }) ?? 10_000,
    logLevel: read.choice('LOG_LEVEL', ['debug', 'info', 'warn', 'error', 'silent']) ?? 'info',
    metricsPublic: read.flag('METRICS_PUBLIC') ?? false,
  }
  read.throwFaults()
  return config
}

function issuerUrl(read: ConfigReader, production: boolean): string {
  const whole = read.urlPrefix('ISSUER_URL')
  const region = read.text('COGNITO_REGION')
  const pool = read.text('COGNITO_USER_POOL_ID')
  if (whole) {
    const { protocol, hostname } = new URL(whole)
    if (protocol !== 'https:' && (production || !isLoopbackHost(hostname))) {
      read.fault('ISSUER_URL', production ? 'must be https in production' : 'may be http only for a loopback address')
    }
    return whole
  }
  // Given, but not a good URL: that fault is recorded already.
  if (read.text('ISSUER_URL')) return ''
  if (!region && !pool) read.fault('ISSUER_URL', 'is missing: give it, or COGNITO_REGION and COGNITO_USER_POOL_ID')
  else if (!region) read.fault('COGNITO_REGION', 'is missing: COGNITO_USER_POOL_ID needs it')
  else if (!/^[a-z0-9-]+$/.test(region)) read.fault('COGNITO_REGION', 'must be a region name such as eu-central-1')
  else if (!pool) read.fault('COGNITO_USER_POOL_ID', 'is missing: COGNITO_REGION needs it')
  else if (!/^[\w-]+$/.test(pool))
    read.fault('COGNITO_USER_POOL_ID', 'must be a pool id such as eu-central-1_AbCdEfGhI')
  return `https://cognito-idp.${region}.amazonaws.com/${pool}`
}

function database(read: ConfigReader): Config['database'] {
  const url = read.secretUrl('DATABASE_URL', ['postgres:', 'postgresql:'])
  return url ? { engine: 'postgres', url } : { engine: 'sqlite', dataDir: read.text('DATA_DIR') ?? './data' }
}

function runtime(read: ConfigReader): Config['runtime'] {
  const url = read.baseUrl('RUNTIME_URL')
  const apiKey = read.secret('RUNTIME_API_KEY', 'header')
  const timeoutMs = read.integer('RUNTIME_TIMEOUT_MS', { min: 100, max: 60_000 }) ?? 3000
  return url ? { url, apiKey, timeoutMs } : null
}

function webhookSecrets(read: ConfigReader, production: boolean): readonly string[] {
  const secrets = splitList(read.secret('WEBHOOK_SECRET'))
  if (secrets.length > 2) read.fault('WEBHOOK_SECRET', 'takes at most two secrets, separated by a comma')
  if (secrets.length === 0 && production) read.fault('WEBHOOK_SECRET', 'is missing: callbacks could be forged')
  const faults = secrets.map((secret) => faultOfWebhookSecret(secret, production)).filter((fault) => fault !== null)
  for (const fault of new Set(faults)) read.fault('WEBHOOK_SECRET', fault)
  return secrets
}

/** A short secret can be guessed, and base64 that cannot be decoded would stand for the empty key. */
function faultOfWebhookSecret(secret: string, production: boolean): string | null {
  const encoded = /^whsec_(.*)$/s.exec(secret)?.[1]
  const key = Buffer.from(encoded ?? secret, encoded === undefined ? 'utf8' : 'base64')
  if (encoded !== undefined && (key.length === 0 || key.toString('base64') !== encoded)) {
    return 'must have a key in base64 after whsec_'
  }
  return production && key.length < MIN_WEBHOOK_KEY_BYTES
    ? `must have at least ${MIN_WEBHOOK_KEY_BYTES} bytes in production, as from: openssl rand -hex 32`
    : null
}

function push(read: ConfigReader): Config['push'] {
  const projectId = read.secret('PUSH_PROJECT_ID')
  const clientEmail = read.secret('PUSH_CLIENT_EMAIL')
  const privateKey = read.secret('PUSH_PRIVATE_KEY', 'block')?.replaceAll('\\n', '\n') ?? null
  if (privateKey && readRsaPrivateKey(privateKey) === null) {
    read.fault('PUSH_PRIVATE_KEY', 'must be a PEM block of an RSA private key')
  }
  if (projectId && clientEmail && privateKey) return { projectId, clientEmail, privateKey }
  const given = { PUSH_PROJECT_ID: projectId, PUSH_CLIENT_EMAIL: clientEmail, PUSH_PRIVATE_KEY: privateKey }
  if (projectId || clientEmail || privateKey) {
    for (const [name, value] of Object.entries(given)) {
      if (!value) read.fault(name, 'is missing: the three push credentials go together')
    }
  }
  return null
}
