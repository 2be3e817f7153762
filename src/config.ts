import { ConfigReader, type Env } from './config-reader.ts'
import {
  ANY_AUDIENCE,
  isSetting,
  readSettings,
  SETTINGS,
  type Settings,
  type SettingTable,
  type SettingValue,
} from './settings.ts'

/** The settings of `SETTINGS`, with those that belong together in one field. */
export type Config = ReturnType<typeof toConfig>
export type Variant = Config['variant']

/** Turns the environment into settings, or throws a `ConfigError` with every fault. A fault never contains a secret's value. */
export function parseConfig(env: Env, readFile: (path: string) => string, options: { toServe?: boolean } = {}): Config {
  const read = new ConfigReader(env, readFile, options)
  const settings = readSettings(read)
  read.throwFaults()
  return toConfig(settings)
}

/** Null stands for a part of the service that is not configured, or that is switched off. */
function toConfig({ cognito, ...settings }: Settings) {
  const { runtime, push, console } = settings
  const { projectId, clientEmail, privateKey } = push
  return {
    ...settings,
    database: toDatabase(settings.database),
    runtime: runtime.url === null ? null : { ...runtime, url: runtime.url },
    push: projectId && clientEmail && privateKey ? { projectId, clientEmail, privateKey } : null,
    console: console.state === 'off' ? null : toConsole(console),
  }
}

function toConsole({ state, ...console }: Settings['console']) {
  return console
}

/** The audiences of which a token must name one; null if the audience is not checked. */
export function requiredAudiences({ tokenAudience }: Config): readonly string[] | null {
  return tokenAudience?.includes(ANY_AUDIENCE) ? null : tokenAudience
}

/** Absent: the defaults of `openPostgres`. */
type PostgresSettings = { engine: 'postgres'; url: string; poolSize?: number; prepared?: boolean }
type DatabaseSettings = { engine: 'sqlite'; dataDir: string } | PostgresSettings

function toDatabase({ url, poolSize, prepared, dataDir }: Settings['database']): DatabaseSettings {
  if (url === null) return { engine: 'sqlite', dataDir }
  return { engine: 'postgres', url, poolSize, prepared: prepared === 'on' }
}

interface EffectiveSetting {
  name: string
  value: SettingValue
  secret: boolean
}

/** Every effective setting, including defaults. For a secret, it only says whether it is set. */
export function effectiveSettings(config: Config): EffectiveSetting[] {
  const { production, database, console } = config
  const isPostgres = database.engine === 'postgres'
  const shown = showRows(SETTINGS, {
    ...config,
    production: production ? 'production' : 'development or test',
    database: { ...database, ...(isPostgres && { prepared: database.prepared === false ? 'off' : 'on' }) },
    console: console === null ? { state: 'off' } : { state: 'on', ...console },
  })
  return shown.sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** A value that is absent is null: it is not set or not in force, such as the timeout of a runtime that is not configured. */
function showRows(table: SettingTable, values: Record<string, unknown>): EffectiveSetting[] {
  return Object.entries(table).flatMap(([key, row]) => {
    if (!isSetting(row)) return showRows(row, (values[key] ?? {}) as Record<string, unknown>)
    if (row.shown === false) return []
    const value = (values[key] ?? null) as SettingValue
    if (row.secret === undefined) return [{ name: row.name, value, secret: false }]
    const isSet = Array.isArray(value) ? value.length > 0 : value !== null
    return [{ name: row.name, value: isSet ? '[redacted]' : null, secret: true }]
  })
}
