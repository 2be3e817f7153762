import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong, rowsOf } from '../db/rows.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import { type JobStatus, UNFINISHED_STATUSES, WATCHED_STATUSES } from './job.ts'
import { JOBS, type JobRow } from './job-row.ts'

/** For a `where`: the statuses in which the runtime is asked about a job. */
export const IS_WATCHED = sql`status in (${join(
  WATCHED_STATUSES.map((status) => sql`${status}`),
  ', ',
)})`

export async function insertJob(db: Queryable, job: JobRow): Promise<void> {
  await db.query(sql`insert into jobs (${JOBS.list}) values (${JOBS.values(job)})`)
}

export async function findJob(db: Queryable, id: string): Promise<JobRow | undefined> {
  const [row] = await db.query<JobRow>(sql`select ${JOBS.list} from jobs where id = ${id}`)
  return row
}

export function findJobs(db: Queryable, ids: readonly string[]): Promise<JobRow[]> {
  return db.query<JobRow>(sql`select ${JOBS.list} from jobs where ${isAmong(db.engine, sql`id`, ids)}`)
}

/** Locks in the order of ids, so that two transactions that share jobs wait for each other instead of deadlocking. */
export function lockJobs(tx: Transaction, ids: readonly string[]): Promise<JobRow[]> {
  return tx.query<JobRow>(sql`
    select ${JOBS.list} from jobs where ${isAmong(tx.engine, sql`id`, ids)} order by id ${forUpdate(tx.engine)}`)
}

/** Writes jobs that this transaction has locked with `lockJobs`. */
export async function updateJobs(tx: Transaction, jobs: readonly JobRow[]): Promise<void> {
  if (jobs.length === 0) return
  await tx.query(sql`
    update jobs set ${JOBS.assignments} from ${JOBS.changes(tx.engine, jobs)} as r where jobs.id = r.id`)
}

export type JobRun = { run_id: string; job_id: string; run_seq: number; created_at: number }

const RUNS = new Columns<JobRun>({
  run_id: { type: 'text' },
  job_id: { type: 'text' },
  run_seq: { type: 'bigint' },
  created_at: { type: 'bigint' },
})

export async function insertJobRuns(tx: Transaction, runs: readonly JobRun[]): Promise<void> {
  if (runs.length === 0) return
  await tx.query(sql`
    insert into job_runs (${RUNS.list}) select ${RUNS.list} from ${RUNS.rows(tx.engine, runs)} as r where true`)
}

/** The jobs these runs belong to, earlier runs of a resumed job included. */
export function findJobRuns(db: Queryable, runIds: readonly string[]): Promise<JobRun[]> {
  return db.query<JobRun>(sql`
    select ${RUNS.list} from job_runs where ${isAmong(db.engine, sql`run_id`, runIds)}`)
}

/** The unfinished jobs on these threads whose run is not known yet. */
export async function findJobsAwaitingRun(db: Queryable, threadIds: readonly string[]): Promise<string[]> {
  const rows = await db.query<{ id: string }>(sql`
    select id from jobs
    where ${isAmong(db.engine, sql`thread_id`, threadIds)} and run_id is null and finished_at is null`)
  return rows.map(({ id }) => id)
}

/** An owner's stream keeps this many of its newest watched jobs fresh. */
const STREAMED_PER_OWNER = 20
const OWNERS_PER_STATEMENT = 50

/** The watched jobs with these ids, and the newest ones of these owners, that were not checked since. */
export async function findForStreams(
  db: Queryable,
  wanted: { jobIds: readonly string[]; subjects: readonly string[]; checkedBeforeMs: number },
): Promise<string[]> {
  const isOld = sql`(checked_at is null or checked_at <= ${wanted.checkedBeforeMs})`
  const found = new Set<string>()
  const add = async (statement: Sql) => {
    for (const { id } of await db.query<{ id: string }>(statement)) found.add(id)
  }
  if (wanted.jobIds.length > 0) {
    await add(
      sql`select id from jobs where ${isAmong(db.engine, sql`id`, wanted.jobIds)} and ${IS_WATCHED} and ${isOld}`,
    )
  }
  for (let from = 0; from < wanted.subjects.length; from += OWNERS_PER_STATEMENT) {
    const newest = wanted.subjects.slice(from, from + OWNERS_PER_STATEMENT).map(
      (subject) => sql`select id, checked_at from (
        select id, checked_at from jobs where created_by = ${subject} and finished_at is null and ${IS_WATCHED}
        order by id desc limit ${STREAMED_PER_OWNER}) as newest`,
    )
    await add(sql`select id from (${join(newest, ' union all ')}) as streamed where ${isOld}`)
  }
  return [...found]
}

/** The caller's unfinished jobs. They are not in the usage counters yet. */
export async function countUnfinished(db: Queryable, createdBy: string): Promise<number> {
  const [row] = await db.query<{ unfinished: number }>(sql`
    select count(*) as unfinished from jobs where created_by = ${createdBy} and finished_at is null`)
  return row?.unfinished ?? 0
}

/**
 * The runs that count towards the usage limit: those that ended in the period, plus the unfinished ones. One statement,
 * so that a job that ends meanwhile is counted exactly once.
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

/** Counting stops here, to keep the statement cheap: beyond this number the exact backlog does not matter. */
const MAX_COUNTED = 10_000

export type UnfinishedJobs = { status: JobStatus; jobs: number; oldest_at: number | null }

/** The number and the oldest of the unfinished jobs, by status. Counts stop at one above `MAX_COUNTED`. */
export function findUnfinished(db: Queryable): Promise<UnfinishedJobs[]> {
  const ofStatus = sql`from jobs j where j.finished_at is null and j.status = s.status`
  const statuses = rowsOf(
    db.engine,
    UNFINISHED_STATUSES.map((status) => ({ status })),
    { status: 'text' },
  )
  return db.query<UnfinishedJobs>(sql`
    select s.status,
      (select count(*) from (select 1 ${ofStatus} limit ${MAX_COUNTED + 1}) as counted) as jobs,
      (select min(j.created_at) ${ofStatus}) as oldest_at
    from ${statuses} as s`)
}
