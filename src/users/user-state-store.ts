import type { Queryable, Transaction } from '../db/database.ts'
import { sql } from '../db/sql.ts'

type UserStateRow = {
  sub: string
  blocked_at: number | null
  /** The operation that erases the user now. */
  erasing: string | null
  erased_at: number | null
  version: number
}

/** Blocks or unblocks a user, also one that never signed in. `changed` is false if the user was already in that state. */
export async function setBlocked(
  tx: Transaction,
  { sub, blockedAtMs }: { sub: string; blockedAtMs: number | null },
): Promise<{ blockedAtMs: number | null; changed: boolean }> {
  const version = await nextVersion(tx)
  const [known] = await tx.query<{ blocked_at: number | null }>(
    sql`select blocked_at from user_states where sub = ${sub}`,
  )
  const before = known?.blocked_at ?? null
  if ((before === null) === (blockedAtMs === null)) return { blockedAtMs: before, changed: false }
  await tx.query(sql`
    insert into user_states (sub, blocked_at, erased_at, version) values (${sub}, ${blockedAtMs}, null, ${version})
    on conflict (sub) do update set blocked_at = excluded.blocked_at, version = excluded.version`)
  return { blockedAtMs, changed: true }
}

/** The operation that erases the user now; null when there is none. */
export async function findErasure(db: Queryable, sub: string): Promise<string | null> {
  const [row] = await db.query<{ erasing: string | null }>(sql`select erasing from user_states where sub = ${sub}`)
  return row?.erasing ?? null
}

/** Whether an erasure of the user has ended. */
export async function wasErased(db: Queryable, sub: string): Promise<boolean> {
  const rows = await db.query(sql`select 1 as found from user_states where sub = ${sub} and erased_at is not null`)
  return rows.length > 0
}

/** Why the user is refused; null: the user is not. */
export async function findRefusal(db: Queryable, sub: string): Promise<'user_blocked' | 'user_erased' | null> {
  const [row] = await db.query<Pick<UserStateRow, 'blocked_at' | 'erasing'>>(
    sql`select blocked_at, erasing from user_states where sub = ${sub}`,
  )
  if (row && row.erasing !== null) return 'user_erased'
  return row && row.blocked_at !== null ? 'user_blocked' : null
}

/** From now on the user is refused until the erasure ends. False when another erasure of the user runs. */
export async function beginErasure(
  tx: Transaction,
  { sub, operationId }: { sub: string; operationId: string },
): Promise<boolean> {
  const version = await nextVersion(tx)
  if ((await findErasure(tx, sub)) !== null) return false
  await tx.query(sql`
    insert into user_states (sub, erasing, version) values (${sub}, ${operationId}, ${version})
    on conflict (sub) do update set erasing = excluded.erasing, version = excluded.version`)
  return true
}

/** The user may come back, and starts empty. Every node forgets what it has in memory. */
export async function endErasure(tx: Transaction, { sub, atMs }: { sub: string; atMs: number }): Promise<void> {
  const version = await nextVersion(tx)
  await tx.query(sql`
    update user_states set erasing = null, erased_at = ${atMs}, version = ${version} where sub = ${sub}`)
}

/** States that changed after a version, in order. */
export function findStateChanges(
  db: Queryable,
  { after, limit }: { after: number; limit: number },
): Promise<UserStateRow[]> {
  return db.query<UserStateRow>(sql`
    select sub, blocked_at, erasing, erased_at, version from user_states
    where version > ${after} order by version limit ${limit}`)
}

/** The row stays locked until the commit: a reader that sees a version can also see every lower one. */
async function nextVersion(tx: Transaction): Promise<number> {
  const [row] = await tx.query<{ version: number }>(
    sql`update user_state_version set version = version + 1 where id = 1 returning version`,
  )
  return row?.version ?? 1
}
