import { systemClock } from '../../../src/core/clock.ts'
import type { Database } from '../../../src/db/database.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { sql } from '../../../src/db/sql.ts'
import { openSqlite } from '../../../src/db/sqlite/sqlite.ts'
import type { World } from '../cluster/cluster.ts'

const LOOK_EVERY_MS = 200
const LOOKS_PER_HURRY = 8
/** Whoever lives gives a lease back within this time. */
const LIVING_MS = 2_000
/** How long they are: six times the runtime's timeout and five seconds; a minute. */
const JOB_LEASE_MS = 11_000
const PUSH_LEASE_MS = 60_000

/** The database itself, read beside the nodes once the faults are over. */
export function openLedger({ shared, databaseFile }: World): Promise<Database> {
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

/** Resolves once nothing is left to do, or with what is left when the time is over. */
export async function untilSettled(
  db: Database,
  { timeoutMs, calmSinceMs, hurry }: { timeoutMs: number; calmSinceMs: number; hurry: boolean },
): Promise<Remaining> {
  const deadlineMs = Date.now() + timeoutMs
  for (let look = 1; ; look++) {
    const remaining = await countRemaining(db)
    if ((remaining.jobs === 0 && remaining.deliveries === 0) || Date.now() > deadlineMs) return remaining
    if (hurry && look % LOOKS_PER_HURRY === 0) await letTimePass(db, calmSinceMs)
    await systemClock.sleep(LOOK_EVERY_MS)
  }
}

/** What would come due by itself some time later, comes due now: looks that were put off, and leases of dead nodes. */
async function letTimePass(db: Database, calmSinceMs: number): Promise<void> {
  const nowMs = Date.now()
  const takenByTheDeadMs = Math.min(calmSinceMs, nowMs - LIVING_MS)
  await db.query(sql`
    update jobs set lease_until = null, lease_token = null
    where finished_at is null and lease_until < ${takenByTheDeadMs + JOB_LEASE_MS}`)
  await db.query(sql`update jobs set next_check_at = ${nowMs} where finished_at is null and next_check_at > ${nowMs}`)
  await db.query(sql`
    update deliveries set lease_until = null, lease_token = null
    where next_attempt_at is not null and lease_until < ${takenByTheDeadMs + PUSH_LEASE_MS}`)
  await db.query(sql`update deliveries set next_attempt_at = ${nowMs} where next_attempt_at > ${nowMs}`)
}
