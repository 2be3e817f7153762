import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong } from '../db/rows.ts'
import { sql } from '../db/sql.ts'

/** How many jobs a caller may start and how many tokens they may use in a calendar month. */
export type UsageLimits = { runs: number | null; tokens: number | null }

type ThresholdRow = { subject: string; period: string; reached: number }

const COLUMNS = new Columns<ThresholdRow>({
  subject: { type: 'text' },
  period: { type: 'text' },
  reached: { type: 'bigint' },
})

/** The limits that admins set, by subject. A subject that is missing has the service's default. */
export async function findLimits(db: Queryable, subjects: readonly string[]): Promise<Map<string, UsageLimits>> {
  const rows = await db.query<UsageLimits & { subject: string }>(sql`
    select subject, runs, tokens from usage_limits where ${isAmong(db.engine, sql`subject`, subjects)}`)
  return new Map(rows.map(({ subject, ...limits }) => [subject, limits]))
}

export async function saveLimits(tx: Transaction, subject: string, { runs, tokens }: UsageLimits): Promise<void> {
  await tx.query(
    runs === null && tokens === null
      ? sql`delete from usage_limits where subject = ${subject}`
      : sql`insert into usage_limits (subject, runs, tokens) values (${subject}, ${runs}, ${tokens})
          on conflict (subject) do update set runs = excluded.runs, tokens = excluded.tokens`,
  )
}

export async function eraseLimits(tx: Transaction, subject: string): Promise<void> {
  await tx.query(sql`delete from usage_limits where subject = ${subject}`)
  await tx.query(sql`delete from usage_thresholds where subject = ${subject}`)
}

type UsageOf = { subject: string; period: string }

/** Waits for the settlements in progress that count for this subject. Those that begin later see the new limits. */
export async function lockCountersOf(tx: Transaction, { subject, period }: UsageOf): Promise<void> {
  await tx.query(sql`
    select type from usage_counters where subject = ${subject} and period = ${period}
    order by type ${forUpdate(tx.engine)}`)
}

/**
 * Writes the highest threshold that each subject has reached; 0 only locks the row. Returns what is stored, by subject. The
 * lock lasts until the transaction ends: two jobs of different types that end at once cannot both miss a threshold.
 */
export async function writeThresholds(
  tx: Transaction,
  thresholds: readonly ThresholdRow[],
): Promise<ReadonlyMap<string, number>> {
  const sorted = thresholds.toSorted((a, b) => (a.subject < b.subject ? -1 : 1))
  const rows = await tx.query<ThresholdRow>(sql`
    insert into usage_thresholds (${COLUMNS.list})
    select ${COLUMNS.list} from ${COLUMNS.rows(tx.engine, sorted)} as r where true
    on conflict (subject, period) do update set reached = case
      when excluded.reached > usage_thresholds.reached then excluded.reached else usage_thresholds.reached end
    returning ${COLUMNS.list}`)
  return new Map(rows.map(({ subject, reached }) => [subject, reached]))
}

/** What the ended jobs of each subject used in the period. */
export async function sumUsage(
  db: Queryable,
  { subjects, period }: { subjects: readonly string[]; period: string },
): Promise<Map<string, { runs: number; tokens: number }>> {
  const rows = await db.query<{ subject: string; runs: number; tokens: number }>(sql`
    select subject, cast(sum(runs) as bigint) as runs, cast(sum(total_tokens) as bigint) as tokens from usage_counters
    where period = ${period} and ${isAmong(db.engine, sql`subject`, subjects)} group by subject`)
  return new Map(rows.map(({ subject, ...used }) => [subject, used]))
}
