import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong } from '../db/rows.ts'
import { join, sql } from '../db/sql.ts'
import { WATCHED_STATUSES } from './job.ts'
import type { JobRow } from './job-row.ts'

/** The statuses in which the runtime is asked about a job: for `in (…)`. */
export const WATCHED = join(
  WATCHED_STATUSES.map((status) => sql`${status}`),
  ', ',
)

/** When the runtime is asked about a job, and which worker asks. A job has a check only while its status is watched. */
type JobCheck = {
  job_id: string
  owner: string
  limited_type: string | null
  queued_at: number | null
  due_at: number
  lease_id: string | null
  lease_node: string | null
  leased_until: number | null
  starts: number
  last_start_at: number | null
  checks: number
  last_check_at: number | null
}

const CHECKS = new Columns<JobCheck>({
  job_id: { type: 'text' },
  owner: { type: 'text' },
  limited_type: { type: 'text' },
  queued_at: { type: 'bigint' },
  due_at: { type: 'bigint' },
  lease_id: { type: 'text' },
  lease_node: { type: 'text' },
  leased_until: { type: 'bigint' },
  starts: { type: 'bigint' },
  last_start_at: { type: 'bigint' },
  checks: { type: 'bigint' },
  last_check_at: { type: 'bigint' },
})

/** The extra columns of the check of a new or resumed job. */
export type Place = Partial<Pick<JobCheck, 'limited_type' | 'queued_at' | 'lease_node'>>

export function newCheck(job: JobRow, place: Place = {}): JobCheck {
  return {
    job_id: job.id,
    owner: ownerOf(job.created_by),
    limited_type: place.limited_type ?? null,
    queued_at: place.queued_at ?? null,
    due_at: job.next_check_at ?? job.updated_at,
    lease_id: job.lease_token,
    lease_node: place.lease_node ?? null,
    leased_until: job.lease_until,
    starts: job.start_attempts,
    last_start_at: job.start_attempts > 0 ? job.updated_at : null,
    checks: job.check_attempts,
    last_check_at: job.checked_at,
  }
}

function ownerOf(createdBy: string | null): string {
  return createdBy ?? ''
}

export async function insertChecks(db: Queryable, checks: readonly JobCheck[]): Promise<void> {
  if (checks.length === 0) return
  await db.query(sql`
    insert into job_checks (${CHECKS.list}) select ${CHECKS.list} from ${CHECKS.rows(db.engine, checks)} as r where true`)
}

/** For jobs that ended or paused. */
export async function deleteChecks(tx: Queryable, jobIds: readonly string[]): Promise<void> {
  if (jobIds.length === 0) return
  await tx.query(sql`delete from job_checks where ${isAmong(tx.engine, sql`job_id`, jobIds)}`)
}

/** Makes the next check due now, instead of after the backoff. A job that waits for its place keeps waiting. */
export async function makeDue(tx: Queryable, jobIds: readonly string[], atMs: number): Promise<void> {
  if (jobIds.length === 0) return
  await tx.query(sql`
    update job_checks set due_at = ${atMs} where ${isAmong(tx.engine, sql`job_id`, jobIds)} and queued_at is null`)
}

/** The number of attempts to start the current run. Until the transaction ends, no worker can start it. */
export async function lockStarts(tx: Transaction, jobId: string): Promise<number> {
  const [row] = await tx.query<{ starts: number }>(
    sql`select starts from job_checks where job_id = ${jobId} ${forUpdate(tx.engine)}`,
  )
  return row?.starts ?? 0
}

/** Changes the owner of a check. Due jobs are checked in turn by owner. */
export async function changeOwner(tx: Transaction, jobId: string, createdBy: string): Promise<void> {
  await tx.query(sql`update job_checks set owner = ${ownerOf(createdBy)} where job_id = ${jobId}`)
}

const MAX_COUNTED = 10_000

/** How many jobs the sweep should check now; `MAX_COUNTED` + 1 means more than `MAX_COUNTED`. */
export async function countDueChecks(db: Queryable, nowMs: number): Promise<number> {
  const [row] = await db.query<{ due: number }>(sql`
    select count(*) as due from (select 1 from job_checks where due_at <= ${nowMs} limit ${MAX_COUNTED + 1}) as counted`)
  return row?.due ?? 0
}
