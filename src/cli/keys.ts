import { COMMAND_LINE } from '../auth/principal.ts'
import { SCOPES } from '../auth/scopes.ts'
import { parseConfig } from '../config.ts'
import { systemClock } from '../core/clock.ts'
import { IdGenerator } from '../core/ids.ts'
import { systemRandom } from '../core/random.ts'
import { faultOfBody } from '../http/validation.ts'
import { toServiceAccount } from '../service-accounts/service-account-routes.ts'
import {
  createServiceAccount,
  type ServiceAccount,
  type ServiceAccountWithKey,
} from '../service-accounts/service-account-schema.ts'
import { findServiceAccountPage } from '../service-accounts/service-account-store.ts'
import { ServiceAccounts } from '../service-accounts/service-accounts.ts'
import { readArguments } from './arguments.ts'
import { explainInUse, lookForService, SERVICE_OPTIONS } from './client/find-service.ts'
import { printList } from './client/print-list.ts'
import { ServiceClient } from './client/service-client.ts'
import { type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { commandLineOrigin } from './startup/command-line-origin.ts'
import { type OpenedDatabase, openMigratedDatabase } from './startup/open-database.ts'

const OPTIONS = {
  ...SERVICE_OPTIONS,
  name: { type: 'string' },
  scopes: { type: 'string' },
  expires: { type: 'string' },
} as const
/** The option for each field of the API, for error messages. */
const OPTION_OF_FIELD: Record<string, string> = { name: '--name', scopes: '--scopes', expires_at: '--expires' }

type NewAccount = { name: string; scopes: string[]; expires_at: string | null }

/** Service accounts, of a service or of a database that no service uses. */
interface Accounts {
  create(account: NewAccount): Promise<ServiceAccountWithKey>
  list(): AsyncIterable<ServiceAccount>
  /** The account as it is then. */
  revoke(id: string): Promise<ServiceAccount>
}

type Run = (accounts: Accounts, line: CommandLine) => Promise<void>
type Values = { json?: boolean; name?: string; scopes?: string; expires?: string }

const VERBS: Record<string, (values: Values, ids: readonly string[]) => Run> = {
  create: createKey,
  list: listKeys,
  revoke: revokeKey,
}

/** Manages service accounts. This is how the first one is created, before an admin can sign in. */
export async function keys(line: CommandLine): Promise<ExitCode> {
  const { values, positionals } = readArguments(line.args, { options: OPTIONS, allowPositionals: true })
  const [verb = '', ...ids] = positionals
  const prepare = Object.hasOwn(VERBS, verb) ? VERBS[verb] : undefined
  if (!prepare) throw new UsageError('keys needs a subcommand: create, list or revoke')
  // Arguments are checked first, before the settings are read and the database is opened.
  const run = prepare(values, ids)
  const service = await lookForService(line, values)
  if (service instanceof ServiceClient) await run(accountsOf(service), line)
  else await onDatabase(line, (accounts) => run(accounts, line))
  return EXIT.ok
}

/** Checks the arguments with the schema of the API, so that both accept the same accounts. */
function createKey(values: Values, ids: readonly string[]): Run {
  const { json, name, expires: expires_at = null } = values
  const scopes = (values.scopes ?? '').split(/[\s,]+/).filter((scope) => scope !== '')
  const unknown = scopes.filter((scope) => !Object.hasOwn(SCOPES, scope))
  checkNoWord(ids)
  if (name === undefined) throw new UsageError('--name is missing')
  if (scopes.length === 0) throw new UsageError('--scopes is missing')
  if (unknown.length > 0) {
    throw new UsageError(`Unknown scope ${unknown.join(', ')}; the scopes are ${Object.keys(SCOPES).join(', ')}`)
  }
  const account = { name, scopes, expires_at }
  const fault = faultOfBody(createServiceAccount.body, account)
  if (fault) throw new UsageError(`${OPTION_OF_FIELD[fault.field]} ${fault.what}`)
  return async (accounts, line) => {
    const created = await accounts.create(account)
    if (json) return line.print(JSON.stringify(created))
    line.printError(`${created.id}  ${created.name}  (the key below is shown only once)`)
    line.print(created.key ?? '')
  }
}

function listKeys({ json = false, ...values }: Values, ids: readonly string[]): Run {
  checkNoWord(ids)
  checkNotNew('list', values)
  return (accounts, line) => printList(line, accounts.list(), { json, show, none: 'No service accounts' })
}

function revokeKey({ json = false, ...values }: Values, [id = '', ...more]: readonly string[]): Run {
  if (id === '' || more.length > 0) throw new UsageError('keys revoke needs one id')
  checkNotNew('revoke', values)
  return async (accounts, line) => {
    const account = await accounts.revoke(id)
    line.print(json ? JSON.stringify(account) : `revoked ${id}`)
  }
}

function checkNoWord([word]: readonly string[]): void {
  if (word !== undefined) throw new UsageError(`Unexpected argument '${word}'`)
}

/** The options of a new account. */
function checkNotNew(verb: string, { name, scopes, expires }: Values): void {
  const [foreign] = Object.entries({ name, scopes, expires }).filter(([, value]) => value !== undefined)
  if (foreign) throw new UsageError(`keys ${verb} takes no --${foreign[0]}`)
}

function accountsOf(service: ServiceClient): Accounts {
  const path = '/v1/service-accounts'
  return {
    create: (body) => service.call(path, { method: 'POST', body }),
    list: () => service.list(path),
    revoke: async (id) => {
      const one = `${path}/${encodeURIComponent(id)}`
      await service.call(one, { method: 'DELETE' })
      return service.call(one)
    },
  }
}

async function onDatabase(line: CommandLine, work: (accounts: Accounts) => Promise<void>): Promise<void> {
  const { database } = parseConfig(line.env, line.readFile)
  const { db, close } = await openMigratedDatabase(database).catch(explainInUse)
  try {
    await work(storedAccounts(db))
  } finally {
    await close()
  }
}

function storedAccounts(db: OpenedDatabase['db']): Accounts {
  const clock = systemClock
  const ids = new IdGenerator(clock, systemRandom)
  const accounts = new ServiceAccounts({ db, clock, random: systemRandom, ids, authenticator: null })
  return {
    create: async ({ name, scopes, expires_at }) => {
      const expiresAtMs = expires_at === null ? null : Date.parse(expires_at)
      const account = { name, scopes, createdBy: COMMAND_LINE, expiresAtMs }
      const { row, key } = await db.transaction((tx) => accounts.create(tx, account, commandLineOrigin()))
      return { ...toServiceAccount(row), key }
    },
    list: async function* () {
      for (let after: readonly [string] | null = null; ; ) {
        const rows = await findServiceAccountPage(db, { limit: 100, after })
        yield* rows.slice(0, 100).map(toServiceAccount)
        const last: string | undefined = rows[99]?.id
        if (rows.length <= 100 || last === undefined) return
        after = [last]
      }
    },
    revoke: async (id) => {
      await accounts.revoke(id, commandLineOrigin())
      return toServiceAccount(await accounts.find(id))
    },
  }
}

function show({ id, key_hint, scopes, expires_at, revoked_at, last_used_at, name }: ServiceAccount): string {
  const isExpired = expires_at !== null && Date.parse(expires_at) <= systemClock.now()
  const state = revoked_at !== null ? 'revoked' : isExpired ? 'expired' : 'live'
  const used = last_used_at === null ? 'never used' : `used ${last_used_at}`
  const expiry = expires_at === null ? [] : [`expires ${expires_at}`]
  return [id, state, `…${key_hint ?? ''}`, scopes.join(' '), ...expiry, used, name].join('  ')
}
