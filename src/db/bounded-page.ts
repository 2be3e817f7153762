import type { Queryable, Row } from './database.ts'
import { type Sql, sql } from './sql.ts'

/** A page is parsed and serialized without a pause, and no other request is served meanwhile. */
const MAX_PAGE_BYTES = 8 * 1024 * 1024

export interface BoundedPage<R> {
  rows: R[]
  hasMore: boolean
}

/**
 * A page of a table, highest id first, bounded in rows and in bytes. It ends before the row that would take its large
 * columns over 8 MB, but has at least one row. Sizes are read before values, so rows beyond the bound are not fetched.
 */
export async function selectBoundedPage<R extends Row>(
  db: Queryable,
  page: { table: Sql; columns: Sql; large: readonly Sql[]; where: Sql; limit: number },
): Promise<BoundedPage<R>> {
  const { table, columns, large, where, limit } = page
  const bytes = large.reduce((sum, column) => sql`${sum} + coalesce(octet_length(${column}), 0)`, sql`0`)
  // Not a join: SQLite would sort the whole rows, but reads a list of ids in order.
  const rows = await db.query<R & { candidates: number }>(sql`
    with found as materialized (
      select id as candidate, ${bytes} as bytes from ${table} where ${where} order by id desc limit ${limit + 1})
    select ${columns}, (select count(*) from found) as candidates from ${table} where id in (
      select candidate from (
        select candidate, row_number() over highest_first as place, sum(bytes) over highest_first as bytes_so_far
        from found window highest_first as (order by candidate desc)
      ) as measured where place <= ${limit} and (place = 1 or bytes_so_far <= ${MAX_PAGE_BYTES}))
    order by id desc`)
  return { rows, hasMore: (rows[0]?.candidates ?? 0) > rows.length }
}
