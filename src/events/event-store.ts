import type { Database, Queryable, Transaction } from '../db/database.ts'
import { rowsOf } from '../db/rows.ts'
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
  /** Whose stream it belongs to; null is for admins alone. */
  subject: string | null
  job_id: string | null
  type: EventType
  /** What brought it about; one cause makes one event, however often it is reported. */
  cause: string
  data: string
  created_at: number
}

// The last number drawn. As the name of a lock it takes two halves of 31 bits, the first counted from 1163284000.
const LAST_DRAWN = sql`(select case when is_called then last_value else last_value - 1 end as seq from events_seq_seq)`

/** Taken before a number is drawn, held until the end: all numbers of this transaction will be above it. */
const HOLD_PLACE = sql`
  select pg_advisory_xact_lock_shared((1163284000 + seq / 2147483648)::int, (seq % 2147483648)::int) as held
  from ${LAST_DRAWN} as drawn`

/** The last number is read first and the locks after it: who drew up to that number either holds its lock or is done. */
const FIND_HEAD_ON_POSTGRES = sql`
  select drawn.seq as newest, writers.low
  from ${LAST_DRAWN} as drawn
  cross join lateral (
    select min((classid::bigint - 1163284000) * 2147483648 + objid::bigint) as low from pg_locks
    where locktype = 'advisory' and objsubid = 2 and granted and drawn.seq >= 0
      and classid::bigint between 1163284000 and 1163384000
      and database = (select oid from pg_database where datname = current_database())) as writers`

/** Part of the transaction that brings the events about: they are there exactly when their cause is. */
export async function appendEvents(tx: Transaction, events: readonly NewEvent[]): Promise<void> {
  if (events.length === 0) return
  const rows = rowsOf(tx.engine, events, {
    subject: 'text',
    job_id: 'text',
    type: 'text',
    cause: 'text',
    data: 'text',
    created_at: 'bigint',
  })
  const insert = (from: Sql) => sql`
    insert into events (subject, job_id, type, cause, data, created_at)
    select r.subject, r.job_id, r.type, r.cause, r.data, r.created_at from ${from} where true
    on conflict (cause) do nothing`
  await tx.query(
    tx.engine === 'postgres'
      ? sql`with writing as materialized (${HOLD_PLACE}) ${insert(sql`writing cross join ${rows} as r`)}`
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

/** Which part of the log a reader wants. */
export interface EventFilter {
  subject?: string
  jobId?: string
}

/** Events between two places in the log, in its order. Up to `findHead` nothing can still appear between them. */
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
  /** Up to here the log is complete: whatever is not there by now never will be. */
  seq: number
  /** The last number given out; beyond it there is nothing yet. */
  newest: number
}

/**
 * On PostgreSQL numbers appear out of order, and neither their order nor that of transaction ids tells what is still to
 * come; the locks of the writers do. The events must be read in a later statement, whose snapshot has every writer that
 * was no longer seen here.
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

/** The last place that was trimmed away; readers who stand before it have missed something. */
export async function findTrimmed(db: Queryable): Promise<number> {
  const [row] = await db.query<{ trimmed: number }>(sql`select trimmed_seq as trimmed from event_log where id = 1`)
  return row?.trimmed ?? 0
}

/** Forgets what is older, a bounded number at a time; true when there is more to forget. */
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
