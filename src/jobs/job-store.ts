import { type BoundedPage, selectBoundedPage } from '../db/bounded-page.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong, rowsOf } from '../db/rows.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import type { PageRequest } from '../http/paging.ts'
import type { JobRow, JobStatus } from './job.ts'

export const COLUMNS = sql`id, type, status, input, output, error_code, error_message, project_id, created_by, thread_id,
  run_id, trace_id, tracer_trace_id, settled_by, run_seq, start_attempts, resume_input, interrupts, cancel_requested_at,
  checked_at, next_check_at, check_attempts, last_error, lease_token, lease_until, deadline_at, created_at, started_at,
  finished_at, updated_at`
/** What clients and graphs fill; the rest is small. */
const LARGE = [sql`input`, sql`output`, sql`interrupts`, sql`resume_input`]

export async function insertJob(db: Queryable, job: JobRow): Promise<void> {
  await db.query(sql`
    insert into jobs (${COLUMNS}) values (
      ${job.id}, ${job.type}, ${job.status}, ${job.input}, ${job.output}, ${job.error_code}, ${job.error_message},
      ${job.project_id}, ${job.created_by}, ${job.thread_id}, ${job.run_id}, ${job.trace_id}, ${job.tracer_trace_id},
      ${job.settled_by}, ${job.run_seq}, ${job.start_attempts}, ${job.resume_input}, ${job.interrupts},
      ${job.cancel_requested_at}, ${job.checked_at}, ${job.next_check_at}, ${job.check_attempts}, ${job.last_error},
      ${job.lease_token}, ${job.lease_until}, ${job.deadline_at}, ${job.created_at}, ${job.started_at},
      ${job.finished_at}, ${job.updated_at})`)
}

export async function findJob(db: Queryable, id: string): Promise<JobRow | undefined> {
  const [row] = await db.query<JobRow>(sql`select ${COLUMNS} from jobs where id = ${id}`)
  return row
}

export function findJobs(db: Queryable, ids: readonly string[]): Promise<JobRow[]> {
  return db.query<JobRow>(sql`select ${COLUMNS} from jobs where ${isAmong(db.engine, sql`id`, ids)}`)
}

/** In the order of their ids, so that two batches that share jobs wait for each other instead of deadlocking. */
export function lockJobs(tx: Transaction, ids: readonly string[]): Promise<JobRow[]> {
  return tx.query<JobRow>(sql`
    select ${COLUMNS} from jobs where ${isAmong(tx.engine, sql`id`, ids)} order by id ${forUpdate(tx.engine)}`)
}

/** Writes back what settling, starting or resuming may have changed of jobs held by `lockJobs`. */
export async function updateJobs(tx: Transaction, jobs: readonly JobRow[]): Promise<void> {
  if (jobs.length === 0) return
  const rows = rowsOf(tx.engine, jobs, {
    id: 'text',
    status: 'text',
    output: 'text',
    error_code: 'text',
    error_message: 'text',
    project_id: 'text',
    created_by: 'text',
    run_id: 'text',
    trace_id: 'text',
    tracer_trace_id: 'text',
    settled_by: 'text',
    run_seq: 'bigint',
    start_attempts: 'bigint',
    resume_input: 'text',
    interrupts: 'text',
    cancel_requested_at: 'bigint',
    checked_at: 'bigint',
    next_check_at: 'bigint',
    check_attempts: 'bigint',
    last_error: 'text',
    lease_token: 'text',
    lease_until: 'bigint',
    deadline_at: 'bigint',
    started_at: 'bigint',
    finished_at: 'bigint',
    updated_at: 'bigint',
  })
  await tx.query(sql`
    update jobs set
      status = r.status, output = r.output, error_code = r.error_code, error_message = r.error_message,
      project_id = r.project_id, created_by = r.created_by, run_id = r.run_id, trace_id = r.trace_id,
      tracer_trace_id = r.tracer_trace_id, settled_by = r.settled_by, run_seq = r.run_seq,
      start_attempts = r.start_attempts, resume_input = r.resume_input, interrupts = r.interrupts,
      cancel_requested_at = r.cancel_requested_at, checked_at = r.checked_at, next_check_at = r.next_check_at,
      check_attempts = r.check_attempts, last_error = r.last_error, lease_token = r.lease_token,
      lease_until = r.lease_until, deadline_at = r.deadline_at, started_at = r.started_at,
      finished_at = r.finished_at, updated_at = r.updated_at
    from ${rows} as r where jobs.id = r.id`)
}

export type JobRun = { run_id: string; job_id: string; run_seq: number; created_at: number }

export async function insertJobRuns(tx: Transaction, runs: readonly JobRun[]): Promise<void> {
  if (runs.length === 0) return
  const rows = rowsOf(tx.engine, runs, { run_id: 'text', job_id: 'text', run_seq: 'bigint', created_at: 'bigint' })
  await tx.query(sql`
    insert into job_runs (run_id, job_id, run_seq, created_at)
    select run_id, job_id, run_seq, created_at from ${rows} as r where true`)
}

/** Which job each run belongs or belonged to. */
export function findJobRuns(db: Queryable, runIds: readonly string[]): Promise<JobRun[]> {
  return db.query<JobRun>(sql`
    select run_id, job_id, run_seq, created_at from job_runs where ${isAmong(db.engine, sql`run_id`, runIds)}`)
}

/** The unfinished jobs on these threads whose run is not known yet. */
export async function findJobsAwaitingRun(db: Queryable, threadIds: readonly string[]): Promise<string[]> {
  const rows = await db.query<{ id: string }>(sql`
    select id from jobs
    where ${isAmong(db.engine, sql`thread_id`, threadIds)} and run_id is null and finished_at is null`)
  return rows.map(({ id }) => id)
}

export interface JobFilter {
  /** Null shows everybody's. */
  createdBy: string | null
  status?: JobStatus
  type?: string
  projectId?: string
}

export function findJobPage(
  db: Queryable,
  filter: JobFilter,
  page: PageRequest<readonly [string]>,
): Promise<BoundedPage<JobRow>> {
  const conditions: Sql[] = [sql`1 = 1`]
  if (filter.createdBy !== null) conditions.push(sql`created_by = ${filter.createdBy}`)
  if (filter.status !== undefined) conditions.push(sql`status = ${filter.status}`)
  if (filter.type !== undefined) conditions.push(sql`type = ${filter.type}`)
  if (filter.projectId !== undefined) conditions.push(sql`project_id = ${filter.projectId}`)
  if (page.after) conditions.push(sql`id < ${page.after[0]}`)
  const where = join(conditions, ' and ')
  return selectBoundedPage<JobRow>(db, { table: sql`jobs`, columns: COLUMNS, large: LARGE, where, limit: page.limit })
}

/** Jobs the caller has running: they will count once they end. */
export async function countUnfinished(db: Queryable, createdBy: string): Promise<number> {
  const [row] = await db.query<{ unfinished: number }>(sql`
    select count(*) as unfinished from jobs where created_by = ${createdBy} and finished_at is null`)
  return row?.unfinished ?? 0
}

/**
 * What counts towards the limit: what has ended in the period and what has not ended. In one statement, which sees one
 * moment: a job that ends meanwhile is in one of the two.
 */
export async function countRuns(
  db: Queryable,
  { createdBy, period }: { createdBy: string; period: string },
): Promise<number> {
  const [row] = await db.query<{ runs: number }>(sql`
    select
      (select count(*) from jobs where created_by = ${createdBy} and finished_at is null) +
      (select cast(coalesce(sum(runs), 0) as bigint) from usage_counters
        where subject = ${createdBy} and period = ${period}) as runs`)
  return row?.runs ?? 0
}

/** Past this, how many more there are changes nothing, and counting them would. */
const MAX_COUNTED = 10_000

export type UnfinishedJobs = { status: JobStatus; jobs: number; oldest_at: number | null }

/** How many jobs have not ended, one more than `MAX_COUNTED` standing for any number above it, and since when. */
export function findUnfinished(db: Queryable): Promise<UnfinishedJobs[]> {
  const ofStatus = sql`from jobs j where j.finished_at is null and j.status = s.status`
  return db.query<UnfinishedJobs>(sql`
    select s.status,
      (select count(*) from (select 1 ${ofStatus} limit ${MAX_COUNTED + 1}) as counted) as jobs,
      (select min(j.created_at) ${ofStatus}) as oldest_at
    from (select 'processing' as status union all select 'generating' union all select 'awaiting_input') as s`)
}
