import type { LiveServiceKey, ServiceKeyStore } from '../auth/service-key-authenticator.ts'
import type { Queryable } from '../db/database.ts'
import { isAmong } from '../db/rows.ts'
import { sql } from '../db/sql.ts'

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
