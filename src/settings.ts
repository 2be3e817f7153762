import { ALGORITHMS, type Algorithm, DEFAULT_ALGORITHMS, isAlgorithm } from './auth/issuer/algorithms.ts'
import { isCognitoIssuer } from './auth/issuer/cognito.ts'
import { parseScopesMap } from './auth/scopes.ts'
import { DEFAULT_SCOPES_CLAIM } from './auth/token-claims.ts'
import {
  anyText,
  baseUrl,
  type ConfigReader,
  choice,
  flag,
  integer,
  type Kind,
  list,
  networks,
  type SecretForm,
  secretUrl,
  url,
  urlPrefix,
} from './config-reader.ts'
import { reasonOf } from './core/errors.ts'
import { isLoopbackHost } from './core/loopback.ts'
import { readRsaPrivateKey } from './core/rsa-key.ts'
import { RATE_LIMIT_HEADER_STYLES } from './limits/rate-limit-headers.ts'
import { parseSentinelUrl } from './limits/sentinel-url.ts'
import { DEFAULT_LIMITS } from './limits/tiers.ts'

export type SettingValue = string | number | boolean | null | readonly string[]

/** A row of the table of settings. */
export interface Setting {
  /** The environment variable. */
  name: string
  kind: Kind<SettingValue>
  default: SettingValue
  /** The setting may be given as `NAME_FILE`, and its value is never shown. */
  secret?: SecretForm
  /** False if another setting shows the value. */
  shown?: false
}

/** Rows by their field in `Config`. Rows of settings that belong together are a group. */
export interface SettingTable {
  readonly [key: string]: Setting | SettingTable
}

/** As `TOKEN_AUDIENCE`: tokens for every audience are accepted. */
export const ANY_AUDIENCE = 'none'
const NONE: readonly string[] = []
const DAYS = integer({ min: 1, max: 3650 })
const LIMIT = integer({ min: 1 })

/**
 * Every setting, in the order in which faults are named. `Config`, `GET /v1/settings` and the test of
 * docs/configuration.md follow from this table. A row becomes a field of `Config`, a group of rows an object.
 */
export const SETTINGS = {
  /** Strict unless `NODE_ENV` is `development` or `test`. */
  production: { name: 'NODE_ENV', kind: (_text, _name, read) => read.production, default: true },
  host: { name: 'HOST', kind: anyText, default: '127.0.0.1' },
  port: { name: 'PORT', kind: integer({ min: 0, max: 65_535 }), default: 8080 },
  /** The address at which the runtime reaches this service; callback URLs begin with it. */
  publicUrl: { name: 'PUBLIC_URL', kind: baseUrl, default: null },
  variant: { name: 'API_VARIANT', kind: choice('A', 'B'), default: 'B' },
  issuerUrl: { name: 'ISSUER_URL', kind: issuerUrl, default: '' },
  /** For `issuerUrl`. */
  cognito: {
    region: { name: 'COGNITO_REGION', kind: anyText, default: null, shown: false },
    userPoolId: { name: 'COGNITO_USER_POOL_ID', kind: anyText, default: null, shown: false },
  },
  clientIds: { name: 'COGNITO_CLIENT_IDS', kind: list, default: NONE },
  tokenUse: { name: 'TOKEN_USE', kind: choice('access', 'id'), default: null },
  tokenAlgorithms: { name: 'TOKEN_ALGORITHMS', kind: tokenAlgorithms, default: DEFAULT_ALGORITHMS },
  /** `none`: the audience is not checked. Null: neither, because the setting was not given. */
  tokenAudience: { name: 'TOKEN_AUDIENCE', kind: tokenAudience, default: null },
  scopesClaim: { name: 'SCOPES_CLAIM', kind: anyText, default: DEFAULT_SCOPES_CLAIM },
  /** Entries that `parseScopesMap` reads. */
  scopesMap: { name: 'SCOPES_MAP', kind: scopesMap, default: NONE },
  clockToleranceSeconds: { name: 'CLOCK_TOLERANCE_SECONDS', kind: integer({ min: 0, max: 300 }), default: 0 },
  database: {
    url: { name: 'DATABASE_URL', kind: secretUrl('postgres:', 'postgresql:'), default: null, secret: 'line' },
    poolSize: { name: 'DATABASE_POOL_SIZE', kind: integer({ min: 1, max: 500 }), default: 10 },
    prepared: { name: 'DATABASE_PREPARED', kind: choice('on', 'off'), default: 'on' },
    dataDir: { name: 'DATA_DIR', kind: anyText, default: './data' },
  },
  redisUrl: { name: 'REDIS_URL', kind: redisUrl, default: null, secret: 'line' },
  /** What the names of all keys and channels begin with. */
  redisPrefix: { name: 'REDIS_PREFIX', kind: anyText, default: '' },
  runtime: {
    url: { name: 'RUNTIME_URL', kind: baseUrl, default: null },
    apiKey: { name: 'RUNTIME_API_KEY', kind: anyText, default: null, secret: 'header' },
    timeoutMs: { name: 'RUNTIME_TIMEOUT_MS', kind: integer({ min: 100, max: 60_000 }), default: 3000 },
  },
  /** How the runtime learns for whom a run is. */
  runtimeIdentity: {
    mode: { name: 'RUNTIME_IDENTITY', kind: choice('sub', 'pseudonym', 'none'), default: 'sub' },
    secret: { name: 'RUNTIME_IDENTITY_SECRET', kind: identitySecret, default: null, secret: 'line' },
  },
  webhookSecrets: { name: 'WEBHOOK_SECRET', kind: webhookSecrets, default: NONE, secret: 'line' },
  /** The file of the job types. The default file may be missing. */
  jobTypesFile: { name: 'JOB_TYPES_FILE', kind: anyText, default: 'job-types.json' },
  push: {
    projectId: { name: 'PUSH_PROJECT_ID', kind: anyText, default: null, secret: 'line' },
    clientEmail: { name: 'PUSH_CLIENT_EMAIL', kind: anyText, default: null, secret: 'line' },
    privateKey: { name: 'PUSH_PRIVATE_KEY', kind: pushPrivateKey, default: null, secret: 'block' },
  },
  /** Null: the push provider's own addresses. */
  pushApiUrl: { name: 'PUSH_API_URL', kind: baseUrl, default: null },
  pushTokenUrl: { name: 'PUSH_TOKEN_URL', kind: url, default: null },
  limits: {
    unauthenticated: { name: 'RATE_LIMIT_UNAUTHENTICATED', kind: LIMIT, default: DEFAULT_LIMITS.unauthenticated },
    authenticated: { name: 'RATE_LIMIT_AUTHENTICATED', kind: LIMIT, default: DEFAULT_LIMITS.authenticated },
    service: { name: 'RATE_LIMIT_SERVICE', kind: LIMIT, default: DEFAULT_LIMITS.service },
  },
  rateLimitHeaders: { name: 'RATE_LIMIT_HEADERS', kind: choice(...RATE_LIMIT_HEADER_STYLES), default: 'draft-6' },
  trustProxy: { name: 'TRUST_PROXY', kind: networks, default: NONE },
  /** Networks that webhooks may be sent to although they are not public. */
  egressAllow: { name: 'EGRESS_ALLOW', kind: networks, default: NONE },
  /** Origins of web pages that may call the API. `*`, which production refuses, means every origin. */
  corsOrigins: { name: 'CORS_ORIGINS', kind: corsOrigins, default: NONE },
  console: {
    state: { name: 'CONSOLE', kind: choice('on', 'off'), default: 'on' },
    clientId: { name: 'CONSOLE_CLIENT_ID', kind: anyText, default: null },
    authUrl: { name: 'CONSOLE_AUTH_URL', kind: consoleAuthUrl, default: null },
    scope: { name: 'CONSOLE_SCOPE', kind: anyText, default: 'openid' },
  },
  usageLimitRuns: { name: 'USAGE_LIMIT_RUNS', kind: integer({ min: 0 }), default: null },
  /** Per owner. */
  maxUnfinishedJobs: { name: 'MAX_UNFINISHED_JOBS', kind: LIMIT, default: 1000 },
  /** Per creator. Null: no limit. */
  maxProjects: { name: 'MAX_PROJECTS', kind: LIMIT, default: null },
  eventsRetentionHours: { name: 'EVENTS_RETENTION_HOURS', kind: integer({ min: 1, max: 8760 }), default: 168 },
  /** Null: the history of ended jobs is never deleted. */
  historyRetentionDays: { name: 'HISTORY_RETENTION_DAYS', kind: DAYS, default: null },
  /** Null: ended jobs are never deleted by themselves. */
  jobRetentionDays: { name: 'JOB_RETENTION_DAYS', kind: DAYS, default: null },
  auditRetentionDays: { name: 'AUDIT_RETENTION_DAYS', kind: DAYS, default: 365 },
  shutdownTimeoutMs: { name: 'SHUTDOWN_TIMEOUT_MS', kind: integer({ min: 100, max: 600_000 }), default: 10_000 },
  logLevel: { name: 'LOG_LEVEL', kind: choice('debug', 'info', 'warn', 'error', 'silent'), default: 'info' },
  /** Where the OpenTelemetry collector listens. Null: nothing is traced. */
  tracesEndpoint: { name: 'OTEL_EXPORTER_OTLP_ENDPOINT', kind: baseUrl, default: null },
  metricsPublic: { name: 'METRICS_PUBLIC', kind: flag, default: false },
} as const satisfies SettingTable

/** A row becomes the value of its kind or its default, and a group of rows becomes an object of values. */
type Values<Rows> = {
  [Key in keyof Rows]: Rows[Key] extends Setting
    ? NonNullable<ReturnType<Rows[Key]['kind']>> | Rows[Key]['default']
    : Values<Rows[Key]>
}

export type Settings = Values<typeof SETTINGS>

/** Reads every setting. The reader collects the faults. */
export function readSettings(read: ConfigReader): Settings {
  return readRows(SETTINGS, read) as Settings
}

function readRows(table: SettingTable, read: ConfigReader): object {
  const values = Object.entries(table).map(([key, row]) => {
    if (!isSetting(row)) return [key, readRows(row, read)]
    return [key, row.kind(read.read(row.name, row.secret), row.name, read) ?? row.default]
  })
  return Object.fromEntries(values)
}

export function isSetting(row: Setting | SettingTable): row is Setting {
  return typeof row.name === 'string'
}

function issuerUrl(text: string | null, name: string, read: ConfigReader): string | null {
  if (text === null) return cognitoIssuer(read)
  const whole = urlPrefix(text, name, read)
  if (whole === null) return null
  const { protocol, hostname } = new URL(whole)
  if (protocol !== 'https:' && (read.production || !isLoopbackHost(hostname))) {
    read.fault(name, read.production ? 'must be https in production' : 'may be http only for a loopback address')
  }
  return whole
}

function cognitoIssuer(read: ConfigReader): string {
  const region = read.text('COGNITO_REGION')
  const pool = read.text('COGNITO_USER_POOL_ID')
  if (!region && !pool) read.fault('ISSUER_URL', 'is missing: give it, or COGNITO_REGION and COGNITO_USER_POOL_ID')
  else if (!region) read.fault('COGNITO_REGION', 'is missing: COGNITO_USER_POOL_ID needs it')
  else if (!/^[a-z0-9-]+$/.test(region)) read.fault('COGNITO_REGION', 'must be a region name such as eu-central-1')
  else if (!pool) read.fault('COGNITO_USER_POOL_ID', 'is missing: COGNITO_REGION needs it')
  else if (!/^[\w-]+$/.test(pool))
    read.fault('COGNITO_USER_POOL_ID', 'must be a pool id such as eu-central-1_AbCdEfGhI')
  return `https://cognito-idp.${region}.amazonaws.com/${pool}`
}

function tokenAlgorithms(text: string | null, name: string, read: ConfigReader): readonly Algorithm[] | null {
  if (text === null) return null
  const algorithms = list(text)
  if (algorithms.length > 0 && algorithms.every(isAlgorithm)) return algorithms
  read.fault(name, `must be one or more of ${Object.keys(ALGORITHMS).join(', ')}, not "${text}"`)
  return null
}

/** A provider may sign tokens for many APIs. Without an audience, the service would accept all of them. */
function tokenAudience(text: string | null, name: string, read: ConfigReader): readonly string[] | null {
  if (text === null) {
    const issuer = read.text('ISSUER_URL')
    if (read.toServe && read.production && issuer !== null && !isCognitoIssuer(issuer)) {
      read.fault(name, 'is missing: give the audience of your tokens, or "none" to accept tokens for every audience')
    }
    return null
  }
  const audiences = list(text)
  if (audiences.length === 0 || (audiences.length > 1 && audiences.includes(ANY_AUDIENCE))) {
    read.fault(name, `must be a list of audiences, or "${ANY_AUDIENCE}" alone`)
  }
  return audiences
}

function scopesMap(text: string | null, name: string, read: ConfigReader): readonly string[] {
  const entries = list(text)
  try {
    parseScopesMap(entries)
  } catch (error) {
    read.fault(name, reasonOf(error))
  }
  return entries
}

/** Several Sentinels have no place in a URL as `URL` reads it. */
function redisUrl(text: string | null, name: string, read: ConfigReader): string | null {
  if (text === null || !/^rediss?\+sentinel:/i.test(text)) {
    const whole = secretUrl('redis:', 'rediss:')(text, name, read)
    const { pathname = '', searchParams } = whole === null ? {} : new URL(whole)
    if (/^\/?\d*$/.test(pathname) && /^\d*$/.test(searchParams?.get('db') ?? '')) return whole
    read.fault(name, 'must end with the host or with the number of a database, such as /2')
    return null
  }
  if (parseSentinelUrl(text) !== null) return text
  read.fault(name, 'must have the form redis+sentinel://[user:password@]host:port,host:port/master')
  return null
}

function webhookSecrets(text: string | null, name: string, read: ConfigReader): readonly string[] {
  const secrets = list(text)
  if (secrets.length > 2) read.fault(name, 'takes at most two secrets, separated by a comma')
  if (secrets.length === 0 && read.production) read.fault(name, 'is missing: callbacks could be forged')
  const faults = secrets.map((secret) => faultOfWebhookSecret(secret, read.production))
  for (const fault of new Set(faults)) if (fault !== null) read.fault(name, fault)
  return secrets
}

const MIN_KEY_BYTES = 24

/** With a short secret, anyone could compute the pseudonyms of known users. */
function identitySecret(text: string | null, name: string, read: ConfigReader): string | null {
  if (text === null && read.text('RUNTIME_IDENTITY') === 'pseudonym') {
    read.fault(name, 'is missing: RUNTIME_IDENTITY=pseudonym needs it')
  }
  if (text !== null && Buffer.byteLength(text) < MIN_KEY_BYTES) {
    read.fault(name, `must have at least ${MIN_KEY_BYTES} bytes, as from: openssl rand -hex 32`)
  }
  return text
}

/** A short secret can be guessed, and invalid base64 would decode to the empty key. */
function faultOfWebhookSecret(secret: string, production: boolean): string | null {
  const encoded = /^whsec_(.*)$/s.exec(secret)?.[1]
  const key = Buffer.from(encoded ?? secret, encoded === undefined ? 'utf8' : 'base64')
  if (encoded !== undefined && (key.length === 0 || key.toString('base64') !== encoded)) {
    return 'must have a key in base64 after whsec_'
  }
  return production && key.length < MIN_KEY_BYTES
    ? `must have at least ${MIN_KEY_BYTES} bytes in production, as from: openssl rand -hex 32`
    : null
}

/** The last of the three push credentials to be read, so it also checks that none is missing. */
function pushPrivateKey(text: string | null, name: string, read: ConfigReader): string | null {
  const key = text?.replaceAll('\\n', '\n') ?? null
  if (key !== null && readRsaPrivateKey(key) === null) read.fault(name, 'must be a PEM block of an RSA private key')
  const credentials = ['PUSH_PROJECT_ID', 'PUSH_CLIENT_EMAIL', name]
  const missing = credentials.filter((one) => !read.isGiven(one))
  if (missing.length === credentials.length) return null
  for (const one of missing) read.fault(one, 'is missing: set all three push credentials or none')
  return key
}

function corsOrigins(text: string | null, name: string, read: ConfigReader): readonly string[] {
  const origins = list(text)
  for (const origin of origins) {
    if (origin === '*' && !read.production) continue
    if (origin === '*') read.fault(name, 'must name each origin in production, not "*"')
    else if (!isOrigin(origin)) {
      read.fault(
        name,
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
  const origin = /^[\x21-\x7e]+$/.test(text) && !text.includes('*') ? URL.parse(text) : null
  if (origin === null) return false
  if (origin.protocol === 'http:' || origin.protocol === 'https:') return origin.origin === text
  return /^[a-z][a-z0-9+.-]*:\/\/[a-z0-9._-]+(?::\d+)?$/.test(text)
}

function consoleAuthUrl(text: string | null, name: string, read: ConfigReader): string | null {
  const address = baseUrl(text, name, read)
  if (address !== null && !read.isGiven('CONSOLE_CLIENT_ID')) {
    read.fault('CONSOLE_CLIENT_ID', 'is missing: CONSOLE_AUTH_URL needs it')
  }
  return address
}
