import type { Database, Transaction } from './database.ts'

/** One page of the rows that were written before `beforeMs`, in the order of their ids. */
export interface TrimRange {
  /** The `last` of the previous page; empty for the first page. */
  after: string
  beforeMs: number
  nowMs: number
  limit: number
}

export interface TrimmedPage {
  trimmed: number
  /** The last id of this page, deleted or not; null for an empty page, after which there are no more. */
  last: string | null
}

export interface OldRow {
  id: string
  deletable: boolean
}

interface TrimSteps {
  /** Only the node that holds this lock trims. */
  lock: string
  /** Finds at most `limit` rows, and fewer if they are large. None means that there are no more. */
  find: (tx: Transaction, range: TrimRange) => Promise<OldRow[]>
  /** Returns how many it deleted. */
  remove: (tx: Transaction, ids: readonly { id: string }[]) => Promise<number>
}

/**
 * Deletes the deletable rows of one page of old rows, in one transaction. Ids sort by time, so the cost of a page does not
 * depend on the number of kept rows, and no other index is needed. Null if another node holds the lock.
 */
export function trimPage(db: Database, range: TrimRange, steps: TrimSteps): Promise<TrimmedPage | null> {
  return db.transaction(async (tx) => {
    if (!(await tx.tryLock(steps.lock))) return null
    const found = await steps.find(tx, range)
    const ids = found.filter(({ deletable }) => deletable).map(({ id }) => ({ id }))
    const trimmed = ids.length === 0 ? 0 : await steps.remove(tx, ids)
    return { trimmed, last: found.at(-1)?.id ?? null }
  })
}
