import { firstIdAt } from '../../core/ids.ts'
import type { Queryable } from '../../db/database.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import type { FailureCode } from '../job.ts'

/** Only so many of the newest jobs are read, so that it stays cheap at any size. */
const MAX_READ = 5_000

type OwnerCount = { owner: string; jobs: number }

/** The owners of the jobs since a time, most jobs first. `isCut`: only the newest jobs are counted. */
export async function countJobsByOwner(
  db: Queryable,
  { sinceMs, maxRead = MAX_READ }: { sinceMs: number; maxRead?: number },
): Promise<{ owners: OwnerCount[]; isCut: boolean }> {
  const groups = await db.query<{ owner: string | null; jobs: number }>(sql`
    select created_by as owner, count(*) as jobs from (
      select created_by from jobs where id >= ${firstIdAt('job', sinceMs)} order by id desc limit ${maxRead + 1}) as newest
    group by created_by order by 2 desc, 1`)
  const read = groups.reduce((sum, { jobs }) => sum + jobs, 0)
  return { owners: groups.filter((group): group is OwnerCount => group.owner !== null), isCut: read > maxRead }
}

export type FailureGroup = {
  type: string
  error_code: FailureCode
  count: number
  /** How many failed in the span of the same length before; null if not all of that span was read. */
  before: number | null
  last_at: number
  message: string | null
}

/**
 * The failed jobs that ended since a time, by type and error, most frequent first. `isCut`: only those that ended last were
 * read, and there are more since that time.
 */
export async function groupFailures(
  db: Queryable,
  { sinceMs, nowMs, maxRead = MAX_READ }: { sinceMs: number; nowMs: number; maxRead?: number },
): Promise<{ groups: FailureGroup[]; isCut: boolean }> {
  const startMs = sinceMs - (nowMs - sinceMs)
  const newest = sql`
    select id, since as ended_at, row_number() over (order by since desc) as place from uncommon_jobs
    where state = 'failed' and since > ${startMs} order by since desc limit ${maxRead + 1}`
  const rows = await db.query<FailureGroup & { before: number; newest: string; cut_at: number | null }>(sql`
    with read as materialized (${newest})
    select type, error_code, count(case when ended_at > ${sinceMs} then 1 end) as count,
      count(case when ended_at <= ${sinceMs} then 1 end) as before, max(ended_at) as last_at, max(jobs.id) as newest,
      (select ended_at from read where place > ${maxRead}) as cut_at
    from read join jobs on jobs.id = read.id where place <= ${maxRead} group by type, error_code`)
  const cutAt = rows[0]?.cut_at ?? null
  const groups = rows.filter(({ count }) => count > 0).sort((a, b) => b.count - a.count || b.last_at - a.last_at)
  const ids = groups.map((group) => group.newest)
  const messages = await db.query<{ id: string; error_message: string | null }>(sql`
    select id, error_message from jobs where ${isAmong(db.engine, sql`id`, ids)}`)
  const messageOf = new Map(messages.map(({ id, error_message }) => [id, error_message]))
  return {
    groups: groups.map((group) => ({
      ...group,
      before: cutAt === null ? group.before : null,
      message: messageOf.get(group.newest) ?? null,
    })),
    isCut: cutAt !== null && cutAt > sinceMs,
  }
}
