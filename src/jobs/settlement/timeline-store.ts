import { type IdPrefix, timeOfId } from '../../core/ids.ts'
import { Columns } from '../../db/columns.ts'
import type { Queryable, Transaction } from '../../db/database.ts'
import { rowsOf } from '../../db/rows.ts'
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
  'continued_elsewhere',
  'answered_elsewhere',
  'claimed',
  'delivery',
  'output_check',
  'turn_began',
  'reminded',
  'input_replaced',
  'extra_run',
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

/**
 * If an entry repeats the newest entry of its job, only increases that entry's count, so that a polling client does not
 * fill the timeline. Pass at most one entry per job, of jobs that this transaction has locked.
 */
export async function appendOrCount(tx: Transaction, entries: readonly NewTimelineRow[]): Promise<void> {
  const columns = { job_id: 'text', at: 'bigint', kind: 'text', via: 'text', detail: 'text' } as const
  const counted = await tx.query<{ job_id: string }>(sql`
    update job_timeline set times = times + 1, last_at = r.at from ${rowsOf(tx.engine, entries, columns)} as r
    where job_timeline.job_id = r.job_id
      and job_timeline.id = (
        select newest.id from job_timeline as newest where newest.job_id = r.job_id order by newest.id desc limit 1)
      and job_timeline.kind = r.kind and coalesce(job_timeline.via, '') = coalesce(r.via, '')
      and job_timeline.detail = r.detail
      and not exists (select 1 from callbacks
        where callbacks.job_id = r.job_id and substr(callbacks.id, 4) > substr(job_timeline.id, 4))
    returning job_timeline.job_id`)
  const repeats = new Set(counted.map(({ job_id }) => job_id))
  await appendTimeline(
    tx,
    entries.filter(({ job_id }) => !repeats.has(job_id)),
  )
}

/**
 * A page of what happened to a job, oldest first. A stored callback is an entry by itself, and so is the transition that it
 * caused: neither is written a second time. Their ids are made of the callback's, so that ids sort by time.
 */
export async function findTimelinePage(
  db: Queryable,
  jobId: string,
  page: PageRequest<readonly [string]>,
): Promise<TimelineRow[]> {
  const last = page.after?.[0] ?? ''
  const after = last.slice(PREFIX.length)
  // The last entry may be a callback whose transition is the next entry.
  const callback = after.slice(0, ID_LENGTH)
  const [entries, callbacks] = await Promise.all([
    db.query<TimelineRow>(sql`
      select ${TIMELINE.list} from job_timeline
      where job_id = ${jobId} and id > ${`tml${after}`} order by id limit ${page.limit + 1}`),
    db.query<StoredCallback>(sql`
      select id, job_id, status, outcome, received_at as at, transition from callbacks
      where job_id = ${jobId} and id >= ${`cbk${callback}`} order by id limit ${page.limit + 2}`),
  ])
  return [...entries, ...callbacks.flatMap(toEntries).filter(({ id }) => id > last)]
    .sort((a, b) => (a.id < b.id ? -1 : 1))
    .slice(0, page.limit + 1)
}

const PREFIX = 'tml' satisfies IdPrefix

/** Of an id without its prefix. */
const ID_LENGTH = '_'.length + 26

type StoredCallback = {
  id: string
  job_id: string
  status: string
  outcome: string
  at: number
  transition: string | null
}

function toEntries({ id: callbackId, job_id, status, outcome, at, transition }: StoredCallback): TimelineRow[] {
  const id = `${PREFIX}${callbackId.slice(PREFIX.length)}`
  const detail = JSON.stringify({ callback_id: callbackId, status, outcome })
  const entry = { id, job_id, at, kind: 'callback', via: null, detail, times: 1, last_at: at } as const
  if (transition === null) return [entry]
  const movedAt = timeOfId(callbackId)
  return [
    entry,
    { ...entry, id: `${id}t`, at: movedAt, kind: 'transition', via: 'callback', detail: transition, last_at: movedAt },
  ]
}
