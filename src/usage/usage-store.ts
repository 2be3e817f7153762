import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdateSkipLocked } from '../db/locking.ts'
import { isAmong } from '../db/rows.ts'
import { type Sql, sql } from '../db/sql.ts'

/** The usage of one ended job. The job's own row keeps it too. */
export type JobUsage = {
  subject: string
  period: string
  type: string
  input_tokens: number
  output_tokens: number
  total_tokens: number
}

type UsageCounter = {
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

/** Counts ended jobs, in the transaction that ends them or gives them an owner: each is counted once. */
export async function countUsage(tx: Transaction, ended: readonly JobUsage[]): Promise<void> {
  await addToCounters(tx, sumUp(ended))
}

/** The subject of the counters of all erased users together. */
const ERASED = ''

/** Moves the counters of a user to those of all erased users: the numbers stay, the user does not. */
export async function eraseCounters(tx: Transaction, subject: string): Promise<void> {
  const counters = await tx.query<UsageCounter>(sql`
    delete from usage_counters where subject = ${subject} returning ${COUNTERS.list}`)
  const moved = counters.filter(({ type }) => type !== '').map((counter) => ({ ...counter, subject: ERASED }))
  await addToCounters(
    tx,
    moved.sort((a, b) => (`${a.period} ${a.type}` < `${b.period} ${b.type}` ? -1 : 1)),
  )
}

/**
 * Locks the usage of these callers in the period until the transaction ends: two concurrent starts cannot both use the last
 * run of the limit. A transaction that starts jobs of several callers locks them all at once. With `types`, it also waits
 * for the settlements in progress that count jobs of these types, also if they count the first one.
 */
export async function lockUsage(
  tx: Transaction,
  { subjects, period, types = [] }: { subjects: readonly string[]; period: string; types?: readonly string[] },
): Promise<void> {
  const counters = subjects
    .toSorted()
    .flatMap((subject) => ['', ...types.toSorted()].map((type) => newCounter({ subject, period, type })))
  await tx.query(lockOrInsert(tx, counters))
}

function lockOrInsert({ engine }: Transaction, counters: readonly UsageCounter[]): Sql {
  return sql`
    insert into usage_counters (${COUNTERS.list})
    select ${COUNTERS.list} from ${COUNTERS.rows(engine, counters)} as r where true
    on conflict (subject, period, type) do update set runs = usage_counters.runs`
}

/** Locks the usage of these subjects without waiting, and returns the subjects of which a row is locked elsewhere. */
export async function lockFreeUsage(
  tx: Transaction,
  { keys: wanted, period }: { keys: readonly CounterKey[]; period: string },
): Promise<Set<string>> {
  const subjects = [...new Set(wanted.map(({ subject }) => subject))]
  const isOfSubjects = sql`period = ${period} and ${isAmong(tx.engine, sql`subject`, subjects)}`
  const counters = await lockFreeRows(
    tx,
    sql`select subject, type from usage_counters where type <> '' and ${isOfSubjects}`,
  )
  const thresholds = await lockFreeRows(tx, sql`select subject, '' as type from usage_thresholds where ${isOfSubjects}`)
  const inUse = new Set([...counters.inUse, ...thresholds.inUse])
  const missing = new Map(wanted.map((key) => [keyOf(key), newCounter({ ...key, period })]))
  for (const [key, { subject }] of missing) if (counters.known.has(key) || inUse.has(subject)) missing.delete(key)
  // A counter that another transaction has just inserted cannot be seen before the commit; only an insert meets it.
  const rows = [...missing.values()]
  if (rows.length === 0 || (await tx.tryQuery(lockOrInsert(tx, rows)))) return inUse
  for (const [subject, own] of Map.groupBy(rows, ({ subject }) => subject)) {
    if (!(await tx.tryQuery(lockOrInsert(tx, own)))) inUse.add(subject)
  }
  return inUse
}

type CounterKey = Pick<UsageCounter, 'subject' | 'type'>

/** `known`: the keys of all rows; `inUse`: the subjects of those that are locked elsewhere. */
async function lockFreeRows(tx: Transaction, rows: Sql): Promise<{ known: Set<string>; inUse: string[] }> {
  const [all, locked] = await Promise.all([
    tx.query<CounterKey>(rows),
    tx.query<CounterKey>(sql`${rows} ${forUpdateSkipLocked(tx.engine)}`),
  ])
  const free = new Set(locked.map(keyOf))
  const inUse = all.filter((row) => !free.has(keyOf(row))).map(({ subject }) => subject)
  return { known: new Set(all.map(keyOf)), inUse }
}

function keyOf({ subject, type }: CounterKey): string {
  return JSON.stringify([subject, type])
}

function newCounter(key: CounterKey & { period: string }): UsageCounter {
  return { ...key, runs: 0, input_tokens: 0, output_tokens: 0, total_tokens: 0 }
}

export function findUsage(
  db: Queryable,
  { subject, period }: { subject: string; period: string },
): Promise<UsageCounter[]> {
  return db.query<UsageCounter>(sql`
    select ${COUNTERS.list} from usage_counters
    where subject = ${subject} and period = ${period} and type <> '' and runs > 0 order by type`)
}

/** Every period of a subject, oldest first. */
export function listUsagePeriods(db: Queryable, subject: string): Promise<Omit<UsageCounter, 'subject'>[]> {
  return db.query(sql`
    select period, type, runs, input_tokens, output_tokens, total_tokens from usage_counters
    where subject = ${subject} and type <> '' and runs > 0 order by period, type`)
}

function sumUp(ended: readonly JobUsage[]): UsageCounter[] {
  const sums = new Map<string, UsageCounter>()
  for (const { subject, period, type, ...tokens } of ended) {
    const key = JSON.stringify([subject, period, type])
    const sum = sums.get(key) ?? newCounter({ subject, period, type })
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
