import type { Config } from './config.ts'

type SettingValue = string | number | boolean | null | readonly string[]

/** Settings that may contain a secret: the answer only says whether they are set. */
const SECRETS: Record<string, (config: Config) => boolean> = {
  DATABASE_URL: ({ database }) => database.engine === 'postgres',
  REDIS_URL: ({ redisUrl }) => redisUrl !== null,
  RUNTIME_API_KEY: ({ runtime }) => (runtime?.apiKey ?? null) !== null,
  WEBHOOK_SECRET: ({ webhookSecrets }) => webhookSecrets.length > 0,
  PUSH_PROJECT_ID: ({ push }) => push !== null,
  PUSH_CLIENT_EMAIL: ({ push }) => push !== null,
  PUSH_PRIVATE_KEY: ({ push }) => push !== null,
}

const VALUES: Record<string, (config: Config) => SettingValue> = {
  NODE_ENV: ({ production }) => (production ? 'production' : 'development or test'),
  HOST: ({ host }) => host,
  PORT: ({ port }) => port,
  PUBLIC_URL: ({ publicUrl }) => publicUrl,
  API_VARIANT: ({ variant }) => variant,
  ISSUER_URL: ({ issuerUrl }) => issuerUrl,
  COGNITO_CLIENT_IDS: ({ clientIds }) => clientIds,
  TOKEN_USE: ({ tokenUse }) => tokenUse,
  CLOCK_TOLERANCE_SECONDS: ({ clockToleranceSeconds }) => clockToleranceSeconds,
  DATA_DIR: ({ database }) => (database.engine === 'sqlite' ? database.dataDir : null),
  DATABASE_POOL_SIZE: ({ database }) => (database.engine === 'postgres' ? (database.poolSize ?? null) : null),
  DATABASE_PREPARED: ({ database }) =>
    database.engine === 'postgres' ? (database.prepared === false ? 'off' : 'on') : null,
  REDIS_PREFIX: ({ redisPrefix }) => redisPrefix,
  RUNTIME_URL: ({ runtime }) => runtime?.url ?? null,
  RUNTIME_TIMEOUT_MS: ({ runtime }) => runtime?.timeoutMs ?? null,
  JOB_TYPES_FILE: ({ jobTypesFile }) => jobTypesFile,
  PUSH_API_URL: ({ pushApiUrl }) => pushApiUrl,
  PUSH_TOKEN_URL: ({ pushTokenUrl }) => pushTokenUrl,
  RATE_LIMIT_UNAUTHENTICATED: ({ limits }) => limits.unauthenticated,
  RATE_LIMIT_AUTHENTICATED: ({ limits }) => limits.authenticated,
  RATE_LIMIT_SERVICE: ({ limits }) => limits.service,
  RATE_LIMIT_HEADERS: ({ rateLimitHeaders }) => rateLimitHeaders,
  TRUST_PROXY: ({ trustProxy }) => trustProxy,
  CORS_ORIGINS: ({ corsOrigins }) => corsOrigins,
  CONSOLE: (config) => (config.console === null ? 'off' : 'on'),
  CONSOLE_CLIENT_ID: (config) => config.console?.clientId ?? null,
  CONSOLE_AUTH_URL: (config) => config.console?.authUrl ?? null,
  USAGE_LIMIT_RUNS: ({ usageLimitRuns }) => usageLimitRuns,
  EVENTS_RETENTION_HOURS: ({ eventsRetentionHours }) => eventsRetentionHours,
  HISTORY_RETENTION_DAYS: ({ historyRetentionDays }) => historyRetentionDays,
  JOB_RETENTION_DAYS: ({ jobRetentionDays }) => jobRetentionDays,
  AUDIT_RETENTION_DAYS: ({ auditRetentionDays }) => auditRetentionDays,
  SHUTDOWN_TIMEOUT_MS: ({ shutdownTimeoutMs }) => shutdownTimeoutMs,
  LOG_LEVEL: ({ logLevel }) => logLevel,
  OTEL_EXPORTER_OTLP_ENDPOINT: ({ tracesEndpoint }) => tracesEndpoint,
  METRICS_PUBLIC: ({ metricsPublic }) => metricsPublic,
}

export interface EffectiveSetting {
  name: string
  value: SettingValue
  secret: boolean
}

/** Every effective setting, including defaults. For a secret, it only says whether it is set. */
export function effectiveSettings(config: Config): EffectiveSetting[] {
  const shown = Object.entries(VALUES).map(([name, read]) => ({ name, value: read(config), secret: false }))
  const hidden = Object.entries(SECRETS).map(([name, isSet]) => ({
    name,
    value: isSet(config) ? '[redacted]' : null,
    secret: true,
  }))
  return [...shown, ...hidden].sort((a, b) => (a.name < b.name ? -1 : 1))
}
