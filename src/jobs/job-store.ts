import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong } from '../db/rows.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import { insertChecks, newCheck, type Place, WATCHED } from './check-store.ts'
import { isWatched } from './job.ts'
import {
  JOB_FIELDS,
  JOBS,
  JOBS_WITH_CHECKS,
  type JobRow,
  SLIM_FIELDS,
  type SlimJob,
  type StoredJob,
} from './job-row.ts'

/** Inserts the job, and its check if the runtime is to be asked about it. */
export async function insertJob(db: Queryable, job: JobRow, place: Place = {}): Promise<void> {
  await Promise.all([
    db.query(sql`insert into jobs (${JOBS.list}) values (${JOBS.values(job)})`),
    isWatched(job.status) ? insertChecks(db, [newCheck(job, place)]) : undefined,
  ])
}

export async function findJob(db: Queryable, id: string): Promise<JobRow | undefined> {
  const [row] = await db.query<JobRow>(sql`select ${JOB_FIELDS} from ${JOBS_WITH_CHECKS} where id = ${id}`)
  return row
}

export function findJobs(db: Queryable, ids: readonly string[]): Promise<JobRow[]> {
  return db.query<JobRow>(sql`select ${JOB_FIELDS} from ${JOBS_WITH_CHECKS} where ${isAmong(db.engine, sql`id`, ids)}`)
}

/** The same without the documents, which may be many megabytes. */
export function findSlimJobs(db: Queryable, ids: readonly string[]): Promise<SlimJob[]> {
  return db.query<SlimJob>(
    sql`select ${SLIM_FIELDS} from ${JOBS_WITH_CHECKS} where ${isAmong(db.engine, sql`id`, ids)}`,
  )
}

/** The fields of a job that a live view reads repeatedly. */
export async function findRunState(
  db: Queryable,
  id: string,
): Promise<Pick<JobRow, 'status' | 'run_id' | 'run_seq'> | undefined> {
  const [row] = await db.query<Pick<JobRow, 'status' | 'run_id' | 'run_seq'>>(
    sql`select status, run_id, run_seq from jobs where id = ${id}`,
  )
  return row
}

/** Locks in the order of ids, so that two transactions that share jobs wait for each other instead of deadlocking. */
export function lockJobs(tx: Transaction, ids: readonly string[]): Promise<JobRow[]> {
  return tx.query<JobRow>(sql`
    select ${JOB_FIELDS} from ${JOBS_WITH_CHECKS} where ${isAmong(tx.engine, sql`id`, ids)}
    order by id ${forUpdate(tx.engine, sql`jobs`)}`)
}

/** The same without the documents. */
export function lockSlimJobs(tx: Transaction, ids: readonly string[]): Promise<SlimJob[]> {
  return tx.query<SlimJob>(sql`
    select ${SLIM_FIELDS} from ${JOBS_WITH_CHECKS} where ${isAmong(tx.engine, sql`id`, ids)}
    order by id ${forUpdate(tx.engine, sql`jobs`)}`)
}

/** Columns that changed, by their new values. */
export type JobChange = Partial<StoredJob> & { id: string }

/** Writes the changed columns of locked jobs. Jobs with the same changed columns share a statement. */
export async function changeJobs(tx: Transaction, changes: readonly JobChange[]): Promise<void> {
  const namesOf = (change: JobChange) => (Object.keys(change) as (keyof StoredJob)[]).filter((name) => name !== 'id')
  const groups = Map.groupBy(
    changes.filter((change) => namesOf(change).length > 0),
    (change) => namesOf(change).join(),
  )
  await Promise.all(
    Array.from(groups.values(), (group) => {
      const { set, rows } = JOBS.changesOf(tx.engine, namesOf(group[0] as JobChange), group)
      return tx.query(sql`update jobs set ${set} from ${rows} as r where jobs.id = r.id`)
    }),
  )
}

/** Writes jobs that this transaction has locked with `lockJobs`, but not their checks. */
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

/** The job that a new turn continues, without its documents. */
export async function findTurn(
  db: Queryable,
  id: string,
): Promise<Pick<JobRow, 'type' | 'created_by' | 'thread_id'> | undefined> {
  const [row] = await db.query<Pick<JobRow, 'type' | 'created_by' | 'thread_id'>>(sql`
    select type, created_by, thread_id from jobs where id = ${id}`)
  return row
}

export type EndedJob = Pick<
  JobRow,
  'id' | 'type' | 'status' | 'input' | 'project_id' | 'created_by' | 'continues' | 'finished_at'
>

/**
 * What a retry repeats, without the output. The job is locked until the commit: an erasure of its owner either comes first,
 * and the input is gone, or finds the new job too.
 */
export async function lockJobToRetry(tx: Transaction, id: string): Promise<EndedJob | undefined> {
  const [row] = await tx.query<EndedJob>(sql`
    select id, type, status, input, project_id, created_by, continues, finished_at from jobs
    where id = ${id} ${forUpdate(tx.engine)}`)
  return row
}

/** Whether another job on the job's thread ever had a run. */
export async function hasEarlierRun(db: Queryable, job: Pick<JobRow, 'id' | 'thread_id'>): Promise<boolean> {
  const rows = await db.query(sql`
    select 1 as found from jobs where thread_id = ${job.thread_id} and id <> ${job.id} and run_id is not null limit 1`)
  return rows.length > 0
}

/** An owner's stream keeps this many of its newest watched jobs fresh. */
const STREAMED_PER_OWNER = 20
const OWNERS_PER_STATEMENT = 50

/**
 * The watched jobs with these ids, and the newest ones of these owners, that were not checked since, the least recently
 * checked first.
 */
export async function findForStreams(
  db: Queryable,
  wanted: { jobIds: readonly string[]; subjects: readonly string[]; checkedBeforeMs: number },
): Promise<string[]> {
  const isOld = sql`(last_check_at is null or last_check_at <= ${wanted.checkedBeforeMs})`
  const found = new Map<string, number>()
  const add = async (statement: Sql) => {
    const rows = await db.query<{ job_id: string; last_check_at: number | null }>(statement)
    for (const { job_id, last_check_at } of rows) found.set(job_id, last_check_at ?? 0)
    // On SQLite each statement holds the event loop.
    await new Promise(setImmediate)
  }
  if (wanted.jobIds.length > 0) {
    await add(sql`
      select job_id, last_check_at from job_checks
      where ${isAmong(db.engine, sql`job_id`, wanted.jobIds)} and ${isOld}`)
  }
  for (let from = 0; from < wanted.subjects.length; from += OWNERS_PER_STATEMENT) {
    const newest = wanted.subjects.slice(from, from + OWNERS_PER_STATEMENT).map(
      (subject) => sql`select id from (
        select id from uncommon_jobs where owner = ${subject} and state in (${WATCHED})
        order by id desc limit ${STREAMED_PER_OWNER}) as newest`,
    )
    await add(sql`
      select job_id, last_check_at
      from (${join(newest, ' union all ')}) as streamed join job_checks on job_id = streamed.id
      where ${isOld}`)
  }
  return [...found].sort((a, b) => a[1] - b[1]).map(([id]) => id)
}
