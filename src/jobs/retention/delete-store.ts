import { firstIdAt } from '../../core/ids.ts'
import type { Queryable, Transaction } from '../../db/database.ts'
import { forUpdate } from '../../db/locking.ts'
import { isAmong } from '../../db/rows.ts'
import { type Sql, sql } from '../../db/sql.ts'
import type { JobStatus } from '../job.ts'

/** The fields that decide whether a caller may delete a job. */
export type JobState = { id: string; status: JobStatus; created_by: string | null }

export async function findJobState(db: Queryable, id: string): Promise<JobState | undefined> {
  const [row] = await db.query<JobState>(sql`select id, status, created_by from jobs where id = ${id}`)
  return row
}

/** One page of the jobs created before a time, oldest first, and whether each ended before it. */
export function findOldJobs(
  db: Queryable,
  { after, beforeMs, limit }: { after: string; beforeMs: number; limit: number },
): Promise<{ id: string; ended: number }[]> {
  return db.query<{ id: string; ended: number }>(sql`
    select id, case when finished_at < ${beforeMs} then 1 else 0 end as ended from jobs
    where id > ${after} and id < ${firstIdAt('job', beforeMs)} order by id limit ${limit}`)
}

/** Locks those of these jobs that have ended, and returns their ids. An ended job never reopens. */
export async function lockEndedJobs(tx: Transaction, ids: readonly string[]): Promise<string[]> {
  const rows = await tx.query<{ id: string }>(sql`
    select id from jobs where ${isAmong(tx.engine, sql`id`, ids)} and finished_at is not null
    order by id ${forUpdate(tx.engine)}`)
  return rows.map(({ id }) => id)
}

/** Deletes a bounded number of callbacks of these jobs; true if there may be more. */
export function deleteCallbacksOf(tx: Transaction, jobIds: readonly string[], limit: number): Promise<boolean> {
  return deleteSome(tx, sql`callbacks`, { jobIds, limit })
}

/** Deletes a bounded number of timeline entries of these jobs; true if there may be more. */
export function deleteTimelineOf(tx: Transaction, jobIds: readonly string[], limit: number): Promise<boolean> {
  return deleteSome(tx, sql`job_timeline`, { jobIds, limit })
}

/** Deletes the jobs and their runs, which nothing else may refer to any more. Their ids stay as tombstones. */
export async function deleteJobRows(tx: Transaction, jobIds: readonly string[], atMs: number): Promise<void> {
  const ofJobs = isAmong(tx.engine, sql`job_id`, jobIds)
  const jobs = isAmong(tx.engine, sql`id`, jobIds)
  await tx.query(sql`
    insert into job_tombstones (id, job_id, deleted_at)
    select run_id, job_id, cast(${atMs} as bigint) from job_runs where ${ofJobs}
    union all select id, id, cast(${atMs} as bigint) from jobs where ${jobs}
    on conflict (id) do update set job_id = excluded.job_id, deleted_at = excluded.deleted_at`)
  await tx.query(sql`delete from job_runs where ${ofJobs}`)
  await tx.query(sql`delete from jobs where ${jobs}`)
}

/** The deleted job that each of these ids, of jobs or of runs, belonged to. */
export async function findDeleted(tx: Transaction, ids: readonly string[]): Promise<Map<string, string>> {
  if (ids.length === 0) return new Map()
  const rows = await tx.query<{ id: string; job_id: string }>(
    sql`select id, job_id from job_tombstones where ${isAmong(tx.engine, sql`id`, ids)}`,
  )
  return new Map(rows.map(({ id, job_id }) => [id, job_id]))
}

/** Deletes a bounded number of old tombstones; true if there may be more. */
export async function trimTombstones(
  db: Queryable,
  { beforeMs, limit }: { beforeMs: number; limit: number },
): Promise<boolean> {
  const deleted = await db.query(sql`
    delete from job_tombstones where id in (
      select id from job_tombstones where deleted_at < ${beforeMs} limit ${limit}) returning id`)
  return deleted.length === limit
}

async function deleteSome(
  tx: Transaction,
  table: Sql,
  { jobIds, limit }: { jobIds: readonly string[]; limit: number },
): Promise<boolean> {
  const deleted = await tx.query(sql`
    delete from ${table} where (job_id, id) in (
      select job_id, id from ${table} where ${isAmong(tx.engine, sql`job_id`, jobIds)} limit ${limit}) returning id`)
  return deleted.length === limit
}
