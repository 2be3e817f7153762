import { systemClock } from '../../../src/core/clock.ts'
import type { Database } from '../../../src/db/database.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { sql } from '../../../src/db/sql.ts'
import { openSqlite } from '../../../src/db/sqlite/sqlite.ts'
import type { TortureCluster } from '../cluster/cluster.ts'

const POLL_EVERY_MS = 200
const POLLS_PER_HURRY = 8
/** A running node releases a lease within this time. */
const MAX_HELD_MS = 2_000
/** The durations of leases: for jobs six times the runtime's timeout plus five seconds, for pushes a minute. */
const JOB_LEASE_MS = 11_000
const PUSH_LEASE_MS = 60_000

/** A connection to the nodes' database, for the audit. */
export function openAuditDatabase({ shared, databaseFile }: TortureCluster): Promise<Database> {
  return shared ? openPostgres({ url: shared.databaseUrl }) : openSqlite({ path: databaseFile })
}

export interface Remaining {
  jobs: number
  deliveries: number
}

export async function countRemaining(db: Database): Promise<Remaining> {
  const [row] = await db.query<{ jobs: number; deliveries: number }>(sql`
    select (select count(*) from jobs where finished_at is null) as jobs,
      (select count(*) from deliveries where next_attempt_at is not null) as deliveries`)
  return { jobs: row?.jobs ?? 0, deliveries: row?.deliveries ?? 0 }
}

/** Resolves once no job and no delivery is left, or with the rest at the timeout. */
export async function untilSettled(
  db: Database,
  { timeoutMs, faultsStoppedMs, hurry }: { timeoutMs: number; faultsStoppedMs: number; hurry: boolean },
): Promise<Remaining> {
  const deadlineMs = Date.now() + timeoutMs
  for (let look = 1; ; look++) {
    const remaining = await countRemaining(db)
    if ((remaining.jobs === 0 && remaining.deliveries === 0) || Date.now() > deadlineMs) return remaining
    if (hurry && look % POLLS_PER_HURRY === 0) await makeDueNow(db, faultsStoppedMs)
    await systemClock.sleep(POLL_EVERY_MS)
  }
}

/** Makes later work due now: checks, retries, and leases of killed nodes. */
async function makeDueNow(db: Database, faultsStoppedMs: number): Promise<void> {
  const nowMs = Date.now()
  const deadLeaseMs = Math.min(faultsStoppedMs, nowMs - MAX_HELD_MS)
  await db.query(sql`
    update job_checks set leased_until = null, lease_id = null, lease_node = null
    where leased_until < ${deadLeaseMs + JOB_LEASE_MS}`)
  await db.query(sql`update job_checks set due_at = ${nowMs} where due_at > ${nowMs}`)
  await db.query(sql`
    update deliveries set lease_until = null, lease_token = null
    where next_attempt_at is not null and lease_until < ${deadLeaseMs + PUSH_LEASE_MS}`)
  await db.query(sql`update deliveries set next_attempt_at = ${nowMs} where next_attempt_at > ${nowMs}`)
}
