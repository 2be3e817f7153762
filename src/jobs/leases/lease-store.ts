import { type Database, LockTimeout, type Queryable, type Transaction } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { isStopped } from '../../db/nodes/node-store.ts'
import { isAmong, rowsOf } from '../../db/rows.ts'
import { type Sql, sql } from '../../db/sql.ts'
import { type JobRow, SLIM_FIELDS, type SlimJob } from '../job-row.ts'

export interface Lease {
  token: string
  node: string
  nowMs: number
  untilMs: number
  /**
   * Takes only some of the due jobs. `checks`: those with a run, because too many starts are in progress. `questions`: those
   * whose owner is to be reminded or whose time to answer is over, because the runtime cannot be asked now.
   */
  only?: 'checks' | 'questions' | undefined
}

/** A job that this process has leased, without its documents. */
export type LeasedJob = SlimJob & { last_start_at: number | null; unseen_at: number | null }

/** A condition: no worker holds the job. */
function isFree(nowMs: number): Sql {
  return sql`(leased_until is null or leased_until <= ${nowMs} or ${isStopped(sql`lease_node`, nowMs)})`
}

/** A condition on a due job: no worker holds it, and it is of the kind that the lease is for. */
export function isWanted({ nowMs, only }: Lease): Sql {
  if (only !== 'checks') return isFree(nowMs)
  return sql`${isFree(nowMs)} and exists (select 1 from jobs where jobs.id = job_checks.job_id and run_id is not null)`
}

/** A condition: the job waits neither for a place nor for its turn; or its deadline is over. */
function mayRun(nowMs: number): Sql {
  return sql`((queued_at is null and waits_on is null) or due_at <= ${nowMs})`
}

export function leaseFields({ token, node, untilMs }: Lease): Sql {
  return sql`lease_id = ${token}, lease_node = ${node}, leased_until = ${untilMs}`
}

/**
 * Leases one job that no other worker holds, if its last check is not newer than `checkedBeforeMs`. A job that waits for a
 * place or its turn is not leased, nor one whose check stays locked: the transaction that locks it may be about to lease
 * it, so this waits.
 */
export async function leaseJob(
  db: Database,
  id: string,
  lease: Lease,
  checkedBeforeMs = Number.POSITIVE_INFINITY,
): Promise<LeasedJob | undefined> {
  const isOld =
    checkedBeforeMs === Number.POSITIVE_INFINITY ? sql`1 = 1` : sql`coalesce(last_check_at, 0) <= ${checkedBeforeMs}`
  try {
    const leased = await db.query<{ job_id: string }>(sql`
      update job_checks set ${leaseFields(lease)}
      where job_id = ${id} and ${isFree(lease.nowMs)} and ${mayRun(lease.nowMs)} and ${isOld}
      returning job_id`)
    const [job] = await findLeased(db, leased, lease)
    return job
  } catch (error) {
    if (error instanceof LockTimeout) return undefined
    throw error
  }
}

/**
 * Leases those of the jobs that no other worker holds. A job whose check is locked by another transaction is left out: it
 * is checked when it is due.
 */
export async function leaseJobs(db: Database, ids: readonly string[], lease: Lease): Promise<LeasedJob[]> {
  const leased = await db.query<{ job_id: string }>(sql`
    update job_checks set ${leaseFields(lease)}
    where job_id in (
      select job_id from job_checks where ${isAmong(db.engine, sql`job_id`, ids)} and ${isFree(lease.nowMs)}
        and ${mayRun(lease.nowMs)}
      ${forUpdateSkipLocked(db.engine)})
    returning job_id`)
  return findLeased(db, leased, lease)
}

/** Leases jobs whose check is due, the longest due first. Nodes that ask at the same time get different jobs. */
export async function leaseDueJobs(db: Queryable, limit: number, lease: Lease): Promise<LeasedJob[]> {
  const dueAt = lease.only === 'questions' ? sql`question_at` : sql`due_at`
  const leased = await db.query<{ job_id: string }>(sql`
    update job_checks set ${leaseFields(lease)}
    where job_id in (
      select job_id from job_checks where ${dueAt} <= ${lease.nowMs} and ${isWanted(lease)}
      order by ${dueAt} limit ${limit} ${forUpdateSkipLocked(db.engine)})
    returning job_id`)
  return findLeased(db, leased, lease)
}

export async function findLeased(
  db: Queryable,
  leased: readonly { job_id: string }[],
  { token }: Lease,
): Promise<LeasedJob[]> {
  if (leased.length === 0) return []
  const ids = leased.map(({ job_id }) => job_id)
  return db.query<LeasedJob>(sql`
    select ${SLIM_FIELDS}, last_start_at, unseen_at from job_checks join jobs on id = job_id
    where ${isAmong(db.engine, sql`job_id`, ids)} and lease_id = ${token}`)
}

/** Gives back the lease of a job that was not processed. */
export async function postpone(db: Database, { id, lease_token }: LeasedJob, untilMs: number): Promise<void> {
  await db.query(sql`
    update job_checks set lease_id = null, lease_node = null, leased_until = null, due_at = ${untilMs}
    where job_id = ${id} and lease_id = ${lease_token}`)
}

/** The documents that a start sends to the runtime. */
type StartDocuments = Pick<JobRow, 'input' | 'resume_input' | 'configurable'>

export async function findStartDocuments(db: Queryable, id: string): Promise<StartDocuments | undefined> {
  const [row] = await db.query<StartDocuments>(sql`select input, resume_input, configurable from jobs where id = ${id}`)
  return row
}

/**
 * Counts an attempt to start a run before the runtime is called. False when the lease was lost, or when the job was
 * cancelled, ended or got its run by a callback meanwhile: the end of a job deletes its check.
 */
export async function countStartAttempt(
  db: Queryable,
  { id, token, nowMs }: { id: string; token: string; nowMs: number },
): Promise<boolean> {
  const rows = await db.query(sql`
    update job_checks set starts = starts + 1, last_start_at = ${nowMs}, unseen_at = null
    where job_id = ${id} and lease_id = ${token}
      and exists (select 1 from jobs where id = job_id and cancel_requested_at is null and run_id is null)
    returning job_id`)
  return rows.length > 0
}

/** The result of a check, for the next one. */
type CheckRecord = {
  job_id: string
  token: string
  at: number
  next_at: number
  error: string | null
  /** When the thread was first seen without the run; null when this check did not see that. */
  unseen_at: number | null
  question_at: number | null
  /** 1 if the counted attempt to start the run did not reach the runtime. */
  unsent: number
  /** The job as it was leased. A check that was requested since then is due at once. */
  leased_due_at: number
  leased_cancel_at: number
}

/** Releases leases and records the checks. Writes nothing for a lost lease, because another worker may hold that job. */
export async function releaseLeases(tx: Transaction, records: readonly CheckRecord[]): Promise<string[]> {
  const columns = {
    job_id: 'text',
    token: 'text',
    at: 'bigint',
    next_at: 'bigint',
    error: 'text',
    unseen_at: 'bigint',
    question_at: 'bigint',
    unsent: 'bigint',
    leased_due_at: 'bigint',
    leased_cancel_at: 'bigint',
  } as const
  const released = await tx.query<{ job_id: string }>(sql`
    update job_checks set
      lease_id = null, lease_node = null, leased_until = null, last_check_at = r.at, checks = checks + 1,
      last_error = r.error, starts = starts - r.unsent, unseen_at = coalesce(r.unseen_at, job_checks.unseen_at),
      question_at = r.question_at,
      due_at = case
        when due_at <> r.leased_due_at
          or (select coalesce(cancel_requested_at, 0) from jobs where id = job_checks.job_id) > r.leased_cancel_at
          then r.at
        else r.next_at end
    from ${rowsOf(tx.engine, records, columns)} as r
    where job_checks.job_id = r.job_id and lease_id = r.token
    returning job_checks.job_id`)
  return released.map(({ job_id }) => job_id)
}
