import type { Queryable } from '../db/database.ts'
import { isAmong } from '../db/rows.ts'
import { sql } from '../db/sql.ts'

export type StoredAnswer = {
  fingerprint: string
  status: number
  location: string
  body: string
  expires_at: number
}

export async function findAnswer(
  db: Queryable,
  { principal, key }: { principal: string; key: string },
): Promise<StoredAnswer | undefined> {
  const [row] = await db.query<StoredAnswer>(sql`
    select fingerprint, status, location, body, expires_at from idempotency_keys
    where principal = ${principal} and idempotency_key = ${key}`)
  return row
}

/** Replaces an expired answer of the same key. */
export async function storeAnswer(
  db: Queryable,
  { principal, key }: { principal: string; key: string },
  answer: StoredAnswer,
): Promise<void> {
  await db.query(sql`
    insert into idempotency_keys (principal, idempotency_key, fingerprint, status, location, body, expires_at)
    values (${principal}, ${key}, ${answer.fingerprint}, ${answer.status}, ${answer.location}, ${answer.body}, ${answer.expires_at})
    on conflict (principal, idempotency_key) do update set
      fingerprint = excluded.fingerprint, status = excluded.status, location = excluded.location,
      body = excluded.body, expires_at = excluded.expires_at`)
}

/** Deletes a bounded number; true if there may be more. */
export async function deleteExpiredAnswers(
  db: Queryable,
  { nowMs, limit }: { nowMs: number; limit: number },
): Promise<boolean> {
  const deleted = await db.query(sql`
    delete from idempotency_keys where (principal, idempotency_key) in (
      select principal, idempotency_key from idempotency_keys where expires_at <= ${nowMs} limit ${limit})
    returning expires_at`)
  return deleted.length === limit
}

/** Deletes the stored answers that contain these records. */
export async function deleteAnswersAt(db: Queryable, locations: readonly string[]): Promise<void> {
  await db.query(sql`delete from idempotency_keys where ${isAmong(db.engine, sql`location`, locations)}`)
}

/** Deletes a bounded number of the answers kept for a principal; true if there may be more. */
export async function deleteAnswersFor(db: Queryable, principal: string, limit: number): Promise<boolean> {
  const deleted = await db.query(sql`
    delete from idempotency_keys where (principal, idempotency_key) in (
      select principal, idempotency_key from idempotency_keys where principal = ${principal} limit ${limit})
    returning expires_at`)
  return deleted.length === limit
}
