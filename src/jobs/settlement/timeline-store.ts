import type { Queryable, Transaction } from '../../db/database.ts'
import { rowsOf } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import type { PageRequest } from '../../http/paging.ts'

export type TimelineKind =
  | 'created'
  | 'start'
  | 'callback'
  | 'check'
  | 'transition'
  | 'cancel_requested'
  | 'resumed'
  | 'claimed'
  | 'delivery'

export type TimelineRow = {
  id: string
  job_id: string
  at: number
  kind: TimelineKind
  via: string | null
  /** JSON. */
  detail: string
  times: number
  last_at: number
}

export type NewTimelineRow = Omit<TimelineRow, 'times' | 'last_at'>

const COLUMNS = sql`id, job_id, at, kind, via, detail, times, last_at`

export async function appendTimeline(tx: Transaction, entries: readonly NewTimelineRow[]): Promise<void> {
  if (entries.length === 0) return
  const rows = rowsOf(tx.engine, entries, {
    id: 'text',
    job_id: 'text',
    at: 'bigint',
    kind: 'text',
    via: 'text',
    detail: 'text',
  })
  await tx.query(sql`
    insert into job_timeline (${COLUMNS})
    select id, job_id, at, kind, via, detail, 1, at from ${rows} as r where true`)
}

/** An entry that says the same as the newest one is counted there: a page that polls does not fill the timeline. */
export async function appendOrCount(tx: Transaction, entry: NewTimelineRow): Promise<void> {
  const counted = await tx.query(sql`
    update job_timeline set times = times + 1, last_at = ${entry.at}
    where id = (select id from job_timeline where job_id = ${entry.job_id} order by id desc limit 1)
      and kind = ${entry.kind} and coalesce(via, '') = ${entry.via ?? ''} and detail = ${entry.detail}
    returning id`)
  if (counted.length === 0) await appendTimeline(tx, [entry])
}

/** In the order things happened. */
export function findTimelinePage(
  db: Queryable,
  jobId: string,
  page: PageRequest<readonly [string]>,
): Promise<TimelineRow[]> {
  return db.query<TimelineRow>(sql`
    select ${COLUMNS} from job_timeline where job_id = ${jobId} and id > ${page.after?.[0] ?? ''}
    order by id limit ${page.limit + 1}`)
}
