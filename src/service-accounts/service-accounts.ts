import { type AuditedChange, type AuditOrigin, recordAudit } from '../audit/record-audit.ts'
import { createServiceKey, hashServiceKey, hintOf } from '../auth/service-key.ts'
import type { ServiceKeyAuthenticator } from '../auth/service-key-authenticator.ts'
import type { Clock } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Random } from '../core/random.ts'
import type { Database, Queryable, Transaction } from '../db/database.ts'
import * as store from './service-account-store.ts'

interface ServiceAccountsOptions {
  db: Database
  clock: Clock
  random: Random
  ids: IdGenerator
  /** Null in a command of the command line, where no keys are cached. */
  authenticator: ServiceKeyAuthenticator | null
}

interface NewServiceAccount {
  name: string
  scopes: readonly string[]
  createdBy: string
  expiresAtMs: number | null
}

export interface IssuedKey {
  row: store.ServiceAccountRow
  key: string
}

/** Creates, rotates and revokes service accounts, for the API and the command line. Only the hash of a key is stored. */
export class ServiceAccounts {
  readonly #options: ServiceAccountsOptions

  constructor(options: ServiceAccountsOptions) {
    this.#options = options
  }

  async create(tx: Transaction, account: NewServiceAccount, by: AuditOrigin): Promise<IssuedKey> {
    const id = this.#options.ids.next('svc')
    await store.insertServiceAccount(tx, { ...account, id, atMs: this.#options.clock.now() })
    const { name, scopes } = account
    await this.#record(tx, { by, action: 'service_account.created', id, after: { name, scopes } })
    return this.#issueKey(tx, id)
  }

  find(id: string): Promise<store.ServiceAccountRow> {
    return this.#find(this.#options.db, id)
  }

  async rotate(
    tx: Transaction,
    { id, graceSeconds }: { id: string; graceSeconds: number },
    by: AuditOrigin,
  ): Promise<IssuedKey> {
    const account = await this.#find(tx, id)
    if (account.revoked_at !== null) throw new ApiError('conflict', 'The service account is revoked')
    await store.endServiceKeys(tx, id, this.#options.clock.calendar() + graceSeconds * 1000)
    const after = { name: account.name, grace_seconds: graceSeconds }
    await this.#record(tx, { by, action: 'service_account.rotated', id, after })
    return this.#issueKey(tx, id)
  }

  /** An account that was already revoked does not change. */
  async revoke(id: string, by: AuditOrigin): Promise<void> {
    const { db, clock } = this.#options
    await db.transaction(async (tx) => {
      const { name } = await this.#find(tx, id)
      if (!(await store.revokeServiceAccount(tx, id, clock.now()))) return
      await this.#record(tx, { by, action: 'service_account.revoked', id, after: { name } })
    })
    this.forgetCachedKeys()
  }

  /** Call it after a change has committed, so that this node reads the keys again. */
  forgetCachedKeys(): void {
    this.#options.authenticator?.forgetCached()
  }

  #record(tx: Transaction, { id, ...change }: Omit<AuditedChange, 'object'> & { id: string }): Promise<void> {
    return recordAudit(tx, this.#options, { ...change, object: { kind: 'service_account', id } })
  }

  async #issueKey(tx: Transaction, accountId: string): Promise<IssuedKey> {
    const key = createServiceKey(this.#options.random)
    await store.insertServiceKey(tx, {
      id: this.#options.ids.next('key'),
      accountId,
      hash: hashServiceKey(key),
      hint: hintOf(key),
      atMs: this.#options.clock.now(),
    })
    return { row: await this.#find(tx, accountId), key }
  }

  async #find(db: Queryable, id: string): Promise<store.ServiceAccountRow> {
    const row = await store.findServiceAccount(db, id)
    if (!row) throw noSuchAccount()
    return row
  }
}

function noSuchAccount(): ApiError {
  return new ApiError('not_found', 'No such service account')
}
