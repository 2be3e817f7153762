import type { Database, Queryable, Transaction } from '../db/database.ts'
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
type StatsSource = 'events' | 'time'

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

/**
 * Adds the counts between two positions of a source, in one transaction with the cursor. If another node has moved the
 * cursor meanwhile, it adds nothing and returns false. So everything is counted exactly once.
 */
export function addCounts(
  db: Database,
  { source, from, to }: { source: StatsSource; from: number; to: number },
  counts: readonly StatsCount[],
): Promise<boolean> {
  return db.transaction(async (tx) => {
    const moved = await tx.query(sql`
      update stats_cursors set position = ${to} where source = ${source} and position = ${from} returning source`)
    if (moved.length === 0) return false
    await upsertCounts(tx, counts)
    return true
  })
}

async function upsertCounts(tx: Transaction, counts: readonly StatsCount[]): Promise<void> {
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
