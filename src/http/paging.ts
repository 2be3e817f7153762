import { type TSchema, Type } from 'typebox'
import { ApiError } from '../core/errors.ts'
import { isStorableText } from '../core/text.ts'

const DEFAULT_LIMIT = 20
const MAX_LIMIT = 100

export const pageQuery = {
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: MAX_LIMIT, default: DEFAULT_LIMIT, description: 'How many to return.' }),
  ),
  cursor: Type.Optional(
    Type.String({ maxLength: 1024, description: '`next_cursor` of the previous page; absent for the first page.' }),
  ),
}

export function pageOf<Item extends TSchema>(item: Item) {
  const { title } = item as { title?: string }
  return Type.Object(
    {
      data: Type.Array(item, { description: 'The records of this page.' }),
      has_more: Type.Boolean({
        description: 'Whether more records follow. A page may hold fewer than `limit` records even if this is true.',
      }),
      next_cursor: Type.Unsafe<string | null>({
        type: ['string', 'null'],
        description: 'The `cursor` of the next page; null on the last one.',
      }),
    },
    title === undefined ? {} : { title: `${title}Page` },
  )
}

/** The end of a page: the sort values of its last item, which later inserts cannot move. */
type Position = readonly (string | number)[]

export interface PageRequest<At extends Position> {
  limit: number
  after: At | null
}

export interface ListKind<At extends Position> {
  name: string
  isPosition: (value: unknown[]) => value is At & unknown[]
}

/** Lists ordered by their id alone. */
export function listById(name: string): ListKind<readonly [string]> {
  return {
    name,
    isPosition: (value): value is [string] => value.length === 1 && isText(value[0]),
  }
}

/** Lists ordered by a time, then by a name. */
export function listByTime(name: string): ListKind<readonly [number, string]> {
  return {
    name,
    isPosition: (value): value is [number, string] =>
      value.length === 2 && Number.isSafeInteger(value[0]) && isText(value[1]),
  }
}

export function isText(value: unknown): value is string {
  return typeof value === 'string' && isStorableText(value)
}

/** A cursor of another list or an invalid cursor is a 400, never a wrong page. */
export function readPageRequest<At extends Position>(
  kind: ListKind<At>,
  query: { limit?: number; cursor?: string },
): PageRequest<At> {
  return {
    limit: query.limit ?? DEFAULT_LIMIT,
    after: query.cursor === undefined ? null : decodeCursor(kind, query.cursor),
  }
}

/**
 * Makes a page of rows. Stores query one row more than the limit; the extra row only shows that more rows exist. A store
 * whose page may end before its limit sets `hasMore`.
 */
export function toPage<Row, Item, At extends Position>(
  kind: ListKind<At>,
  page: {
    rows: readonly Row[]
    limit: number
    hasMore?: boolean
    /** The last row that was read, if the page ended there without an item. */
    lastRead?: NoInfer<At>
    toItem: (row: Row) => Item
    positionOf: (row: Row) => NoInfer<At>
  },
): { data: Item[]; has_more: boolean; next_cursor: string | null } {
  const rows = page.rows.slice(0, page.limit)
  const last = rows.at(-1)
  const end = page.lastRead ?? (last === undefined ? undefined : page.positionOf(last))
  const hasMore = (page.hasMore ?? page.rows.length > page.limit) && end !== undefined
  return {
    data: rows.map(page.toItem),
    has_more: hasMore,
    next_cursor: hasMore ? encodeCursor(kind, end) : null,
  }
}

/** A list that is never longer than one page. */
export function onePage<Item>(data: Item[]): { data: Item[]; has_more: boolean; next_cursor: string | null } {
  return { data, has_more: false, next_cursor: null }
}

function encodeCursor<At extends Position>(kind: ListKind<At>, position: At): string {
  return Buffer.from(JSON.stringify([kind.name, ...position])).toString('base64url')
}

function decodeCursor<At extends Position>(kind: ListKind<At>, cursor: string): At {
  try {
    const [name, ...position] = JSON.parse(Buffer.from(cursor, 'base64url').toString()) as unknown[]
    const canonical = name === kind.name && kind.isPosition(position) && encodeCursor(kind, position) === cursor
    if (canonical) return position as At & unknown[]
  } catch {
    // Not JSON: refused below.
  }
  throw new ApiError('invalid_request', 'querystring/cursor is not a cursor of this list')
}
