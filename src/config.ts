import { ConfigReader, type Env, splitList } from './config-reader.ts'
import { isLoopbackHost } from './core/loopback.ts'
import { readRsaPrivateKey } from './core/rsa-key.ts'
import { RATE_LIMIT_HEADER_STYLES, type RateLimitHeaderStyle } from './limits/rate-limit-headers.ts'
import { parseSentinelUrl } from './limits/sentinel-url.ts'
import { DEFAULT_LIMITS, type TierLimits } from './limits/tiers.ts'

export type Variant = 'A' | 'B'
export type LogLevel = 'debug' | 'info' | 'warn' | 'error' | 'silent'

const MIN_WEBHOOK_KEY_BYTES = 24
const DEFAULT_POOL_SIZE = 10
export const DEFAULT_JOB_TYPES_FILE = 'job-types.json'

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
  database: { engine: 'sqlite'; dataDir: string } | PostgresSettings
  redisUrl: string | null
  /** What the names of all keys and channels begin with. */
  redisPrefix: string
  runtime: { url: string; apiKey: string | null; timeoutMs: number } | null
  webhookSecrets: readonly string[]
  /** The file of the job types. The default file may be missing. */
  jobTypesFile: string
  push: { projectId: string; clientEmail: string; privateKey: string } | null
  /** Null: the push provider's own addresses. */
  pushApiUrl: string | null
  pushTokenUrl: string | null
  limits: TierLimits
  rateLimitHeaders: RateLimitHeaderStyle
  trustProxy: readonly string[]
  /** Origins of web pages that may call the API. `*`, which production refuses, means every origin. */
  corsOrigins: readonly string[]
  /** Null: the console is switched off. */
  console: { clientId: string | null; authUrl: string | null } | null
  usageLimitRuns: number | null
  eventsRetentionHours: number
  /** Null: the history of ended jobs is never deleted. */
  historyRetentionDays: number | null
  /** Null: ended jobs are never deleted by themselves. */
  jobRetentionDays: number | null
  auditRetentionDays: number
  shutdownTimeoutMs: number
  logLevel: LogLevel
  /** Where the OpenTelemetry collector listens. Null: nothing is traced. */
  tracesEndpoint: string | null
  metricsPublic: boolean
}

/** Absent: the defaults of `openPostgres`. */
export interface PostgresSettings {
  engine: 'postgres'
  url: string
  poolSize?: number
  prepared?: boolean
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
    redisUrl: redisUrl(read),
    redisPrefix: read.text('REDIS_PREFIX') ?? '',
    runtime: runtime(read),
    webhookSecrets: webhookSecrets(read, production),
    jobTypesFile: read.text('JOB_TYPES_FILE') ?? DEFAULT_JOB_TYPES_FILE,
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
    corsOrigins: corsOrigins(read, production),
    console: consoleSettings(read),
    usageLimitRuns: read.integer('USAGE_LIMIT_RUNS', { min: 0 }),
    eventsRetentionHours: read.integer('EVENTS_RETENTION_HOURS', { min: 1, max: 8760 }) ?? 168,
    historyRetentionDays: read.integer('HISTORY_RETENTION_DAYS', { min: 1, max: 3650 }),
    jobRetentionDays: read.integer('JOB_RETENTION_DAYS', { min: 1, max: 3650 }),
    auditRetentionDays: read.integer('AUDIT_RETENTION_DAYS', { min: 1, max: 3650 }) ?? 365,
    shutdownTimeoutMs: read.integer('SHUTDOWN_TIMEOUT_MS', { min: 100, max: 600_000 }) ?? 10_000,
    logLevel: read.choice('LOG_LEVEL', ['debug', 'info', 'warn', 'error', 'silent']) ?? 'info',
    tracesEndpoint: read.baseUrl('OTEL_EXPORTER_OTLP_ENDPOINT'),
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
  // Set, but not a valid URL: that fault is already recorded.
  if (read.text('ISSUER_URL')) return ''
  if (!region && !pool) read.fault('ISSUER_URL', 'is missing: give it, or COGNITO_REGION and COGNITO_USER_POOL_ID')
  else if (!region) read.fault('COGNITO_REGION', 'is missing: COGNITO_USER_POOL_ID needs it')
  else if (!/^[a-z0-9-]+$/.test(region)) read.fault('COGNITO_REGION', 'must be a region name such as eu-central-1')
  else if (!pool) read.fault('COGNITO_USER_POOL_ID', 'is missing: COGNITO_REGION needs it')
  else if (!/^[\w-]+$/.test(pool))
    read.fault('COGNITO_USER_POOL_ID', 'must be a pool id such as eu-central-1_AbCdEfGhI')
  return `https://cognito-idp.${region}.amazonaws.com/${pool}`
}

function corsOrigins(read: ConfigReader, production: boolean): readonly string[] {
  const origins = read.list('CORS_ORIGINS')
  for (const origin of origins) {
    if (origin === '*' && !production) continue
    if (origin === '*') read.fault('CORS_ORIGINS', 'must name each origin in production, not "*"')
    else if (!isOrigin(origin)) {
      read.fault(
        'CORS_ORIGINS',
        `holds "${origin}", which is not an origin as browsers send it, such as https://app.example.com: lower case, no path, no default port`,
      )
    }
  }
  return origins
}

/**
 * Browsers always send the same spelling of an origin, and the comparison is exact. Apps in a web view use other schemes.
 */
function isOrigin(text: string): boolean {
  const url = /^[\x21-\x7e]+$/.test(text) && !text.includes('*') ? URL.parse(text) : null
  if (url === null) return false
  if (url.protocol === 'http:' || url.protocol === 'https:') return url.origin === text
  return /^[a-z][a-z0-9+.-]*:\/\/[a-z0-9._-]+(?::\d+)?$/.test(text)
}

function consoleSettings(read: ConfigReader): Config['console'] {
  const isOn = read.choice('CONSOLE', ['on', 'off']) !== 'off'
  const clientId = read.text('CONSOLE_CLIENT_ID')
  const authUrl = read.baseUrl('CONSOLE_AUTH_URL')
  if (authUrl !== null && clientId === null) read.fault('CONSOLE_CLIENT_ID', 'is missing: CONSOLE_AUTH_URL needs it')
  return isOn ? { clientId, authUrl } : null
}

function database(read: ConfigReader): Config['database'] {
  const url = read.secretUrl('DATABASE_URL', ['postgres:', 'postgresql:'])
  const poolSize = read.integer('DATABASE_POOL_SIZE', { min: 1, max: 500 }) ?? DEFAULT_POOL_SIZE
  const prepared = read.choice('DATABASE_PREPARED', ['on', 'off']) !== 'off'
  return url
    ? { engine: 'postgres', url, poolSize, prepared }
    : { engine: 'sqlite', dataDir: read.text('DATA_DIR') ?? './data' }
}

/** Several Sentinels have no place in a URL as `URL` reads it. */
function redisUrl(read: ConfigReader): string | null {
  const given = read.secret('REDIS_URL')
  if (given === null || !/^rediss?\+sentinel:/i.test(given)) {
    const url = read.checkUrl('REDIS_URL', given, ['redis:', 'rediss:'])
    const { pathname = '', searchParams } = url === null ? {} : new URL(url)
    if (/^\/?\d*$/.test(pathname) && /^\d*$/.test(searchParams?.get('db') ?? '')) return url
    read.fault('REDIS_URL', 'must end with the host or with the number of a database, such as /2')
    return null
  }
  if (parseSentinelUrl(given) !== null) return given
  read.fault('REDIS_URL', 'must have the form redis+sentinel://[user:password@]host:port,host:port/master')
  return null
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

/** A short secret can be guessed, and invalid base64 would decode to the empty key. */
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
      if (!value) read.fault(name, 'is missing: set all three push credentials or none')
    }
  }
  return null
}
