import { Columns } from '../db/columns.ts'
import type { Database, Queryable, Transaction } from '../db/database.ts'
import { isAmong } from '../db/rows.ts'
import { join, type Sql, sql } from '../db/sql.ts'

export const EVENT_TYPES = [
  'job.created',
  'job.updated',
  'job.completed',
  'job.failed',
  'job.cancelled',
  'job.awaiting_input',
  'project.created',
  'project.updated',
  'project.deleted',
] as const

export type EventType = (typeof EVENT_TYPES)[number]

export type NewEvent = {
  /** The user whose stream gets it. Null: only admins get it. */
  subject: string | null
  job_id: string | null
  type: EventType
  /** Unique. A second event with the same cause is not stored. */
  cause: string
  data: string
  created_at: number
}

const NEW_EVENT = new Columns<NewEvent>({
  subject: { type: 'text' },
  job_id: { type: 'text' },
  type: { type: 'text' },
  cause: { type: 'text' },
  data: { type: 'text' },
  created_at: { type: 'bigint' },
})

// The last sequence number given out. As an advisory lock key it is split into two 31-bit halves; the first half counts
// from 1163284000, so that it collides with no other lock.
const LAST_DRAWN = sql`(select case when is_called then last_value else last_value - 1 end as seq from events_seq_seq)`

/** A lock taken before a number is drawn and held until the end. All numbers of this transaction are above the lock's. */
const LOCK_POSITION = sql`
  select pg_advisory_xact_lock_shared((1163284000 + seq / 2147483648)::int, (seq % 2147483648)::int) as held
  from ${LAST_DRAWN} as drawn`

/** Reads the last number first, then the locks: a writer with a number up to it either holds its lock or has finished. */
const FIND_HEAD_ON_POSTGRES = sql`
  select drawn.seq as newest, writers.low
  from ${LAST_DRAWN} as drawn
  cross join lateral (
    select min((classid::bigint - 1163284000) * 2147483648 + objid::bigint) as low from pg_locks
    where locktype = 'advisory' and objsubid = 2 and granted and drawn.seq >= 0
      and classid::bigint between 1163284000 and 1163384000
      and database = (select oid from pg_database where datname = current_database())) as writers`

/** Stores events in the transaction that causes them, so that both commit or neither. */
export async function appendEvents(tx: Transaction, events: readonly NewEvent[]): Promise<void> {
  if (events.length === 0) return
  const rows = NEW_EVENT.rows(tx.engine, events)
  const insert = (from: Sql) => sql`
    insert into events (${NEW_EVENT.list}) select ${NEW_EVENT.list} from ${from} where true
    on conflict (cause) do nothing`
  await tx.query(
    tx.engine === 'postgres'
      ? sql`with writing as materialized (${LOCK_POSITION}) ${insert(sql`writing cross join ${rows} as r`)}`
      : insert(sql`${rows} as r`),
  )
  tx.announce('events')
}

export type EventRow = {
  seq: number
  subject: string | null
  job_id: string | null
  type: EventType
  data: string
  created_at: number
}

/** Absent fields match every event. */
export interface EventFilter {
  subject?: string
  jobId?: string
}

/** Events between two positions of the log, in order. Up to `findHead` no further event can appear between them. */
export function readEvents(
  db: Queryable,
  { after, upTo, filter, limit }: { after: number; upTo: number; filter: EventFilter; limit: number },
): Promise<EventRow[]> {
  const conditions: Sql[] = [sql`seq > ${after}`, sql`seq <= ${upTo}`]
  if (filter.subject !== undefined) conditions.push(sql`subject = ${filter.subject}`)
  if (filter.jobId !== undefined) conditions.push(sql`job_id = ${filter.jobId}`)
  return db.query<EventRow>(sql`
    select seq, subject, job_id, type, data, created_at from events
    where ${join(conditions, ' and ')} order by seq limit ${limit}`)
}

export interface Head {
  /** Up to here the log is complete: no event can appear below it any more. */
  seq: number
  /** The last number given out. There is no event above it yet. */
  newest: number
}

/**
 * Finds how far the log can be read without a gap. On PostgreSQL, transactions commit in another order than they draw
 * their numbers, so the writers' locks tell which numbers may still appear. Read the events in a later statement: its
 * snapshot contains every writer that held no lock here.
 */
export async function findHead(db: Queryable): Promise<Head> {
  const [row] = await db.query<{ newest: number; low: number | null }>(
    db.engine === 'postgres'
      ? FIND_HEAD_ON_POSTGRES
      : sql`select coalesce(max(seq), 0) as newest, null as low from sqlite_sequence where name = 'events'`,
  )
  const newest = row?.newest ?? 0
  return { seq: Math.min(newest, row?.low ?? newest), newest }
}

/** The last position that was deleted. A reader that has not seen it has missed events. */
export async function findTrimmed(db: Queryable): Promise<number> {
  const [row] = await db.query<{ trimmed: number }>(sql`select trimmed_seq as trimmed from event_log where id = 1`)
  return row?.trimmed ?? 0
}

/** Deletes old events, a bounded number at a time. True when there are more to delete. */
export function trimEvents(db: Database, { beforeMs, limit }: { beforeMs: number; limit: number }): Promise<boolean> {
  return db.transaction(async (tx) => {
    const old = await tx.query<{ seq: number }>(sql`
      delete from events where seq in (
        select seq from events where created_at < ${beforeMs} order by seq limit ${limit}) returning seq`)
    if (old.length === 0) return false
    const last = old.reduce((max, { seq }) => Math.max(max, seq), 0)
    await tx.query(sql`update event_log set trimmed_seq = ${last} where id = 1 and trimmed_seq < ${last}`)
    return old.length === limit
  })
}

/**
 * Deletes a bounded number of events of these jobs; true if there may be more. The log has gaps anyway, so a stream that
 * replays only skips them.
 */
export async function deleteEventsOf(tx: Transaction, jobIds: readonly string[], limit: number): Promise<boolean> {
  const deleted = await tx.query(sql`
    delete from events where seq in (
      select seq from events where ${isAmong(tx.engine, sql`job_id`, jobIds)} limit ${limit}) returning seq`)
  return deleted.length === limit
}
