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
 * The failed jobs that ended since a time, by type and error, most frequent first. `isCut`: the newest failed jobs were
 * read, and the oldest of them ended since that time too, so that there may be more.
 */
export async function groupFailures(
  db: Queryable,
  { sinceMs, nowMs, maxRead = MAX_READ }: { sinceMs: number; nowMs: number; maxRead?: number },
): Promise<{ groups: FailureGroup[]; isCut: boolean }> {
  const startMs = sinceMs - (nowMs - sinceMs)
  const newest = sql`
    select jobs.id, type, error_code, finished_at from uncommon_jobs join jobs on jobs.id = uncommon_jobs.id
    where state = 'failed' order by uncommon_jobs.id desc limit ${maxRead}`
  // Null if there are no failed jobs besides those that were read.
  const cutAt = sql`case when exists (
      select 1 from uncommon_jobs where state = 'failed' and id < (select min(id) from read))
    then (select finished_at from read order by id limit 1) end`
  const rows = await db.query<FailureGroup & { before: number; newest: string; cut_at: number | null }>(sql`
    with read as materialized (${newest})
    select type, error_code, count(case when finished_at > ${sinceMs} then 1 end) as count,
      count(case when finished_at <= ${sinceMs} then 1 end) as before, max(finished_at) as last_at, max(id) as newest,
      ${cutAt} as cut_at
    from read where finished_at > ${startMs} group by type, error_code`)
  const endsAfter = (ms: number) => (rows[0]?.cut_at ?? ms) > ms
  const groups = rows.filter(({ count }) => count > 0).sort((a, b) => b.count - a.count || b.last_at - a.last_at)
  const ids = groups.map((group) => group.newest)
  const messages = await db.query<{ id: string; error_message: string | null }>(sql`
    select id, error_message from jobs where ${isAmong(db.engine, sql`id`, ids)}`)
  const messageOf = new Map(messages.map(({ id, error_message }) => [id, error_message]))
  return {
    groups: groups.map((group) => ({
      ...group,
      before: endsAfter(startMs) ? null : group.before,
      message: messageOf.get(group.newest) ?? null,
    })),
    isCut: endsAfter(sinceMs),
  }
}
