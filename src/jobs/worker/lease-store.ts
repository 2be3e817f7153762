import type { Database, Transaction } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { sql } from '../../db/sql.ts'
import { JOBS, type JobRow } from '../job-row.ts'
import { IS_WATCHED } from '../job-store.ts'

export interface Lease {
  token: string
  nowMs: number
  untilMs: number
}

/** Leases one watched job that no other worker holds. */
export async function leaseJob(db: Database, id: string, lease: Lease): Promise<JobRow | undefined> {
  const [row] = await db.query<JobRow>(sql`
    update jobs set lease_token = ${lease.token}, lease_until = ${lease.untilMs}
    where id = ${id} and ${IS_WATCHED} and (lease_until is null or lease_until <= ${lease.nowMs})
    returning ${JOBS.list}`)
  return row
}

/** Leases jobs whose check is due, the longest due first. Nodes that ask at the same time get different jobs. */
export function leaseDueJobs(db: Database, limit: number, lease: Lease): Promise<JobRow[]> {
  return db.query<JobRow>(sql`
    update jobs set lease_token = ${lease.token}, lease_until = ${lease.untilMs}
    where id in (
      select id from jobs
      where next_check_at <= ${lease.nowMs} and (lease_until is null or lease_until <= ${lease.nowMs})
      order by next_check_at limit ${limit} ${forUpdateSkipLocked(db.engine)})
    returning ${JOBS.list}`)
}

/**
 * Counts an attempt to start a run before the runtime is called. False when the lease was lost, or when the job was
 * cancelled meanwhile: a job that was cancelled before its first attempt must never be started.
 */
export async function countStartAttempt(db: Database, { id, token }: { id: string; token: string }): Promise<boolean> {
  const rows = await db.query(sql`
    update jobs set start_attempts = start_attempts + 1
    where id = ${id} and lease_token = ${token} and cancel_requested_at is null and finished_at is null
    returning id`)
  return rows.length > 0
}

export interface CheckRecord {
  id: string
  token: string
  atMs: number
  nextMs: number
  error: string | null
  /** The job as it was leased. A check that was requested since then is due at once. */
  leased: Pick<JobRow, 'next_check_at' | 'cancel_requested_at'>
  /** The lease is released, but the job cannot be leased before this time. Null: it can be leased at once. */
  heldUntilMs?: number | null
}

/** Releases a lease and records the check. Writes nothing if the lease was lost: another worker holds the job then. */
export async function releaseLease(tx: Transaction, record: CheckRecord): Promise<boolean> {
  const { next_check_at, cancel_requested_at } = record.leased
  // PostgreSQL cannot infer the type of a bound value inside `case`, hence the casts.
  const rows = await tx.query(sql`
    update jobs set
      lease_token = null, lease_until = ${record.heldUntilMs ?? null}, checked_at = ${record.atMs},
      check_attempts = check_attempts + 1,
      last_error = case when ${IS_WATCHED} then cast(${record.error} as text) end,
      next_check_at = case
        when next_check_at is null then null
        when next_check_at <> ${next_check_at ?? 0} or coalesce(cancel_requested_at, 0) > ${cancel_requested_at ?? 0}
          then cast(${record.atMs} as bigint)
        else cast(${record.nextMs} as bigint) end
    where id = ${record.id} and lease_token = ${record.token}
    returning id`)
  return rows.length > 0
}
