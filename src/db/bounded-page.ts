import type { Queryable, Row } from './database.ts'
import { type Sql, sql } from './sql.ts'

/** Parsing and serializing a page blocks the event loop, so its size is limited. */
export const MAX_PAGE_BYTES = 2 * 1024 * 1024

/**
 * Deleting blocks the event loop too, but for a shorter time: to free a document, SQLite reads all its pages, about 0.65 ms
 * a megabyte. On PostgreSQL a deletion must end before the statement timeout.
 */
const MAX_BATCH_BYTES = 8 * 1024 * 1024

export interface BoundedPage<R> {
  rows: R[]
  hasMore: boolean
  /** The last row that was read, if the page ended there: the next page continues after it. */
  lastRead?: readonly [string]
}

interface BoundedQuery {
  table: Sql
  /** The table joined to the one whose index `where` reads, if that is another one. */
  drivenBy?: Sql
  /** The table with others joined to it, if the columns need them; it has the same rows. */
  from?: Sql
  columns: Sql
  large: readonly Sql[]
  /** The size of the additional columns that the caller reads for each row. */
  moreBytes?: Sql
  /** Served by an index, in the order of ids. */
  where: Sql
  limit: number
  /** The bound of the large columns; default: 2 MB. */
  maxBytes?: number
  /** Conditions that the index does not serve: checked in at most `maxRead` rows, so that the page may be short. */
  rest?: { where: Sql; columns: Sql; maxRead: number }
}

/**
 * A page of a table, highest id first, bounded in rows and in bytes. It ends before the row that would take its large
 * columns over the bound, but has at least one row. Sizes are read before values, so rows beyond the bound are not fetched.
 */
export async function selectBoundedPage<R extends Row & { id: string }>(
  db: Queryable,
  page: BoundedQuery,
): Promise<BoundedPage<R>> {
  const { table, from = table, columns, limit, maxBytes = MAX_PAGE_BYTES } = page
  // Not a join: SQLite would sort the whole rows, but reads a list of ids in order.
  const rows = await db.query<R & { candidates: number }>(sql`
    with found as materialized (${candidatesOf(page)})
    select ${columns}, (select count(*) from found) as candidates from ${from} where id in (
      select candidate from (
        select candidate, row_number() over highest_first as place, sum(bytes) over highest_first as bytes_so_far
        from found window highest_first as (order by candidate desc)
      ) as measured where place <= ${limit} and (place = 1 or bytes_so_far <= ${maxBytes}))
    order by id desc`)
  const candidates = rows[0]?.candidates ?? 0
  if (candidates > rows.length || page.rest === undefined) return { rows, hasMore: candidates > rows.length }
  const bound = await findBound(db, page, page.rest.maxRead)
  if (bound === undefined) return { rows, hasMore: false }
  const last = rows.at(-1)?.id
  // New rows since then move the bound up. The next page must not repeat rows of this page.
  return { rows, hasMore: true, lastRead: [last !== undefined && last < bound ? last : bound] }
}

/** One row more than the limit, to show that there are more. */
function candidatesOf({ table, drivenBy = table, large, moreBytes, where, limit, rest }: BoundedQuery): Sql {
  const bytes = moreBytes ? sql`${bytesOf(large)} + ${moreBytes}` : bytesOf(large)
  const newestFirst = (count: number) => sql`order by id desc limit ${count}`
  if (rest === undefined) {
    return sql`select id as candidate, ${bytes} as bytes from ${drivenBy} where ${where} ${newestFirst(limit + 1)}`
  }
  return sql`
    select id as candidate, bytes from (
      select id, ${rest.columns}, ${bytes} as bytes from ${drivenBy} where ${where} ${newestFirst(rest.maxRead)}) as scanned
    where ${rest.where} ${newestFirst(limit + 1)}`
}

/** The size of a row's large columns. Neither engine reads the values for it. */
export function bytesOf(large: readonly Sql[]): Sql {
  return large.reduce((sum, column) => sql`${sum} + coalesce(octet_length(${column}), 0)`, sql`0`)
}

/** The rows that one batch of a deletion takes: the first ones, bounded in rows and in bytes, but at least one. */
export function takeBatch<R extends { bytes: number }>(found: readonly R[], limit: number): TakenRows<R> {
  return takeRows(found, { limit, maxBytes: MAX_BATCH_BYTES, bytesOf: ({ bytes }) => bytes })
}

/** A page of rows that are small enough to be fetched before they are counted. */
export function takePage<R>(found: readonly R[], limit: number, bytesOf: (row: R) => number): TakenRows<R> {
  return takeRows(found, { limit, maxBytes: MAX_PAGE_BYTES, bytesOf })
}

interface TakenRows<R> {
  rows: readonly R[]
  hasMore: boolean
}

/** `found` has one row more than the limit, to show that there are more. */
function takeRows<R>(
  found: readonly R[],
  bounds: { limit: number; maxBytes: number; bytesOf: (row: R) => number },
): TakenRows<R> {
  let bytesSoFar = 0
  const end = found.findIndex((row, place) => {
    bytesSoFar += bounds.bytesOf(row)
    return place === bounds.limit || (place > 0 && bytesSoFar > bounds.maxBytes)
  })
  return end < 0 ? { rows: found, hasMore: false } : { rows: found.slice(0, end), hasMore: true }
}

/** The last row that may be read; undefined if there are fewer rows. */
async function findBound(
  db: Queryable,
  { table, drivenBy = table, where }: BoundedQuery,
  maxRead: number,
): Promise<string | undefined> {
  const [row] = await db.query<{ id: string }>(
    sql`select id from ${drivenBy} where ${where} order by id desc limit 1 offset ${maxRead - 1}`,
  )
  return row?.id
}
