import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { isAmong } from '../db/rows.ts'
import { sql } from '../db/sql.ts'

/** The usage of one settled job. */
export type UsageRecord = {
  job_id: string
  /** Null while the job has no owner: a callback created it. */
  subject: string | null
  period: string
  type: string
  input_tokens: number
  output_tokens: number
  total_tokens: number
  settled_at: number
}

const RECORDS = new Columns<UsageRecord>({
  job_id: { type: 'text' },
  subject: { type: 'text' },
  period: { type: 'text' },
  type: { type: 'text' },
  input_tokens: { type: 'bigint' },
  output_tokens: { type: 'bigint' },
  total_tokens: { type: 'bigint' },
  settled_at: { type: 'bigint' },
})

export type UsageCounter = {
  subject: string
  period: string
  type: string
  runs: number
  input_tokens: number
  output_tokens: number
  total_tokens: number
}

const COUNTERS = new Columns<UsageCounter>({
  subject: { type: 'text' },
  period: { type: 'text' },
  type: { type: 'text' },
  runs: { type: 'bigint' },
  input_tokens: { type: 'bigint' },
  output_tokens: { type: 'bigint' },
  total_tokens: { type: 'bigint' },
})

/** A calendar month, UTC: `2026-01`. */
export function periodOf(epochMs: number): string {
  return new Date(epochMs).toISOString().slice(0, 7)
}

export function endOfPeriodMs(epochMs: number): number {
  const now = new Date(epochMs)
  return Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1)
}

/**
 * Records the usage of settled jobs, in the transaction that settles them. A job is counted once, so the counters always
 * equal the sums of the records, those of deleted jobs included.
 */
export async function recordUsage(tx: Transaction, records: readonly UsageRecord[]): Promise<void> {
  if (records.length === 0) return
  const added = await tx.query<UsageRecord>(sql`
    insert into usage_records (${RECORDS.list})
    select ${RECORDS.list} from ${RECORDS.rows(tx.engine, records)} as r where true
    on conflict (job_id) do nothing
    returning ${RECORDS.list}`)
  await addToCounters(tx, sumUp(added))
}

/** Counts the usage of an ended job without an owner for the user who now follows it. */
export async function assignUsage(
  tx: Transaction,
  { jobId, subject }: { jobId: string; subject: string },
): Promise<void> {
  const moved = await tx.query<UsageRecord>(sql`
    update usage_records set subject = ${subject} where job_id = ${jobId} and subject is null
    returning ${RECORDS.list}`)
  await addToCounters(tx, sumUp(moved))
}

/** Deletes the records of deleted jobs. The counters keep their numbers. */
export async function deleteUsageRecords(tx: Transaction, jobIds: readonly string[]): Promise<void> {
  await tx.query(sql`delete from usage_records where ${isAmong(tx.engine, sql`job_id`, jobIds)}`)
}

/** Locks the caller's usage of the period until the transaction ends: two concurrent starts cannot both take the last run. */
export async function lockUsage(
  tx: Transaction,
  { subject, period }: { subject: string; period: string },
): Promise<void> {
  await tx.query(sql`
    insert into usage_counters (${COUNTERS.list})
    values (${subject}, ${period}, '', 0, 0, 0, 0)
    on conflict (subject, period, type) do update set runs = usage_counters.runs`)
}

export function findUsage(
  db: Queryable,
  { subject, period }: { subject: string; period: string },
): Promise<UsageCounter[]> {
  return db.query<UsageCounter>(sql`
    select ${COUNTERS.list} from usage_counters
    where subject = ${subject} and period = ${period} and type <> '' order by type`)
}

function sumUp(records: readonly UsageRecord[]): UsageCounter[] {
  const sums = new Map<string, UsageCounter>()
  for (const { subject, period, type, ...tokens } of records) {
    if (subject === null) continue
    const key = JSON.stringify([subject, period, type])
    const sum = sums.get(key) ?? { subject, period, type, runs: 0, input_tokens: 0, output_tokens: 0, total_tokens: 0 }
    sum.runs += 1
    sum.input_tokens += tokens.input_tokens
    sum.output_tokens += tokens.output_tokens
    sum.total_tokens += tokens.total_tokens
    sums.set(key, sum)
  }
  // Always in the same order: two batches that update the same counters wait for each other instead of deadlocking.
  return [...sums.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, sum]) => sum)
}

async function addToCounters(tx: Transaction, sums: readonly UsageCounter[]): Promise<void> {
  if (sums.length === 0) return
  await tx.query(sql`
    insert into usage_counters (${COUNTERS.list})
    select ${COUNTERS.list} from ${COUNTERS.rows(tx.engine, sums)} as r where true
    on conflict (subject, period, type) do update set
      runs = usage_counters.runs + excluded.runs,
      input_tokens = usage_counters.input_tokens + excluded.input_tokens,
      output_tokens = usage_counters.output_tokens + excluded.output_tokens,
      total_tokens = usage_counters.total_tokens + excluded.total_tokens`)
}
