import { firstIdAt } from '../../core/ids.ts'
import type { Queryable } from '../../db/database.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import type { FailureCode } from '../job.ts'

/** Only so many of the newest jobs are read, so that it stays cheap at any size. */
const MAX_READ = 5_000

type OwnerCount = { owner: string; jobs: number }

/** The owners of the most jobs since a time, among the newest jobs. */
export function countJobsByOwner(
  db: Queryable,
  { sinceMs, limit }: { sinceMs: number; limit: number },
): Promise<OwnerCount[]> {
  return db.query<OwnerCount>(sql`
    select created_by as owner, count(*) as jobs from (
      select created_by from jobs where id >= ${firstIdAt('job', sinceMs)} order by id desc limit ${MAX_READ}) as newest
    where created_by is not null group by created_by order by 2 desc, 1 limit ${limit}`)
}

export type FailureGroup = {
  type: string
  error_code: FailureCode
  count: number
  /** How many failed in the span of the same length before. */
  before: number
  last_at: number
  message: string | null
}

/** The failed jobs that ended since a time, by type and error, most frequent first. `isCut`: there may be older ones. */
export async function groupFailures(
  db: Queryable,
  { sinceMs, nowMs }: { sinceMs: number; nowMs: number },
): Promise<{ groups: FailureGroup[]; isCut: boolean }> {
  const startMs = sinceMs - (nowMs - sinceMs)
  const newest = sql`
    select jobs.id, type, error_code, finished_at from uncommon_jobs join jobs on jobs.id = uncommon_jobs.id
    where state = 'failed' order by uncommon_jobs.id desc limit ${MAX_READ + 1}`
  const rows = await db.query<FailureGroup & { newest: string; read: number }>(sql`
    with read as materialized (${newest})
    select type, error_code, count(case when finished_at > ${sinceMs} then 1 end) as count,
      count(case when finished_at <= ${sinceMs} then 1 end) as before, max(finished_at) as last_at, max(id) as newest,
      (select count(*) from read) as read
    from read where finished_at > ${startMs} group by type, error_code`)
  const groups = rows.filter(({ count }) => count > 0).sort((a, b) => b.count - a.count || b.last_at - a.last_at)
  const ids = groups.map((group) => group.newest)
  const messages = await db.query<{ id: string; error_message: string | null }>(sql`
    select id, error_message from jobs where ${isAmong(db.engine, sql`id`, ids)}`)
  const messageOf = new Map(messages.map(({ id, error_message }) => [id, error_message]))
  return {
    groups: groups.map((group) => ({ ...group, message: messageOf.get(group.newest) ?? null })),
    isCut: (rows[0]?.read ?? 0) > MAX_READ,
  }
}
