import type { Queryable } from '../db/database.ts'
import { rowsOf } from '../db/rows.ts'
import { sql } from '../db/sql.ts'
import { type JobStatus, UNFINISHED_STATUSES } from './job.ts'

/**
 * Triggers keep one row in `uncommon_jobs` for each job that is not simply completed by a callback. So the indexes for rare
 * statuses are small, and the common end of a job writes none of them.
 */
export const COMMON_STATUS = 'completed' satisfies JobStatus

/**
 * A condition on the rows of `uncommon_jobs`: every unfinished status. It has no bound values, because every read of a job
 * contains it.
 */
export const IS_UNFINISHED = sql`state in ('processing', 'generating', 'awaiting_input')`

/** The caller's unfinished jobs. They are not in the usage counters yet. */
export async function countUnfinished(db: Queryable, createdBy: string): Promise<number> {
  const [row] = await db.query<{ unfinished: number }>(sql`
    select count(*) as unfinished from uncommon_jobs where owner = ${createdBy} and ${IS_UNFINISHED}`)
  return row?.unfinished ?? 0
}

/**
 * The unfinished jobs on the thread, oldest first: whether each waits for its turn, and whether it runs, neither waiting
 * nor paused. Of the thread's jobs only the index is read, not the rows.
 */
export function findUnfinishedOn(
  db: Queryable,
  threadId: string,
): Promise<{ id: string; waits: number; runs: number }[]> {
  return db.query(sql`
    select jobs.id, case when waits_on is null then 0 else 1 end as waits,
      case when waits_on is null and state <> 'awaiting_input' then 1 else 0 end as runs
    from jobs cross join uncommon_jobs left join job_checks on job_id = jobs.id
    where thread_id = ${threadId} and uncommon_jobs.id = jobs.id and ${IS_UNFINISHED} order by jobs.id`)
}

/** Some unfinished jobs of an owner, those whose cancellation was not requested yet before the others. */
export function findUnfinishedOf(
  db: Queryable,
  { owner, limit }: { owner: string; limit: number },
): Promise<{ id: string; isCancelRequested: number }[]> {
  return db.query(sql`
    select jobs.id, case when cancel_requested_at is null then 0 else 1 end as "isCancelRequested"
    from uncommon_jobs join jobs on jobs.id = uncommon_jobs.id where owner = ${owner} and ${IS_UNFINISHED}
    order by 2, 1 limit ${limit}`)
}

/**
 * What counts towards the usage limits: the runs that ended in the period plus the unfinished ones, and the tokens of those
 * that ended. One statement, so that a job that ends meanwhile is counted exactly once. `begun`: without the unfinished jobs
 * that still wait for their turn or their `run_at`.
 */
export async function countRuns(
  db: Queryable,
  { createdBy, period, counted }: { createdBy: string; period: string; counted: 'accepted' | 'begun' },
): Promise<{ runs: number; tokens: number }> {
  const hasBegun = sql`not exists (select 1 from job_checks where job_id = uncommon_jobs.id and waits_on is not null)`
  const [row] = await db.query<{ unfinished: number; ended: number; tokens: number }>(sql`
    select
      (select count(*) from uncommon_jobs where owner = ${createdBy} and ${IS_UNFINISHED}
        and ${counted === 'begun' ? hasBegun : sql`1 = 1`}) as unfinished,
      cast(coalesce(sum(runs), 0) as bigint) as ended, cast(coalesce(sum(total_tokens), 0) as bigint) as tokens
    from usage_counters where subject = ${createdBy} and period = ${period}`)
  const { unfinished = 0, ended = 0, tokens = 0 } = row ?? {}
  return { runs: unfinished + ended, tokens }
}

/** Counting stops here, to keep the statement cheap: beyond this number the exact backlog does not matter. */
const MAX_COUNTED = 10_000

type UnfinishedJobs = { status: JobStatus; jobs: number; oldest_at: number | null }

/**
 * The number and the oldest of the unfinished jobs, by status. Counts stop at one above `MAX_COUNTED`. A job that waits for
 * its `run_at` is not old.
 */
export function findUnfinished(db: Queryable, nowMs: number): Promise<UnfinishedJobs[]> {
  const statuses = rowsOf(
    db.engine,
    UNFINISHED_STATUSES.map((status) => ({ status })),
    { status: 'text' },
  )
  return db.query<UnfinishedJobs>(sql`
    select s.status,
      (select count(*) from (
        select 1 from uncommon_jobs where state = s.status limit ${MAX_COUNTED + 1}) as counted) as jobs,
      (select min(since) from uncommon_jobs where state = s.status and since <= ${nowMs}) as oldest_at
    from ${statuses} as s`)
}
