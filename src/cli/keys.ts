import { SCOPES } from '../auth/scopes.ts'
import { parseConfig } from '../config.ts'
import { systemClock, toRfc3339 } from '../core/clock.ts'
import { IdGenerator } from '../core/ids.ts'
import { systemRandom } from '../core/random.ts'
import { faultOfBody } from '../http/validation.ts'
import { createServiceAccount } from '../service-accounts/service-account-schema.ts'
import { findServiceAccountPage, type ServiceAccountRow } from '../service-accounts/service-account-store.ts'
import { ServiceAccounts } from '../service-accounts/service-accounts.ts'
import { readArguments } from './arguments.ts'
import { type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { commandLineOrigin } from './startup/command-line-origin.ts'
import { type OpenedDatabase, openMigratedDatabase, openToRead } from './startup/open-database.ts'

const NEW_KEY = { name: { type: 'string' }, scopes: { type: 'string' }, expires: { type: 'string' } } as const
/** The option for each field of the API, for error messages. */
const OPTION_OF_FIELD: Record<string, string> = { name: '--name', scopes: '--scopes', expires_at: '--expires' }

/** Manages service accounts. This is how the first one is created, before an admin can sign in. */
export async function keys(line: CommandLine): Promise<ExitCode> {
  const [verb, ...rest] = line.args
  const run = { create: createKey, list: listKeys, revoke: revokeKey }[verb ?? '']
  const open = verb === 'list' ? openToRead : openMigratedDatabase
  if (!run) throw new UsageError('keys needs a subcommand: create, list or revoke')
  // Arguments are checked first, before the settings are read and the database is opened.
  const prepared = run(rest)
  const config = parseConfig(line.env, line.readFile)
  const opened = await open(config.database)
  try {
    await prepared(opened, line)
    return EXIT.ok
  } finally {
    await opened.close()
  }
}

type Prepared = (opened: OpenedDatabase, line: CommandLine) => Promise<void>

/** Checks the arguments with the schema of the API, so that both accept the same accounts. */
function createKey(args: readonly string[]): Prepared {
  const { values } = readArguments(args, { options: NEW_KEY, allowPositionals: false })
  const { name, expires = null } = values
  const scopes = (values.scopes ?? '').split(/[\s,]+/).filter((scope) => scope !== '')
  const unknown = scopes.filter((scope) => !Object.hasOwn(SCOPES, scope))
  if (name === undefined) throw new UsageError('--name is missing')
  if (scopes.length === 0) throw new UsageError('--scopes is missing')
  if (unknown.length > 0) {
    throw new UsageError(`Unknown scope ${unknown.join(', ')}; the scopes are ${Object.keys(SCOPES).join(', ')}`)
  }
  const fault = faultOfBody(createServiceAccount.body, { name, scopes, expires_at: expires })
  if (fault) throw new UsageError(`${OPTION_OF_FIELD[fault.field]} ${fault.what}`)
  const expiresAtMs = expires === null ? null : Date.parse(expires)
  const account = { name, scopes, createdBy: 'command line', expiresAtMs }
  return async ({ db }, line) => {
    const { row, key } = await db.transaction((tx) => accountsOf(db).create(tx, account, commandLineOrigin()))
    line.printError(`${row.id}  ${row.name}  (the key below is shown only once)`)
    line.print(key)
  }
}

function listKeys(args: readonly string[]): Prepared {
  readArguments(args, { options: {}, allowPositionals: false })
  return async ({ db }, line) => {
    let after: readonly [string] | null = null
    do {
      const rows: ServiceAccountRow[] = await findServiceAccountPage(db, { limit: 100, after })
      for (const row of rows.slice(0, 100)) line.print(describe(row))
      const last = rows[99]
      after = rows.length > 100 && last ? [last.id] : null
    } while (after !== null)
  }
}

function revokeKey(args: readonly string[]): Prepared {
  const [id, ...more] = readArguments(args, { options: {}, allowPositionals: true }).positionals
  if (!id || more.length > 0) throw new UsageError('keys revoke needs one id')
  return async ({ db }, line) => {
    await accountsOf(db).revoke(id, commandLineOrigin())
    line.print(`revoked ${id}`)
  }
}

function accountsOf(db: OpenedDatabase['db']): ServiceAccounts {
  const ids = new IdGenerator(systemClock, systemRandom)
  return new ServiceAccounts({ db, clock: systemClock, random: systemRandom, ids, authenticator: null })
}

function describe(row: ServiceAccountRow): string {
  const { expires_at: expiresAtMs } = row
  const isExpired = expiresAtMs !== null && expiresAtMs <= systemClock.now()
  const state = row.revoked_at !== null ? 'revoked' : isExpired ? 'expired' : 'live'
  const used = row.last_used_at === null ? 'never used' : `used ${toRfc3339(row.last_used_at)}`
  const expiry = expiresAtMs === null ? [] : [`expires ${toRfc3339(expiresAtMs)}`]
  return [row.id, state, `…${row.key_hint ?? ''}`, row.scopes, ...expiry, used, row.name].join('  ')
}
