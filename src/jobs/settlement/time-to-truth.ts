import type { Queryable } from '../../db/database.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'

/**
 * For each of these jobs, the time in ms from the first sign of the run's end to the stored result. The first sign is the
 * first callback of the run; without a callback it is the last check before the end, which gives an upper bound.
 */
export async function findTimesToTruth(db: Queryable, jobIds: readonly string[]): Promise<Map<string, number>> {
  if (jobIds.length === 0) return new Map()
  const rows = await db.query<{ id: string; finished_at: number; since_at: number | null }>(sql`
    select id, finished_at, coalesce(
      (select min(received_at) from callbacks
        where callbacks.job_id = jobs.id and callbacks.run_id = jobs.run_id and received_at <= finished_at),
      (select max(last_at) from job_timeline
        where job_timeline.job_id = jobs.id and kind in ('created', 'start', 'check', 'resumed')
          and last_at < finished_at)) as since_at
    from jobs where ${isAmong(db.engine, sql`id`, jobIds)} and finished_at is not null`)
  return new Map(
    rows.flatMap(({ id, finished_at, since_at }) =>
      since_at === null ? [] : [[id, Math.max(0, finished_at - since_at)] as const],
    ),
  )
}
