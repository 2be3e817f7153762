import { bytesOf } from '../db/bounded-page.ts'
import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate, forUpdateSkipLocked } from '../db/locking.ts'
import { isAmong } from '../db/rows.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import { insertChecks, newCheck, type Place, WATCHED } from './check-store.ts'
import { isTerminal } from './job.ts'
import {
  JOB_FIELDS,
  JOBS,
  JOBS_WITH_CHECKS,
  type JobRow,
  SIZED_JOB_FIELDS,
  type SizedJob,
  SLIM_FIELDS,
  type SlimJob,
  type StoredJob,
  sizedJobFields,
} from './job-row.ts'
import { addToThread } from './thread-store.ts'

/** Inserts the job as the newest of its thread, and its check if the runtime is to be asked about it. */
export async function insertJob(
  db: Queryable,
  job: JobRow,
  { place = {}, title = null }: { place?: Place; title?: string | null } = {},
): Promise<void> {
  await Promise.all([
    db.query(sql`insert into jobs (${JOBS.list}) values (${JOBS.values(job)})`),
    addToThread(db, job, title),
    isTerminal(job.status) ? undefined : insertChecks(db, [newCheck(job, place)]),
  ])
}

export async function findJob(db: Queryable, id: string): Promise<JobRow | undefined> {
  const [row] = await db.query<JobRow>(sql`select ${JOB_FIELDS} from ${JOBS_WITH_CHECKS} where id = ${id}`)
  return row
}

/** The documents of a job have more bytes than the caller has room for. They were not loaded. */
export class LargeDocuments extends Error {
  readonly bytes: number

  constructor(bytes: number) {
    super(`The documents of the job have ${bytes} bytes`)
    this.bytes = bytes
  }
}

function checkSize<Job extends { document_bytes: number }>(job: Job, maxBytes: number): Job {
  if (job.document_bytes > maxBytes) throw new LargeDocuments(job.document_bytes)
  return job
}

/** Throws `LargeDocuments` if the documents have more bytes. */
export async function findJobUpTo(db: Queryable, id: string, maxBytes: number): Promise<JobRow | undefined> {
  const [row] = await db.query<SizedJob>(sql`
    select ${sizedJobFields(maxBytes)} from ${JOBS_WITH_CHECKS} where id = ${id}`)
  return row && checkSize(row, maxBytes)
}

/** Without the documents of jobs that have large ones. */
export function findSizedJobs(db: Queryable, ids: readonly string[]): Promise<SizedJob[]> {
  return db.query<SizedJob>(
    sql`select ${SIZED_JOB_FIELDS} from ${JOBS_WITH_CHECKS} where ${isAmong(db.engine, sql`id`, ids)}`,
  )
}

/** The same without any documents, which may be many megabytes. */
export function findSlimJobs(db: Queryable, ids: readonly string[]): Promise<SlimJob[]> {
  return db.query<SlimJob>(
    sql`select ${SLIM_FIELDS} from ${JOBS_WITH_CHECKS} where ${isAmong(db.engine, sql`id`, ids)}`,
  )
}

type RunState = Pick<JobRow, 'status' | 'thread_id' | 'run_id' | 'run_seq'>

/** The fields of a job that a live view reads repeatedly. */
export async function findRunState(db: Queryable, id: string): Promise<RunState | undefined> {
  const [row] = await db.query<RunState>(sql`select status, thread_id, run_id, run_seq from jobs where id = ${id}`)
  return row
}

/** The questions of a paused job: a JSON list. */
export async function findInterrupts(db: Queryable, id: string): Promise<string | null> {
  const [row] = await db.query<Pick<JobRow, 'interrupts'>>(sql`select interrupts from jobs where id = ${id}`)
  return row?.interrupts ?? null
}

/** Throws `LargeDocuments` if the documents have more bytes. See `lockSlimJobs` for the order of locks. */
export async function lockJob(tx: Transaction, id: string, maxBytes: number): Promise<JobRow | undefined> {
  const [row] = await tx.query<SizedJob>(sql`
    select ${sizedJobFields(maxBytes)} from ${JOBS_WITH_CHECKS} where id = ${id} ${forUpdate(tx.engine, sql`jobs`)}`)
  return row && checkSize(row, maxBytes)
}

/**
 * Every transaction takes its locks in one order: jobs by ascending id, all in one statement, then threads by ascending id,
 * then checks. So two transactions that share jobs wait for each other instead of deadlocking. With `skipLocked`, jobs
 * that another transaction has locked are left out.
 */
export function lockSlimJobs(
  tx: Transaction,
  ids: readonly string[],
  { skipLocked = false }: { skipLocked?: boolean } = {},
): Promise<SlimJob[]> {
  const lock = skipLocked ? forUpdateSkipLocked : forUpdate
  return tx.query<SlimJob>(sql`
    select ${SLIM_FIELDS} from ${JOBS_WITH_CHECKS} where ${isAmong(tx.engine, sql`id`, ids)}
    order by id ${lock(tx.engine, sql`jobs`)}`)
}

/** The stored ones among these jobs, each with its thread and owner. */
export function findThreadsOf(
  db: Queryable,
  ids: readonly string[],
): Promise<Pick<JobRow, 'id' | 'thread_id' | 'created_by'>[]> {
  return db.query(sql`select id, thread_id, created_by from jobs where ${isAmong(db.engine, sql`id`, ids)}`)
}

/** Locks all jobs on a thread. */
export function lockJobsOn(tx: Transaction, threadId: string): Promise<Pick<JobRow, 'id' | 'run_id'>[]> {
  return tx.query(sql`select id, run_id from jobs where thread_id = ${threadId} order by id ${forUpdate(tx.engine)}`)
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

/** Writes jobs that this transaction has locked with `lockJob`, but not their checks. */
export async function updateJobs(tx: Transaction, jobs: readonly JobRow[]): Promise<void> {
  if (jobs.length === 0) return
  await tx.query(sql`
    update jobs set ${JOBS.assignments} from ${JOBS.changes(tx.engine, jobs)} as r where jobs.id = r.id`)
}

export type JobRun = { run_id: string; job_id: string; run_seq: number; is_extra: number; created_at: number }

const RUNS = new Columns<JobRun>({
  run_id: { type: 'text' },
  job_id: { type: 'text' },
  run_seq: { type: 'bigint' },
  is_extra: { type: 'bigint' },
  created_at: { type: 'bigint' },
})

/** A new run is later than this many runs before it. */
const RUNS_BEFORE = 10

export async function insertJobRuns(tx: Transaction, runs: readonly JobRun[]): Promise<void> {
  if (runs.length === 0) return
  const onThread = sql`
    select earlier.created_at from jobs join job_runs as earlier on earlier.job_id = jobs.id
    where thread_id = (select thread_id from jobs where id = r.job_id)
    order by jobs.id desc, earlier.run_seq desc limit ${RUNS_BEFORE}`
  // The node that noted the run before may have a clock that is ahead. The order of the times is that of the turns.
  const at = sql`(select max(at) from (
    select r.created_at as at
    union all
    select created_at + 1 from (${onThread}) as before
    union all
    select deleted_run_at + 1 from threads join jobs on threads.id = thread_id where jobs.id = r.job_id) as times)`
  // Two transactions that insert the same runs wait for each other at the first one.
  const sorted = runs.toSorted((a, b) => (a.run_id < b.run_id ? -1 : 1))
  await tx.query(sql`
    insert into job_runs (run_id, job_id, run_seq, is_extra, created_at)
    select run_id, job_id, run_seq, is_extra, ${at} from ${RUNS.rows(tx.engine, sorted)} as r where true`)
}

/** How many further runs of the job's current number are stored. */
export async function countExtraRuns(db: Queryable, { id, run_seq }: Pick<JobRow, 'id' | 'run_seq'>): Promise<number> {
  const [row] = await db.query<{ runs: number }>(sql`
    select count(*) as runs from job_runs where job_id = ${id} and run_seq = ${run_seq} and is_extra = 1`)
  return row?.runs ?? 0
}

/** Stores further runs of a job. Returns the ids of those that were not stored before. */
export async function insertExtraRuns(tx: Queryable, runs: readonly JobRun[]): Promise<string[]> {
  const rows = await tx.query<{ run_id: string }>(sql`
    insert into job_runs (${RUNS.list}) select ${RUNS.list} from ${RUNS.rows(tx.engine, runs)} as r where true
    on conflict (run_id) do nothing returning run_id`)
  return rows.map(({ run_id }) => run_id)
}

/** For a further run that its job follows after all. */
export async function forgetExtraRun(db: Queryable, runId: string): Promise<void> {
  await db.query(sql`delete from job_runs where run_id = ${runId} and is_extra = 1`)
}

/** The jobs these runs belong to, earlier runs of a resumed job included. */
export function findJobRuns(db: Queryable, runIds: readonly string[]): Promise<JobRun[]> {
  return db.query<JobRun>(sql`
    select ${RUNS.list} from job_runs where ${isAmong(db.engine, sql`run_id`, runIds)}`)
}

/** The unfinished jobs on these threads whose turn it is, and whose run is not known yet. */
export async function findJobsAwaitingRun(db: Queryable, threadIds: readonly string[]): Promise<string[]> {
  const rows = await db.query<{ id: string }>(sql`
    select id from jobs left join job_checks on job_id = id
    where ${isAmong(db.engine, sql`thread_id`, threadIds)} and run_id is null and finished_at is null
      and waits_on is null`)
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
  | 'id'
  | 'type'
  | 'status'
  | 'input'
  | 'configurable'
  | 'project_id'
  | 'created_by'
  | 'continues'
  | 'thread_id'
  | 'finished_at'
  | 'retried_as'
>

/**
 * What a retry repeats, without the output. The job is locked until the commit: an erasure of its owner either comes first,
 * and the input is gone, or finds the new job too. Throws `LargeDocuments` if its documents have more bytes.
 */
export async function lockJobToRetry(tx: Transaction, id: string, maxBytes: number): Promise<EndedJob | undefined> {
  const bytes = bytesOf([sql`input`, sql`configurable`])
  const [row] = await tx.query<EndedJob & { document_bytes: number }>(sql`
    select id, type, status, project_id, created_by, continues, thread_id, finished_at, retried_as,
      ${bytes} as document_bytes, case when ${bytes} <= ${maxBytes} then input end as input,
      case when ${bytes} <= ${maxBytes} then configurable end as configurable
    from jobs where id = ${id} ${forUpdate(tx.engine)}`)
  return row && checkSize(row, maxBytes)
}

/** The newest retry of each of these jobs that was retried. */
export async function findRetries(db: Queryable, ids: readonly string[]): Promise<Map<string, string>> {
  const rows = await db.query<{ id: string; retried_as: string }>(sql`
    select id, retried_as from jobs where ${isAmong(db.engine, sql`id`, ids)} and retried_as is not null`)
  return new Map(rows.map(({ id, retried_as }) => [id, retried_as]))
}

/** An owner's stream keeps this many of its newest watched jobs fresh. */
const STREAMED_PER_OWNER = 20
const OWNERS_PER_STATEMENT = 50
/** A condition on a check: the job waits for a place or its turn, so it is not leased. */
const WAITS = sql`(queued_at is not null or waits_on is not null)`

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
      where ${isAmong(db.engine, sql`job_id`, wanted.jobIds)} and ${isOld} and not ${WAITS}
        and exists (select 1 from uncommon_jobs where id = job_id and state in (${WATCHED}))`)
  }
  for (let from = 0; from < wanted.subjects.length; from += OWNERS_PER_STATEMENT) {
    const newest = wanted.subjects.slice(from, from + OWNERS_PER_STATEMENT).map(
      (subject) => sql`select id from (
        select id from uncommon_jobs where owner = ${subject} and state in (${WATCHED})
          and not exists (select 1 from job_checks where job_id = id and ${WAITS})
        order by id desc limit ${STREAMED_PER_OWNER}) as newest`,
    )
    await add(sql`
      select job_id, last_check_at
      from (${join(newest, ' union all ')}) as streamed join job_checks on job_id = streamed.id
      where ${isOld}`)
  }
  return [...found].sort((a, b) => a[1] - b[1]).map(([id]) => id)
}
