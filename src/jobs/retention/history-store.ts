import { firstIdAt, type IdPrefix } from '../../core/ids.ts'
import type { Database, Queryable, Transaction } from '../../db/database.ts'
import { rowsOf } from '../../db/rows.ts'
import { EMPTY, type Sql, sql } from '../../db/sql.ts'

/** What is kept of a job beside the job itself, its runs and its usage. */
export const HISTORY_KINDS = ['callbacks', 'timeline', 'notifications'] as const
export type HistoryKind = (typeof HISTORY_KINDS)[number]

interface HistoryTable {
  name: Sql
  prefix: IdPrefix
  /** What holds an entry back, whatever became of its job. */
  unless: (nowMs: number) => Sql
}

const TABLES: Record<HistoryKind, HistoryTable> = {
  callbacks: { name: sql`callbacks`, prefix: 'cbk', unless: () => EMPTY },
  timeline: { name: sql`job_timeline`, prefix: 'tml', unless: () => EMPTY },
  notifications: { name: sql`notifications`, prefix: 'ntf', unless: hasWaitingDelivery },
}

export interface HistoryPage {
  kind: HistoryKind
  /** The last entry that was looked at; empty to begin with the oldest. */
  after: string
  /** Only what is older than this, of jobs that ended before it. */
  beforeMs: number
  nowMs: number
  limit: number
}

export interface TrimmedPage {
  trimmed: number
  /** The last entry that was looked at; null when there are no more. */
  last: string | null
}

/**
 * Forgets what of one page may be forgotten. Ids sort by time, so that a page costs the same however much is kept, and
 * no index of its own. Null when another node is at it.
 */
export function trimHistoryPage(db: Database, page: HistoryPage): Promise<TrimmedPage | null> {
  return db.transaction(async (tx) => {
    if (!(await tx.tryLock(`history:${page.kind}`))) return null
    const looked = await readPage(tx, page)
    const ids = looked.filter(({ forgettable }) => forgettable === 1).map(({ id }) => ({ id }))
    const trimmed = ids.length === 0 ? 0 : await deleteEntries(tx, page.kind, ids)
    return { trimmed, last: looked.length < page.limit ? null : (looked.at(-1)?.id ?? null) }
  })
}

function readPage(db: Queryable, page: HistoryPage): Promise<{ id: string; forgettable: number }[]> {
  const { name, prefix, unless } = TABLES[page.kind]
  return db.query(sql`
    select h.id, case when (h.job_id is null or j.finished_at < ${page.beforeMs}) ${unless(page.nowMs)}
      then 1 else 0 end as forgettable
    from ${name} h left join jobs j on j.id = h.job_id
    where h.id > ${page.after} and h.id < ${firstIdAt(prefix, page.beforeMs)} order by h.id limit ${page.limit}`)
}

/** To be attempted, or on the shelf for want of credentials with time left to live. The cast: in 32 bits it overflows. */
function hasWaitingDelivery(nowMs: number): Sql {
  return sql`and not exists (
    select 1 from deliveries d where d.notification_id = h.id and (d.next_attempt_at is not null
      or (d.state = 'no_credentials' and h.created_at + h.ttl_seconds * cast(1000 as bigint) > ${nowMs})))`
}

async function deleteEntries(tx: Transaction, kind: HistoryKind, ids: readonly { id: string }[]): Promise<number> {
  const wanted = () => sql`(select id from ${rowsOf(tx.engine, ids, { id: 'text' })} as r)`
  if (kind !== 'notifications') {
    return (await tx.query(sql`delete from ${TABLES[kind].name} where id in ${wanted()} returning id`)).length
  }
  // One that another node has just taken off the shelf is to be sent: it stays, and its notification with it.
  await tx.query(sql`delete from deliveries where notification_id in ${wanted()} and next_attempt_at is null`)
  const deleted = await tx.query(sql`
    delete from notifications where id in ${wanted()}
      and not exists (select 1 from deliveries d where d.notification_id = notifications.id)
    returning id`)
  return deleted.length
}
