import type { Queryable } from '../db/database.ts'
import { join, sql } from '../db/sql.ts'

/** A key with the account it speaks for, as the gate needs them. */
export type LiveServiceKey = {
  key_id: string
  account_id: string
  scopes: string
  key_expires_at: number | null
  account_expires_at: number | null
}

/** Keys of revoked accounts are not found; expiry is left to the caller, who owns the clock. */
export async function findLiveServiceKey(db: Queryable, hash: string): Promise<LiveServiceKey | undefined> {
  const [row] = await db.query<LiveServiceKey>(sql`
    select k.id as key_id, a.id as account_id, a.scopes, k.expires_at as key_expires_at, a.expires_at as account_expires_at
    from service_keys k join service_accounts a on a.id = k.account_id
    where k.hash = ${hash} and a.revoked_at is null`)
  return row
}

export async function markServiceAccountsUsed(db: Queryable, accountIds: string[], atMs: number): Promise<void> {
  if (accountIds.length === 0) return
  const ids = join(
    accountIds.map((id) => sql`${id}`),
    ', ',
  )
  await db.query(sql`update service_accounts set last_used_at = ${atMs} where id in (${ids})`)
}
