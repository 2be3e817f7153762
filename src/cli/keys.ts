import { parseArgs } from 'node:util'
import { SCOPES } from '../auth/scopes.ts'
import { parseConfig } from '../config.ts'
import { systemClock, toRfc3339 } from '../core/clock.ts'
import { IdGenerator } from '../core/ids.ts'
import { systemRandom } from '../core/random.ts'
import { listServiceAccounts, type ServiceAccountRow } from '../service-accounts/service-account-store.ts'
import { ServiceAccounts } from '../service-accounts/service-accounts.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode } from './io.ts'
import { type OpenedDatabase, openMigratedDatabase } from './open-database.ts'

const USAGE = `usage: keys create --name NAME --scopes "SCOPE SCOPE" [--expires RFC3339]
       keys list
       keys revoke ID`

/** Service accounts from the command line: the way to the first one, before any admin can sign in. */
export async function keys(line: CommandLine): Promise<ExitCode> {
  const [verb, ...rest] = line.args
  const run = { create: createKey, list: listKeys, revoke: revokeKey }[verb ?? '']
  if (!run) throw new CommandError(USAGE, EXIT.usage)
  const prepared = run(rest)
  const config = parseConfig(line.env, line.readFile)
  const opened = await openMigratedDatabase(config.database)
  try {
    await prepared(opened, line)
    return EXIT.ok
  } finally {
    await opened.close()
  }
}

type Prepared = (opened: OpenedDatabase, line: CommandLine) => Promise<void>

function createKey(args: readonly string[]): Prepared {
  const { values } = readOptions(args)
  const scopes = (values.scopes ?? '').split(/[\s,]+/).filter((scope) => scope !== '')
  const unknown = scopes.filter((scope) => !Object.hasOwn(SCOPES, scope))
  if (!values.name || scopes.length === 0) throw new CommandError(USAGE, EXIT.usage)
  if (unknown.length > 0) {
    throw new CommandError(
      `Unknown scope ${unknown.join(', ')}; there are ${Object.keys(SCOPES).join(', ')}`,
      EXIT.usage,
    )
  }
  const expiresAtMs = values.expires === undefined ? null : Date.parse(values.expires)
  if (Number.isNaN(expiresAtMs)) throw new CommandError('--expires must be an RFC 3339 date and time', EXIT.usage)
  const account = { name: values.name, scopes, createdBy: 'command line', expiresAtMs }
  return async ({ db }, line) => {
    const { row, key } = await db.transaction((tx) => accountsOf(db).create(tx, account))
    line.complain(`${row.id}  ${row.name}  (the key below is shown this once)`)
    line.print(key)
  }
}

function listKeys(args: readonly string[]): Prepared {
  readOptions(args)
  return async ({ db }, line) => {
    let after: readonly [string] | null = null
    do {
      const rows: ServiceAccountRow[] = await listServiceAccounts(db, { limit: 100, after })
      for (const row of rows.slice(0, 100)) line.print(describe(row))
      const last = rows[99]
      after = rows.length > 100 && last ? [last.id] : null
    } while (after !== null)
  }
}

function revokeKey(args: readonly string[]): Prepared {
  const { positionals } = readOptions(args)
  const [id] = positionals
  if (!id || positionals.length > 1) throw new CommandError(USAGE, EXIT.usage)
  return async ({ db }, line) => {
    await accountsOf(db).revoke(id)
    line.print(`revoked ${id}`)
  }
}

function readOptions(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: { name: { type: 'string' }, scopes: { type: 'string' }, expires: { type: 'string' } },
    })
  } catch (error) {
    throw new CommandError(`${(error as Error).message}\n${USAGE}`, EXIT.usage)
  }
}

function accountsOf(db: OpenedDatabase['db']): ServiceAccounts {
  const ids = new IdGenerator(systemClock, systemRandom)
  return new ServiceAccounts({ db, clock: systemClock, random: systemRandom, ids, authenticator: null })
}

function describe(row: ServiceAccountRow): string {
  const state = row.revoked_at !== null ? 'revoked' : 'live'
  const used = row.last_used_at === null ? 'never used' : `used ${toRfc3339(row.last_used_at)}`
  return [row.id, state, `…${row.key_hint ?? ''}`, row.scopes, used, row.name].join('  ')
}
