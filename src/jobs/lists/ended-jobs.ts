import type { Queryable } from '../../db/database.ts'
import { isAmong } from '../../db/rows.ts'
import { join, type Sql, sql } from '../../db/sql.ts'
import { findJobsOfEvents } from '../../events/event-store.ts'
import { type JobStatus, STATUSES, TERMINAL_STATUSES } from '../job.ts'
import { COMMON_STATUS } from '../uncommon-jobs.ts'
import type { JobFilter } from './job-filter.ts'

/** With more records since the time, the newest jobs are read instead, so that the cost does not depend on the load. */
const MAX_RECORDS = 20_000
/** The numbers of events follow time only roughly: transactions commit in another order. */
const DISORDER_MS = 60_000

/** A condition on the id that every job of a list with `finishedAfterMs` fits; undefined if `findEndedIds` finds none. */
export async function findCandidates(db: Queryable, filter: JobFilter): Promise<Sql | undefined> {
  const ids = await findEndedIds(db, filter)
  return ids === null ? undefined : isAmong(db.engine, sql`id`, ids)
}

/**
 * The ids of the jobs that ended after the time in `finishedAfterMs`, with some others; null if other filters find the jobs,
 * or if there are too many. `jobs` has no index of that time, because each end of a job would write it.
 */
async function findEndedIds(db: Queryable, filter: JobFilter): Promise<string[] | null> {
  const { finishedAfterMs: afterMs } = filter
  if (afterMs === undefined || hasFewJobs(filter)) return null
  const statuses = endsOf(filter)
  return isUncommon(filter) ? findUncommon(db, statuses, afterMs) : findInLog(db, statuses, afterMs)
}

/** Each of these filters has an index and leaves few jobs. */
function hasFewJobs({ runId, traceId, threadId, retryOf, createdBy }: JobFilter): boolean {
  return [runId, traceId, threadId, retryOf, createdBy].some((value) => value !== undefined)
}

function endsOf({ status, errorCode }: JobFilter): readonly JobStatus[] {
  if (status !== undefined) return TERMINAL_STATUSES.filter((one) => one === status)
  return errorCode === undefined ? TERMINAL_STATUSES : ['failed']
}

/** Every job that fits has a row in `uncommon_jobs`. */
function isUncommon({ status, errorCode, settledBy, outputCheck }: JobFilter): boolean {
  if (errorCode !== undefined || outputCheck !== undefined) return true
  if (settledBy !== undefined && settledBy !== 'callback') return true
  return status !== undefined && status !== COMMON_STATUS
}

async function findUncommon(db: Queryable, statuses: readonly JobStatus[], afterMs: number): Promise<string[] | null> {
  if (statuses.length === 0) return []
  const rows = await db.query<{ id: string }>(sql`
    select id from uncommon_jobs where state in (${listOf(statuses)}) and since > ${afterMs} limit ${MAX_RECORDS + 1}`)
  return rows.length > MAX_RECORDS ? null : rows.map(({ id }) => id)
}

/** Each end of a job is an event. Only the erasure of a user deletes events of jobs that stay. */
async function findInLog(db: Queryable, statuses: readonly JobStatus[], afterMs: number): Promise<string[] | null> {
  if (statuses.length === 0) return []
  const types = statuses.map((status) => STATUSES[status].event)
  const ended = await findJobsOfEvents(db, { types, sinceMs: afterMs - DISORDER_MS, maxRead: MAX_RECORDS })
  if (ended === null) return null
  const erased = await db.query<{ id: string }>(sql`
    select id from jobs where erased_at is not null and erased_at > ${afterMs} limit ${MAX_RECORDS + 1}`)
  return erased.length > MAX_RECORDS ? null : [...new Set([...ended, ...erased.map(({ id }) => id)])]
}

function listOf(texts: readonly string[]): Sql {
  return join(
    texts.map((text) => sql`${text}`),
    ', ',
  )
}
