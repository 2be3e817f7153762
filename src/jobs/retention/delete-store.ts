import { firstIdAt } from '../../core/ids.ts'
import { bytesOf, takeBatch } from '../../db/bounded-page.ts'
import type { Queryable, Transaction } from '../../db/database.ts'
import { forUpdate } from '../../db/locking.ts'
import { isAmong, rowsOf } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import { CALLBACKS, type CallbackRow } from '../callback-store.ts'
import type { JobStatus } from '../job.ts'
import type { CountDeleted, DeletedRecords } from '../job-context.ts'
import { JOBS } from '../job-row.ts'
import { deleteEmptyThreads, keepRunsOf } from '../thread-store.ts'
import { endedBefore } from './history-store.ts'

/** The fields that decide whether a caller may delete a job. */
type JobState = { id: string; status: JobStatus; created_by: string | null }

export async function findJobState(db: Queryable, id: string): Promise<JobState | undefined> {
  const [row] = await db.query<JobState>(sql`select id, status, created_by from jobs where id = ${id}`)
  return row
}

export interface OldJobs {
  ended: string[]
  /** The last job of the batch, ended or not; absent when there are no more. */
  last?: string
}

/** One batch of the jobs created before a time, oldest first: those that ended before it. */
export async function findOldJobs(
  db: Queryable,
  { after, beforeMs, limit }: { after: string; beforeMs: number; limit: number },
): Promise<OldJobs> {
  const found = await db.query<{ id: string; bytes: number }>(sql`
    select id, ${bytesOf(JOBS.large)} as bytes from jobs
    where id > ${after} and id < ${firstIdAt('job', beforeMs)} order by id limit ${limit + 1}`)
  const { rows, hasMore } = takeBatch(found, limit)
  const ids = rows.map(({ id }) => id)
  const ended = await endedBefore(db, ids, beforeMs)
  const last = hasMore ? ids.at(-1) : undefined
  return { ended: ids.filter((id) => ended.has(id)), ...(last !== undefined && { last }) }
}

/** Locks those of these jobs that have ended, and returns their ids. An ended job never reopens. */
export async function lockEndedJobs(tx: Transaction, ids: readonly string[]): Promise<string[]> {
  const rows = await tx.query<{ id: string }>(sql`
    select id from jobs where ${isAmong(tx.engine, sql`id`, ids)} and finished_at is not null
    order by id ${forUpdate(tx.engine)}`)
  return rows.map(({ id }) => id)
}

/** Deletes a bounded number of some records of these jobs. */
type DeleteSome = (
  tx: Transaction,
  jobIds: readonly string[],
  limit: number,
) => Promise<DeletedRecords & { hasMore: boolean }>

/** Records of a job, with the number of rows that one transaction deletes. Of large documents it deletes fewer. */
export interface HeldRecords {
  deleteSome: DeleteSome
  limit: number
}

/** Deletes some of each kind of records; true if another transaction is needed. */
export async function deleteHeld(
  tx: Transaction,
  {
    held,
    ids,
    countDeleted,
  }: { held: readonly HeldRecords[]; ids: readonly string[]; countDeleted?: CountDeleted | undefined },
): Promise<boolean> {
  for (const { deleteSome, limit } of held) {
    const { hasMore, ...deleted } = await deleteSome(tx, ids, limit)
    await countDeleted?.(tx, deleted)
    // The statistics of these records may need the records of the next kinds.
    if (hasMore) return true
  }
  return false
}

/** Deletes one batch of the callbacks of these jobs. */
export const deleteCallbacksOf: DeleteSome = async (tx, jobIds, limit) => {
  const found = await tx.query<Pick<CallbackRow, 'id' | 'outcome' | 'received_at'> & { bytes: number }>(sql`
    select id, outcome, received_at, ${bytesOf(CALLBACKS.large)} as bytes from callbacks
    where ${isAmong(tx.engine, sql`job_id`, jobIds)} limit ${limit + 1}`)
  const { rows, hasMore } = takeBatch(found, limit)
  const ids = rows.map(({ id }) => id)
  if (ids.length > 0) await tx.query(sql`delete from callbacks where ${isAmong(tx.engine, sql`id`, ids)}`)
  return { hasMore, callbacks: rows }
}

/** Deletes a bounded number of timeline entries of these jobs. */
export const deleteTimelineOf: DeleteSome = async (tx, jobIds, limit) => {
  const deleted = await tx.query(sql`
    delete from job_timeline where (job_id, id) in (
      select job_id, id from job_timeline where ${isAmong(tx.engine, sql`job_id`, jobIds)} limit ${limit}) returning id`)
  return { hasMore: deleted.length === limit }
}

/**
 * Deletes the jobs, to which nothing else may refer any more, with their runs and with the threads that have no other job.
 * The ids of jobs and runs stay as tombstones, and those of the threads that this service created.
 */
export async function deleteJobRows(tx: Transaction, jobIds: readonly string[], atMs: number): Promise<void> {
  const ofJobs = isAmong(tx.engine, sql`job_id`, jobIds)
  const jobs = isAmong(tx.engine, sql`id`, jobIds)
  await tx.query(sql`
    insert into job_tombstones (id, job_id, deleted_at)
    select run_id, job_id, cast(${atMs} as bigint) from job_runs where ${ofJobs}
    union all select id, id, cast(${atMs} as bigint) from jobs where ${jobs}
    on conflict (id) do update set job_id = excluded.job_id, deleted_at = excluded.deleted_at`)
  const threads = await keepRunsOf(tx, jobIds)
  await tx.query(sql`delete from job_runs where ${ofJobs}`)
  await tx.query(sql`delete from jobs where ${jobs}`)
  const deleted = await deleteEmptyThreads(tx, threads)
  const own = deleted.filter(({ is_own }) => is_own === 1).map(({ id, newest }) => ({ id, job_id: newest }))
  if (own.length === 0) return
  await tx.query(sql`
    insert into job_tombstones (id, job_id, deleted_at)
    select id, job_id, cast(${atMs} as bigint) from ${rowsOf(tx.engine, own, { id: 'text', job_id: 'text' })} as r
    where true
    on conflict (id) do update set job_id = excluded.job_id, deleted_at = excluded.deleted_at`)
}

/** The deleted job that each of these ids, of jobs, runs or threads, belonged to. */
export async function findDeleted(tx: Transaction, ids: readonly string[]): Promise<Map<string, string>> {
  if (ids.length === 0) return new Map()
  const rows = await tx.query<{ id: string; job_id: string }>(
    sql`select id, job_id from job_tombstones where ${isAmong(tx.engine, sql`id`, ids)}`,
  )
  return new Map(rows.map(({ id, job_id }) => [id, job_id]))
}

/**
 * Longer than the time for which any sender retries a callback. The credential of an older job that is not stored proves
 * nothing any more: the job may have been deleted.
 */
export const TOMBSTONE_RETENTION_MS = 30 * 86_400_000

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
