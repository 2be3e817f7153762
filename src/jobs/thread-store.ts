import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong } from '../db/rows.ts'
import { sql } from '../db/sql.ts'
import type { PageRequest } from '../http/paging.ts'
import type { JobRow } from './job-row.ts'

/** A conversation: a thread of the runtime with at least one job on it. */
export type ThreadRow = {
  id: string
  owner: string | null
  type: string
  title: string | null
  newest: string
  is_own: number
  is_pinned: number
  deleted_run: string | null
  deleted_run_at: number | null
  replaced_by: string | null
  deleting_at: number | null
}

const THREADS = new Columns<ThreadRow>({
  id: { type: 'text' },
  owner: { type: 'text' },
  type: { type: 'text' },
  title: { type: 'text' },
  newest: { type: 'text' },
  is_own: { type: 'bigint' },
  is_pinned: { type: 'bigint' },
  deleted_run: { type: 'text' },
  deleted_run_at: { type: 'bigint' },
  replaced_by: { type: 'text' },
  deleting_at: { type: 'bigint' },
})

/** The first job on a thread makes its row. Each later one becomes the newest. */
export async function addToThread(db: Queryable, job: JobRow, title: string | null): Promise<void> {
  const row: ThreadRow = {
    id: job.thread_id,
    owner: job.created_by,
    type: job.type,
    title,
    newest: job.id,
    // A job without a run starts one, on a thread that this service creates.
    is_own: job.run_id === null ? 1 : 0,
    is_pinned: 0,
    deleted_run: null,
    deleted_run_at: null,
    replaced_by: null,
    deleting_at: null,
  }
  await db.query(sql`
    insert into threads (${THREADS.list}) values (${THREADS.values(row)})
    on conflict (id) do update set newest = excluded.newest, owner = coalesce(threads.owner, excluded.owner)`)
}

export async function findThread(db: Queryable, id: string): Promise<ThreadRow | undefined> {
  const [row] = await db.query<ThreadRow>(sql`select ${THREADS.list} from threads where id = ${id}`)
  return row
}

/** The thread of a conversation. One that was replaced stands for the thread that took its place. */
export async function findConversation(db: Queryable, id: string): Promise<ThreadRow | undefined> {
  const thread = await findThread(db, id)
  return thread && thread.replaced_by !== null ? findThread(db, thread.replaced_by) : thread
}

type ThreadItem = { id: string; thread_id: string; type: string; title: string | null }

/**
 * A user's conversations, in the order of their newest turns, whose ids are in `id`: the oldest first, so that a
 * conversation that is continued meanwhile is not missed.
 */
export function listThreadsOf(
  db: Queryable,
  owner: string,
  { limit, after }: PageRequest<readonly [string]>,
): Promise<ThreadItem[]> {
  return db.query(sql`
    select newest as id, id as thread_id, type, title from threads
    where owner = ${owner} and replaced_by is null and newest > ${after?.[0] ?? ''}
    order by newest limit ${limit + 1}`)
}

/** A user's conversations, the newest turns first. `last_job`: the newest job of this user on the thread. */
export function findConversations(
  db: Queryable,
  owner: string,
  { limit, after }: PageRequest<readonly [string]>,
): Promise<(ThreadItem & { last_job: string | null })[]> {
  const before = after === null ? sql`1 = 1` : sql`newest < ${after[0]}`
  return db.query(sql`
    select newest as id, id as thread_id, type, title, (
      select jobs.id from jobs where thread_id = threads.id and created_by = ${owner}
      order by jobs.id desc limit 1) as last_job
    from threads where owner = ${owner} and replaced_by is null and ${before}
    order by newest desc limit ${limit + 1}`)
}

/**
 * Until the transaction ends, no other turn begins on the thread. Locks are taken in one order: jobs, then threads, then
 * checks.
 */
export async function lockThread(tx: Transaction, id: string): Promise<ThreadRow | undefined> {
  const [row] = await tx.query<ThreadRow>(
    sql`select ${THREADS.list} from threads where id = ${id} ${forUpdate(tx.engine)}`,
  )
  return row
}

/**
 * The newest job on each of these threads, if late runs of this service are expected there: on threads that it created, and
 * on those of other clients where it has repeated a start. Also for a thread that was replaced.
 */
export async function findNewestTurns(db: Queryable, threadIds: readonly string[]): Promise<Map<string, string>> {
  const rows = await db.query<{ id: string; newest: string }>(
    sql`
      select id, newest from threads
      where (is_own = 1 or is_pinned = 1 or replaced_by is not null) and ${isAmong(db.engine, sql`id`, threadIds)}`,
  )
  return new Map(rows.map(({ id, newest }) => [id, newest]))
}

/** With this many, there may be more. For each of them a check may call the runtime, all within its lease. */
export const MAX_EARLIER_RUNS = 20

const MAY_BE_EMPTY = sql`
  case when status = 'cancelled' or error_code in ('run_lost', 'deadline_exceeded') then 1 else 0 end`

/** `ended_at`: the run had ended then. `may_be_empty`: 1 if it may have left no checkpoint, because it was cancelled or lost. */
export type EarlierRun = { run_id: string; ended_at: number; may_be_empty: number }

/**
 * The runs on the thread before the job's current one, newest first; also of deleted jobs. Empty: the thread has no
 * history.
 */
export async function findEarlierRuns(
  db: Queryable,
  { id, thread_id, run_seq }: Pick<JobRow, 'id' | 'thread_id' | 'run_seq'>,
): Promise<EarlierRun[]> {
  return db.query<EarlierRun>(sql`
    select run_id, ended_at, may_be_empty from (
      select job_runs.run_id, job_runs.created_at as at, coalesce(finished_at, updated_at) as ended_at,
        ${MAY_BE_EMPTY} as may_be_empty
      from jobs join job_runs on job_id = jobs.id
      where thread_id = ${thread_id} and is_extra = 0 and is_left = 0
        and not (job_id = ${id} and job_runs.run_seq >= ${run_seq})
      union all
      select deleted_run, deleted_run_at, deleted_run_at, case when deleted_run_at = 0 then 1 else 0 end from threads
      where id = ${thread_id} and deleted_run is not null) as runs
    order by at desc limit ${MAX_EARLIER_RUNS}`)
}

export async function pinThread(tx: Queryable, id: string): Promise<void> {
  await tx.query(sql`update threads set is_pinned = 1 where id = ${id}`)
}

/**
 * Moves a conversation to another thread, because its runs left nothing. The old row stays: a run may still appear on that
 * thread.
 */
export async function replaceThread(tx: Transaction, { from, to }: { from: ThreadRow; to: string }): Promise<void> {
  const row = { ...from, id: to, is_own: 1, is_pinned: 0, deleted_run: null, deleted_run_at: null }
  await tx.query(sql`insert into threads (${THREADS.list}) values (${THREADS.values(row)})`)
  await tx.query(sql`update threads set replaced_by = ${to} where id = ${from.id} or replaced_by = ${from.id}`)
  await tx.query(sql`
    update job_runs set is_left = 1 where job_id in (select id from jobs where thread_id = ${from.id})`)
  await tx.query(sql`update jobs set thread_id = ${to} where thread_id = ${from.id}`)
  await tx.query(sql`
    update job_checks set waits_on = ${to} where waits_on = ${from.id}
      and job_id in (select id from jobs where thread_id = ${to})`)
}

/** The threads that this one replaced. */
export function findReplaced(db: Queryable, id: string): Promise<Pick<ThreadRow, 'id' | 'is_own'>[]> {
  return db.query(sql`select id, is_own from threads where replaced_by = ${id}`)
}

/** Locks the threads of these jobs in the order of ids, and returns their ids. */
export async function lockThreadsOf(tx: Transaction, jobIds: readonly string[]): Promise<string[]> {
  const rows = await tx.query<{ id: string }>(sql`
    select id from threads where id in (select thread_id from jobs where ${isAmong(tx.engine, sql`jobs.id`, jobIds)})
    order by id ${forUpdate(tx.engine)}`)
  return rows.map(({ id }) => id)
}

/** Some jobs on a thread. `owner`: only those of this owner; null: of every owner. */
export async function findJobsOn(
  db: Queryable,
  threadId: string,
  { owner, limit }: { owner: string | null; limit: number },
): Promise<string[]> {
  const isOwned = owner === null ? sql`1 = 1` : sql`created_by = ${owner}`
  const rows = await db.query<{ id: string }>(
    sql`select id from jobs where thread_id = ${threadId} and ${isOwned} order by id limit ${limit}`,
  )
  return rows.map(({ id }) => id)
}

/** Whether a job of another owner is on the thread. */
export async function hasOtherOwners(db: Queryable, threadId: string, owner: string): Promise<boolean> {
  const rows = await db.query(sql`select 1 from jobs where thread_id = ${threadId} and created_by <> ${owner} limit 1`)
  return rows.length > 0
}

/** The first owner of a job on the thread is the owner of the conversation. */
export async function claimThread(tx: Transaction, id: string, owner: string): Promise<void> {
  await tx.query(sql`update threads set owner = ${owner} where id = ${id} and owner is null`)
}

/** For the input of its first turn, which was replaced. */
export async function setTitle(tx: Transaction, id: string, title: string | null): Promise<void> {
  await tx.query(sql`update threads set title = ${title} where id = ${id}`)
}

/** While it is marked, the thread takes no new turn. Null removes the mark. */
export async function markDeleting(db: Queryable, id: string, atMs: number | null): Promise<void> {
  await db.query(sql`update threads set deleting_at = ${atMs} where id = ${id}`)
}

/**
 * Called before jobs are deleted: their threads, which it locks, keep the newest of their runs that has left a checkpoint.
 * A run that may have left none is kept with the time 0, until there is a better one.
 */
export async function keepRunsOf(tx: Transaction, jobIds: readonly string[]): Promise<string[]> {
  const threads = await lockThreadsOf(tx, jobIds)
  await tx.query(sql`
    update threads set deleted_run = r.run_id, deleted_run_at = case when r.may_be_empty = 1 then 0 else r.at end
    from (
      select thread_id, job_runs.run_id, job_runs.created_at as at, ${MAY_BE_EMPTY} as may_be_empty,
        row_number() over (partition by thread_id order by ${MAY_BE_EMPTY}, job_runs.created_at desc) as place
      from job_runs join jobs on jobs.id = job_id
      where is_extra = 0 and is_left = 0 and ${isAmong(tx.engine, sql`job_id`, jobIds)}) as r
    where r.place = 1 and threads.id = r.thread_id
      and (deleted_run is null or (r.may_be_empty = 0 and r.at > coalesce(deleted_run_at, 0)))`)
  return threads
}

/** Called after jobs were deleted: deletes the threads without a job, with those that they replaced, and returns them. */
export async function deleteEmptyThreads(
  tx: Transaction,
  threadIds: readonly string[],
): Promise<Pick<ThreadRow, 'id' | 'newest' | 'is_own'>[]> {
  if (threadIds.length === 0) return []
  const among = isAmong(tx.engine, sql`threads.id`, threadIds)
  await tx.query(sql`
    update threads set newest = (select max(jobs.id) from jobs where thread_id = threads.id)
    where ${among} and exists (select 1 from jobs where thread_id = threads.id)`)
  const deleted = await tx.query<ThreadRow>(sql`
    delete from threads where ${among} and not exists (select 1 from jobs where thread_id = threads.id)
    returning id, newest, is_own`)
  if (deleted.length === 0) return []
  const ids = deleted.map(({ id }) => id)
  const replaced = await tx.query<ThreadRow>(
    sql`delete from threads where ${isAmong(tx.engine, sql`replaced_by`, ids)} returning id, newest, is_own`,
  )
  return [...deleted, ...replaced]
}

/** The first owner of a job that is still on the thread. */
const OWNER_LEFT = sql`
  (select created_by from jobs where thread_id = threads.id and created_by is not null order by jobs.id limit 1)`

/** Some conversations of a user whose jobs are all erased. `is_shared`: 1 if jobs of another owner are on the thread. */
export async function findThreadsToErase(
  db: Queryable,
  owner: string,
  limit: number,
): Promise<(Pick<ThreadRow, 'id' | 'is_own'> & { is_shared: number })[]> {
  return db.query(sql`
    select id, is_own, case when ${OWNER_LEFT} is null then 0 else 1 end as is_shared from threads
    where owner = ${owner} and replaced_by is null order by newest limit ${limit}`)
}

/** Those of these threads that are the conversation of an owner. */
export async function findOwnedThreads(db: Queryable, ids: readonly string[]): Promise<string[]> {
  const rows = await db.query<{ id: string }>(
    sql`select id from threads where owner is not null and ${isAmong(db.engine, sql`id`, ids)}`,
  )
  return rows.map(({ id }) => id)
}

/** The threads of these jobs that are the conversations of other owners. */
export async function findThreadsOfOthers(
  db: Queryable,
  { jobIds, owner }: { jobIds: readonly string[]; owner: string },
): Promise<string[]> {
  const rows = await db.query<{ id: string }>(sql`
    select id from threads
    where owner <> ${owner} and id in (select thread_id from jobs where ${isAmong(db.engine, sql`jobs.id`, jobIds)})`)
  return rows.map(({ id }) => id)
}

/** The conversations lose their title, and their owner: another owner of jobs on the thread takes the place. */
export async function eraseThreads(tx: Transaction, ids: readonly string[]): Promise<void> {
  const locked = await tx.query<{ id: string }>(sql`
    select id from threads where ${isAmong(tx.engine, sql`id`, ids)} or ${isAmong(tx.engine, sql`replaced_by`, ids)}
    order by id ${forUpdate(tx.engine)}`)
  const all = locked.map(({ id }) => id)
  await tx.query(sql`update threads set owner = ${OWNER_LEFT}, title = null where ${isAmong(tx.engine, sql`id`, all)}`)
}
