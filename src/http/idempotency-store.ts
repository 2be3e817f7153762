import { bytesOf, takeBatch } from '../db/bounded-page.ts'
import type { Queryable } from '../db/database.ts'
import { isAmong, rowsOf } from '../db/rows.ts'
import { type Sql, sql } from '../db/sql.ts'

type StoredAnswer = {
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

/** Deletes one batch; true if there are more. */
export function deleteExpiredAnswers(
  db: Queryable,
  { nowMs, limit }: { nowMs: number; limit: number },
): Promise<boolean> {
  // A request may store a new answer in place of an expired one meanwhile. The plus keeps PostgreSQL from using the index of
  // `expires_at`: it would compare every expired answer with every key of the batch.
  return deleteSome(db, { where: sql`expires_at <= ${nowMs}`, onlyIf: sql`+expires_at <= ${nowMs}`, limit })
}

/** Deletes the stored answers that contain these records. */
export async function deleteAnswersAt(db: Queryable, locations: readonly string[]): Promise<void> {
  await db.query(sql`delete from idempotency_keys where ${isAmong(db.engine, sql`location`, locations)}`)
}

/** Deletes one batch of the answers kept for a principal; true if there are more. */
export function deleteAnswersFor(db: Queryable, principal: string, limit: number): Promise<boolean> {
  return deleteSome(db, { where: sql`principal = ${principal}`, onlyIf: sql`true`, limit })
}

async function deleteSome(
  db: Queryable,
  { where, onlyIf, limit }: { where: Sql; onlyIf: Sql; limit: number },
): Promise<boolean> {
  const found = await db.query<{ principal: string; idempotency_key: string; bytes: number }>(sql`
    select principal, idempotency_key, ${bytesOf([sql`body`])} as bytes from idempotency_keys
    where ${where} limit ${limit + 1}`)
  const { rows, hasMore } = takeBatch(found, limit)
  if (rows.length === 0) return false
  const keys = rowsOf(db.engine, rows, { principal: 'text', idempotency_key: 'text' })
  await db.query(sql`
    delete from idempotency_keys
    where (principal, idempotency_key) in (select principal, idempotency_key from ${keys} as r) and ${onlyIf}`)
  return hasMore
}
