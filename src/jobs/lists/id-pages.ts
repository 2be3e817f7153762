import type { Queryable } from '../../db/database.ts'
import { sql } from '../../db/sql.ts'
import { findCandidates } from './ended-jobs.ts'
import { type JobFilter, planList } from './job-filter.ts'

const ROWS_PER_PAGE = 5_000

/** A job, and its newest retry if that was asked for. */
export type FittingJob = { id: string; retried_as: string | null }

/** The ids of all jobs that match a filter, newest first. Each page reads a bounded number of rows, and may be empty. */
export async function* jobIdPages(
  db: Queryable,
  filter: JobFilter,
  { withRetries = false }: { withRetries?: boolean } = {},
): AsyncGenerator<FittingJob[]> {
  const retry = withRetries ? sql`retried_as` : sql`null`
  const candidates = await findCandidates(db, filter)
  for (let after: string | null = null; ; ) {
    const { from, driving, rest } = planList(filter, after, candidates)
    const fits = rest === null ? sql`1` : sql`case when ${rest.where} then 1 else 0 end`
    const rows: (FittingJob & { fits: number })[] = await db.query(sql`
      select id, ${retry} as retried_as, ${fits} as fits from ${from} where ${driving} order by id desc limit ${ROWS_PER_PAGE}`)
    yield rows.filter((row) => row.fits === 1)
    const last = rows.at(-1)
    if (rows.length < ROWS_PER_PAGE || !last) return
    after = last.id
  }
}
