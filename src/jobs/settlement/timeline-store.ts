import { Columns } from '../../db/columns.ts'
import type { Queryable, Transaction } from '../../db/database.ts'
import { sql } from '../../db/sql.ts'
import type { PageRequest } from '../../http/paging.ts'
import { VIAS } from '../job.ts'

export const TIMELINE_KINDS = [
  'created',
  'start',
  'callback',
  'check',
  'transition',
  'cancel_requested',
  'resumed',
  'claimed',
  'delivery',
] as const
export type TimelineKind = (typeof TIMELINE_KINDS)[number]

export const TIMELINE_VIAS = [...VIAS, 'replay'] as const

export type TimelineRow = {
  id: string
  job_id: string
  at: number
  kind: TimelineKind
  via: (typeof TIMELINE_VIAS)[number] | null
  /** JSON. */
  detail: string
  times: number
  last_at: number
}

export type NewTimelineRow = Omit<TimelineRow, 'times' | 'last_at'>

const TIMELINE = new Columns<TimelineRow>({
  id: { type: 'text' },
  job_id: { type: 'text' },
  at: { type: 'bigint' },
  kind: { type: 'text' },
  via: { type: 'text' },
  detail: { type: 'text' },
  times: { type: 'bigint' },
  last_at: { type: 'bigint' },
})

export async function appendTimeline(tx: Transaction, entries: readonly NewTimelineRow[]): Promise<void> {
  if (entries.length === 0) return
  const rows = entries.map((entry) => ({ ...entry, times: 1, last_at: entry.at }))
  await tx.query(sql`
    insert into job_timeline (${TIMELINE.list})
    select ${TIMELINE.list} from ${TIMELINE.rows(tx.engine, rows)} as r where true`)
}

/** Counts an entry that repeats the newest one there, so that a client that polls does not fill the timeline. */
export async function appendOrCount(tx: Transaction, entry: NewTimelineRow): Promise<void> {
  const counted = await tx.query(sql`
    update job_timeline set times = times + 1, last_at = ${entry.at}
    where id = (select id from job_timeline where job_id = ${entry.job_id} order by id desc limit 1)
      and kind = ${entry.kind} and coalesce(via, '') = ${entry.via ?? ''} and detail = ${entry.detail}
    returning id`)
  if (counted.length === 0) await appendTimeline(tx, [entry])
}

/** Oldest first. */
export function findTimelinePage(
  db: Queryable,
  jobId: string,
  page: PageRequest<readonly [string]>,
): Promise<TimelineRow[]> {
  return db.query<TimelineRow>(sql`
    select ${TIMELINE.list} from job_timeline where job_id = ${jobId} and id > ${page.after?.[0] ?? ''}
    order by id limit ${page.limit + 1}`)
}
