import type { Database, Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { rowsOf } from '../db/rows.ts'
import { sql } from '../db/sql.ts'

/** The windows of the overview, each with the length of its buckets. */
export const STATS_WINDOWS = {
  '1h': { spanMs: 3_600_000, bucketMs: 60_000 },
  '24h': { spanMs: 24 * 3_600_000, bucketMs: 900_000 },
  '7d': { spanMs: 7 * 24 * 3_600_000, bucketMs: 7_200_000 },
} as const
export type StatsWindow = keyof typeof STATS_WINDOWS

const BUCKETS_MS = Object.values(STATS_WINDOWS).map(({ bucketMs }) => bucketMs)

/** `events` counts by position in the log, `time` by the database's time. */
export type StatsSource = 'events' | 'time'

/** Something that happened `count` times at about this time. */
export interface StatsCount {
  atMs: number
  name: string
  count: number
}

export async function findCursor(db: Queryable, source: StatsSource): Promise<number> {
  const [row] = await db.query<{ position: number }>(sql`select position from stats_cursors where source = ${source}`)
  return row?.position ?? 0
}

/** The counts of a source up to a position. */
interface StatsStep {
  to: number
  counts: readonly StatsCount[]
}

/**
 * Adds what `count` finds from the cursor of a source on, moves the cursor and returns its position; null if `count` returns
 * null. It reads under the lock of the cursor, and so does a deletion that counts what it deletes: everything is counted
 * exactly once, by any number of nodes.
 */
export function addCounts(
  db: Database,
  source: StatsSource,
  count: (tx: Transaction, from: number) => Promise<StatsStep | null>,
): Promise<number | null> {
  return db.transaction(async (tx) => {
    const step = await count(tx, await lockCursor(tx, source))
    if (step === null) return null
    await upsertCounts(tx, step.counts)
    await tx.query(sql`update stats_cursors set position = ${step.to} where source = ${source}`)
    return step.to
  })
}

/** Until the transaction ends, no other transaction counts rows of this source. */
export async function lockCursor(tx: Transaction, source: StatsSource): Promise<number> {
  const [row] = await tx.query<{ position: number }>(
    sql`select position from stats_cursors where source = ${source} ${forUpdate(tx.engine)}`,
  )
  return row?.position ?? 0
}

export async function upsertCounts(tx: Transaction, counts: readonly StatsCount[]): Promise<void> {
  const sums = new Map<string, { seconds: number; bucket_at: number; name: string; count: number }>()
  for (const { atMs, name, count } of counts) {
    for (const bucketMs of BUCKETS_MS) {
      const bucket_at = Math.floor(atMs / bucketMs) * bucketMs
      const key = `${bucketMs} ${bucket_at} ${name}`
      const sum = sums.get(key) ?? { seconds: bucketMs / 1_000, bucket_at, name, count: 0 }
      sum.count += count
      sums.set(key, sum)
    }
  }
  if (sums.size === 0) return
  const columns = { seconds: 'bigint', bucket_at: 'bigint', name: 'text', count: 'bigint' } as const
  await tx.query(sql`
    insert into stats (seconds, bucket_at, name, count)
    select r.seconds, r.bucket_at, r.name, r.count from ${rowsOf(tx.engine, [...sums.values()], columns)} as r where true
    on conflict (seconds, bucket_at, name) do update set count = stats.count + excluded.count`)
}

export type BucketCount = { bucket_at: number; name: string; count: number }

export function findCounts(
  db: Queryable,
  { bucketMs, fromMs }: { bucketMs: number; fromMs: number },
): Promise<BucketCount[]> {
  return db.query<BucketCount>(sql`
    select bucket_at, name, count from stats where seconds = ${bucketMs / 1_000} and bucket_at >= ${fromMs}
    order by bucket_at, name`)
}

/** Deletes the buckets that no window shows any more. */
export async function trimStats(db: Queryable, nowMs: number): Promise<void> {
  for (const { spanMs, bucketMs } of Object.values(STATS_WINDOWS)) {
    await db.query(sql`
      delete from stats where seconds = ${bucketMs / 1_000} and bucket_at < ${nowMs - 2 * spanMs}`)
  }
}
