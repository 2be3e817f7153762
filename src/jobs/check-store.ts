import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong } from '../db/rows.ts'
import { join, sql } from '../db/sql.ts'
import { WATCHED_STATUSES } from './job.ts'
import type { SlimJob } from './job-row.ts'

/** The statuses in which a run is expected to be active: for `in (…)`. */
export const WATCHED = join(
  WATCHED_STATUSES.map((status) => sql`${status}`),
  ', ',
)

/** When the runtime is asked about a job, and which worker asks. A job has a check until it ends. */
export type JobCheck = {
  job_id: string
  owner: string
  limited_type: string | null
  queued_at: number | null
  waits_on: string | null
  not_before: number | null
  due_at: number
  question_at: number | null
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
  waits_on: { type: 'text' },
  not_before: { type: 'bigint' },
  due_at: { type: 'bigint' },
  question_at: { type: 'bigint' },
  lease_id: { type: 'text' },
  lease_node: { type: 'text' },
  leased_until: { type: 'bigint' },
  starts: { type: 'bigint' },
  last_start_at: { type: 'bigint' },
  checks: { type: 'bigint' },
  last_check_at: { type: 'bigint' },
})

/** The extra columns of the check of a job with a new run. */
export type Place = Partial<Pick<JobCheck, 'limited_type' | 'queued_at' | 'waits_on' | 'not_before' | 'lease_node'>>

/** When the check of a job that waits for its turn is due: its turn makes it due. */
const NEVER_MS = 8.64e15

export function newCheck(job: SlimJob, place: Place = {}): JobCheck {
  return {
    job_id: job.id,
    owner: ownerOf(job.created_by),
    limited_type: place.limited_type ?? null,
    queued_at: place.queued_at ?? null,
    waits_on: place.waits_on ?? null,
    not_before: place.not_before ?? null,
    due_at: place.waits_on ? NEVER_MS : (job.next_check_at ?? job.updated_at),
    question_at: questionDueAt(job),
    lease_id: job.lease_token,
    lease_node: place.lease_node ?? null,
    leased_until: job.lease_until,
    starts: job.start_attempts,
    last_start_at: job.start_attempts > 0 ? job.updated_at : null,
    checks: job.check_attempts,
    last_check_at: job.checked_at,
  }
}

/** Evidence that a question was closed elsewhere delays its reminder and its expiry by this much at most. */
const CLOSED_WITHIN_MS = 60_000

/** When the owner of a paused job is reminded, or its question expires; null: never. */
export function questionDueAt(
  job: Pick<SlimJob, 'remind_at' | 'answer_by' | 'awaiting_confirmation_since'>,
): number | null {
  const { remind_at, answer_by, awaiting_confirmation_since: doubtfulSinceMs } = job
  if (remind_at === null && answer_by === null) return null
  const atMs = Math.min(remind_at ?? Number.POSITIVE_INFINITY, answer_by ?? Number.POSITIVE_INFINITY)
  return doubtfulSinceMs === null ? atMs : Math.max(atMs, doubtfulSinceMs + CLOSED_WITHIN_MS)
}

export function ownerOf(createdBy: string | null): string {
  return createdBy ?? ''
}

export async function insertChecks(db: Queryable, checks: readonly JobCheck[]): Promise<void> {
  if (checks.length === 0) return
  await db.query(sql`
    insert into job_checks (${CHECKS.list}) select ${CHECKS.list} from ${CHECKS.rows(db.engine, checks)} as r where true`)
}

/** For jobs that paused, or that go on after a pause. A worker that holds the old check loses its lease. */
export async function replaceChecks(tx: Queryable, checks: readonly JobCheck[]): Promise<void> {
  await deleteChecks(
    tx,
    checks.map(({ job_id }) => job_id),
  )
  await insertChecks(tx, checks)
}

/** For jobs that ended. */
export async function deleteChecks(tx: Queryable, jobIds: readonly string[]): Promise<void> {
  if (jobIds.length === 0) return
  await tx.query(sql`delete from job_checks where ${isAmong(tx.engine, sql`job_id`, jobIds)}`)
}

/** Makes the next check due now, instead of after the backoff. A job that waits for its place or its turn keeps waiting. */
export async function makeDue(tx: Queryable, jobIds: readonly string[], atMs: number): Promise<void> {
  if (jobIds.length === 0) return
  await tx.query(sql`
    update job_checks set due_at = ${atMs} where ${isAmong(tx.engine, sql`job_id`, jobIds)}
      and queued_at is null and waits_on is null`)
}

/** The number of attempts to start the current run. Until the transaction ends, no worker can start it. */
export async function lockStarts(tx: Transaction, jobId: string): Promise<number> {
  const [row] = await tx.query<{ starts: number }>(
    sql`select starts from job_checks where job_id = ${jobId} ${forUpdate(tx.engine)}`,
  )
  return row?.starts ?? 0
}

/** Whether the job waits for its turn. Until the transaction ends, its turn cannot begin. */
export async function lockWaitingTurn(tx: Transaction, jobId: string): Promise<boolean> {
  const rows = await tx.query(sql`
    select job_id from job_checks where job_id = ${jobId} and waits_on is not null ${forUpdate(tx.engine)}`)
  return rows.length > 0
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
