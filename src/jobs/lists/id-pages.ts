import type { Queryable } from '../../db/database.ts'
import { sql } from '../../db/sql.ts'
import { type JobFilter, planList } from './job-filter.ts'

const ROWS_PER_PAGE = 5_000

/** The ids of all jobs that match a filter, newest first. Each page reads a bounded number of rows, and may be empty. */
export async function* jobIdPages(db: Queryable, filter: JobFilter): AsyncGenerator<string[]> {
  for (let after: string | null = null; ; ) {
    const { from, driving, rest } = planList(filter, after)
    const fits = rest === null ? sql`1` : sql`case when ${rest.where} then 1 else 0 end`
    const rows: { id: string; fits: number }[] = await db.query(sql`
      select id, ${fits} as fits from ${from} where ${driving} order by id desc limit ${ROWS_PER_PAGE}`)
    yield rows.filter((row) => row.fits === 1).map(({ id }) => id)
    const last = rows.at(-1)
    if (rows.length < ROWS_PER_PAGE || !last) return
    after = last.id
  }
}
