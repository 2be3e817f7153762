import type { LiveServiceKey, ServiceKeyStore } from '../auth/service-key-authenticator.ts'
import type { Queryable } from '../db/database.ts'
import { isAmong } from '../db/rows.ts'
import { sql } from '../db/sql.ts'
import type { PageRequest } from '../http/paging.ts'

export type ServiceAccountRow = {
  id: string
  name: string
  scopes: string
  key_hint: string | null
  /** Null once the admin was erased. */
  created_by: string | null
  created_at: number
  expires_at: number | null
  revoked_at: number | null
  last_used_at: number | null
}

const COLUMNS = sql`id, name, scopes, created_by, created_at, expires_at, revoked_at, last_used_at,
  (select hint from service_keys where account_id = service_accounts.id order by id desc limit 1) as key_hint`

export async function insertServiceAccount(
  db: Queryable,
  account: {
    id: string
    name: string
    scopes: readonly string[]
    createdBy: string
    atMs: number
    expiresAtMs: number | null
  },
): Promise<void> {
  await db.query(sql`
    insert into service_accounts (id, name, scopes, created_by, created_at, expires_at)
    values (${account.id}, ${account.name}, ${account.scopes.join(' ')}, ${account.createdBy}, ${account.atMs}, ${account.expiresAtMs})`)
}

export async function insertServiceKey(
  db: Queryable,
  key: { id: string; accountId: string; hash: string; hint: string; atMs: number },
): Promise<void> {
  await db.query(sql`
    insert into service_keys (id, account_id, hash, hint, created_at)
    values (${key.id}, ${key.accountId}, ${key.hash}, ${key.hint}, ${key.atMs})`)
}

/** Keys that expire later or never now expire at `atMs`. Keys that expire sooner keep their time. */
export async function endServiceKeys(db: Queryable, accountId: string, atMs: number): Promise<void> {
  await db.query(sql`
    update service_keys set expires_at = ${atMs}
    where account_id = ${accountId} and (expires_at is null or expires_at > ${atMs})`)
}

export async function findServiceAccount(db: Queryable, id: string): Promise<ServiceAccountRow | undefined> {
  const [row] = await db.query<ServiceAccountRow>(sql`select ${COLUMNS} from service_accounts where id = ${id}`)
  return row
}

/** `id`: that of an account, or of one of its keys. */
export function findServiceAccountPage(
  db: Queryable,
  page: PageRequest<readonly [string]>,
  id?: string,
): Promise<ServiceAccountRow[]> {
  const isAfter = page.after === null ? sql`1 = 1` : sql`id < ${page.after[0]}`
  const isWanted =
    id === undefined ? sql`1 = 1` : sql`id in (${id}, (select account_id from service_keys where id = ${id}))`
  return db.query(sql`
    select ${COLUMNS} from service_accounts where ${isAfter} and ${isWanted} order by id desc limit ${page.limit + 1}`)
}

/** False if there is no such account, or if it was already revoked; then it keeps its first date. */
export async function revokeServiceAccount(db: Queryable, id: string, atMs: number): Promise<boolean> {
  const rows = await db.query(sql`
    update service_accounts set revoked_at = ${atMs} where id = ${id} and revoked_at is null returning id`)
  return rows.length > 0
}

/** There are few accounts: without an index. */
export async function removeAccountCreator(db: Queryable, createdBy: string): Promise<void> {
  await db.query(sql`update service_accounts set created_by = null where created_by = ${createdBy}`)
}

/** Service keys as authentication needs them. */
export function serviceKeyStore(db: Queryable): ServiceKeyStore {
  return {
    findLive: async (hash) => {
      const [row] = await db.query<LiveServiceKey>(sql`
        select k.id as key_id, a.id as account_id, a.scopes, k.expires_at as key_expires_at, a.expires_at as account_expires_at
        from service_keys k join service_accounts a on a.id = k.account_id
        where k.hash = ${hash} and a.revoked_at is null`)
      return row
    },
    markUsed: async (accountIds, atMs) => {
      const used = isAmong(db.engine, sql`id`, accountIds)
      await db.query(sql`update service_accounts set last_used_at = ${atMs} where ${used}`)
    },
  }
}
