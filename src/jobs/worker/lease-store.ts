import type { Database, Transaction } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { sql } from '../../db/sql.ts'
import type { JobRow } from '../job.ts'
import { COLUMNS } from '../job-store.ts'

export interface Lease {
  token: string
  nowMs: number
  untilMs: number
}

/** Takes one unfinished job that nobody else is attending to. */
export async function leaseJob(db: Database, id: string, lease: Lease): Promise<JobRow | undefined> {
  const [row] = await db.query<JobRow>(sql`
    update jobs set lease_token = ${lease.token}, lease_until = ${lease.untilMs}
    where id = ${id} and status in ('processing', 'generating') and (lease_until is null or lease_until <= ${lease.nowMs})
    returning ${COLUMNS}`)
  return row
}

/** Takes jobs whose check is due, longest due first; several nodes at once take different ones. */
export function leaseDueJobs(db: Database, limit: number, lease: Lease): Promise<JobRow[]> {
  return db.query<JobRow>(sql`
    update jobs set lease_token = ${lease.token}, lease_until = ${lease.untilMs}
    where id in (
      select id from jobs
      where next_check_at <= ${lease.nowMs} and (lease_until is null or lease_until <= ${lease.nowMs})
      order by next_check_at limit ${limit} ${forUpdateSkipLocked(db.engine)})
    returning ${COLUMNS}`)
}

/**
 * Another attempt to start is about to be made: durable before the runtime hears of it. False when the lease is gone, or
 * when the job was cancelled meanwhile: whoever cancelled it saw that nothing had been started, and nothing may be now.
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
  /** The job as it was leased: a look that was asked for since then still comes, and at once. */
  leased: Pick<JobRow, 'next_check_at' | 'cancel_requested_at'>
  /** Until then nobody takes the job, though nobody has it any more; null: it is free at once. */
  heldUntilMs?: number | null
}

/** Ends a lease with what came of it. A lease lost meanwhile writes nothing: whoever holds it now knows better. */
export async function releaseLease(tx: Transaction, record: CheckRecord): Promise<boolean> {
  const { next_check_at, cancel_requested_at } = record.leased
  // The casts tell PostgreSQL what it cannot see of a bound value inside a case.
  const rows = await tx.query(sql`
    update jobs set
      lease_token = null, lease_until = ${record.heldUntilMs ?? null}, checked_at = ${record.atMs},
      check_attempts = check_attempts + 1,
      last_error = case when status in ('processing', 'generating') then cast(${record.error} as text) end,
      next_check_at = case
        when next_check_at is null then null
        when next_check_at <> ${next_check_at ?? 0} or coalesce(cancel_requested_at, 0) > ${cancel_requested_at ?? 0}
          then cast(${record.atMs} as bigint)
        else cast(${record.nextMs} as bigint) end
    where id = ${record.id} and lease_token = ${record.token}
    returning id`)
  return rows.length > 0
}
