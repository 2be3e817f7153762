import { NotProjectApi } from '../errors.ts'
import type { Connection, Query } from '../http/connection.ts'

export interface CallOptions {
  signal?: AbortSignal | undefined
}

export interface Page<Item> {
  data: Item[]
  has_more: boolean
  next_cursor: string | null
}

export interface ListOptions extends CallOptions {
  /** Items per request, 1 to 100. */
  limit?: number
}

/** A list of the service. A loop over it gets every item, page by page. */
export interface List<Item> extends AsyncIterable<Item> {
  /** One page: the first, or the page after `cursor` (`next_cursor` of another page). Its signal replaces the list's. */
  page(cursor?: string | null, options?: CallOptions): Promise<Page<Item>>
}

export function listOf<Item>(connection: Connection, path: string, options: ListOptions): List<Item> {
  const { signal, ...query } = options as ListOptions & Query
  const page = async (cursor: string | null = null, own: CallOptions = { signal }): Promise<Page<Item>> => {
    const { body } = await connection.send<Page<Item>>('GET', path, { query: { ...query, cursor }, ...own })
    if (Array.isArray(body.data)) return body
    throw new NotProjectApi({ url: path, problem: 'the body is not a page' })
  }
  async function* items(): AsyncGenerator<Item> {
    let cursor: string | null = null
    // A page may be short or even empty although more pages follow.
    do {
      const { data, has_more, next_cursor }: Page<Item> = await page(cursor)
      yield* data
      cursor = has_more ? next_cursor : null
    } while (cursor !== null)
  }
  return { page, [Symbol.asyncIterator]: items }
}
