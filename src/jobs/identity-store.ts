import { createHmac } from 'node:crypto'
import type { Queryable } from '../db/database.ts'
import { sql } from '../db/sql.ts'

/** How the runtime learns ids of people. */
export interface RuntimeIdentity {
  mode: 'sub' | 'pseudonym' | 'none'
  secret: string | null
}

/** Notes how the runs of this process name their users, before the first run starts. */
export async function noteIdentity(db: Queryable, identity: RuntimeIdentity, atMs: number): Promise<void> {
  await db.query(sql`
    insert into runtime_identities (id, noted_at) values (${idOf(identity)}, ${atMs}) on conflict (id) do nothing`)
}

/** How many kinds of names the runtime has seen. 0: this service never had a runtime. */
export async function countIdentities(db: Queryable): Promise<number> {
  const [row] = await db.query<{ kinds: number }>(sql`select count(*) as kinds from runtime_identities`)
  return row?.kinds ?? 0
}

/** Another secret gives other pseudonyms. */
function idOf({ mode, secret }: RuntimeIdentity): string {
  if (mode !== 'pseudonym' || secret === null) return mode
  return `${mode} ${createHmac('sha256', secret).update('identity').digest('hex').slice(0, 16)}`
}
