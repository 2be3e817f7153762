import { toRfc3339 } from '../core/clock.ts'
import { Columns } from '../db/columns.ts'
import type { Database, Queryable, Transaction } from '../db/database.ts'
import { isAmong, rowsOf } from '../db/rows.ts'
import { join, type Sql, sql } from '../db/sql.ts'

export const EVENT_TYPES = [
  'job.created',
  'job.updated',
  'job.completed',
  'job.failed',
  'job.cancelled',
  'job.awaiting_input',
  'job.reminder',
  'project.created',
  'project.updated',
  'project.deleted',
  'usage.threshold',
  'webhook.disabled',
  'webhook.test',
] as const

export type EventType = (typeof EVENT_TYPES)[number]

export type NewEvent = {
  /** The user whose stream gets it. Null: only admins get it. */
  subject: string | null
  job_id: string | null
  type: EventType
  /** Unique. A second event with the same cause is not stored. The cause of a job's event begins with the job's id. */
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

/** Stores events in the transaction that causes them, so that both commit together. */
export async function appendEvents(tx: Transaction, events: readonly NewEvent[]): Promise<void> {
  if (events.length === 0) return
  const lost = events.find(({ job_id, cause }) => job_id !== null && !cause.startsWith(`${job_id}:`))
  if (lost) throw new Error(`The cause ${lost.cause} does not begin with the id of its job`)
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

/** The event as clients get it: the data of a stream and the body of a webhook. */
export function eventText({ seq, type, created_at, data }: EventRow): string {
  const head = JSON.stringify({ id: String(seq), type, created_at: toRfc3339(created_at) })
  return `${head.slice(0, -1)},"data":${data}}`
}

/** Absent fields match every event. */
export interface EventFilter {
  subject?: string
  jobId?: string
}

const EVENT = sql`seq, subject, job_id, type, data, created_at`

/** Events between two positions of the log, in order. Up to `findHead` no further event can appear between them. */
export function readEvents(
  db: Queryable,
  { after, upTo, filter, limit }: { after: number; upTo: number; filter: EventFilter; limit: number },
): Promise<EventRow[]> {
  const conditions: Sql[] = [sql`seq > ${after}`, sql`seq <= ${upTo}`]
  if (filter.subject !== undefined) conditions.push(sql`subject = ${filter.subject}`)
  // A job has few events. The subquery finds them first; otherwise the engines would read the whole log from `after` on.
  const from =
    filter.jobId === undefined
      ? sql`events`
      : sql`(select ${EVENT} from events where ${isAboutJob(sql`${filter.jobId}`)} limit ${MAX_EVENTS_OF_JOB}) as found`
  return db.query<EventRow>(sql`
    select ${EVENT} from ${from} where ${join(conditions, ' and ')} order by seq limit ${limit}`)
}

/** Those of these events that are still stored. */
export async function findEvents(db: Queryable, seqs: readonly number[]): Promise<EventRow[]> {
  if (seqs.length === 0) return []
  const wanted = rowsOf(
    db.engine,
    seqs.map((seq) => ({ seq })),
    { seq: 'bigint' },
  )
  return db.query<EventRow>(sql`select ${EVENT} from events where seq in (select r.seq from ${wanted} as r)`)
}

/** The position of the event with this cause, which this transaction has appended. */
export async function findPositionOf(tx: Transaction, cause: string): Promise<number> {
  const [row] = await tx.query<{ seq: number }>(sql`select seq from events where cause = ${cause}`)
  if (!row) throw new Error(`There is no event of ${cause}`)
  return row.seq
}

/** A position of the log: every event after this time is behind it. Numbers follow time, so it is found by bisection. */
export async function findPositionAt(db: Queryable, atMs: number): Promise<number> {
  const { newest } = await findHead(db)
  let [low, high] = [await findOldest(db), newest]
  while (low < high) {
    const middle = Math.floor((low + high) / 2)
    const [event] = await db.query<{ seq: number; created_at: number }>(sql`
      select seq, created_at from events where seq > ${middle} order by seq limit 1`)
    if (event !== undefined && event.created_at < atMs) low = event.seq
    else high = middle
  }
  return low
}

/**
 * The jobs with an event of these types since a time, each as often as it has one. Null if events of that time may have been
 * trimmed, or if there are more than `maxRead` events of any type.
 */
export async function findJobsOfEvents(
  db: Queryable,
  { types, sinceMs, maxRead }: { types: readonly EventType[]; sinceMs: number; maxRead: number },
): Promise<string[] | null> {
  const after = await findPositionAt(db, sinceMs)
  // Without an older event, younger ones may have been trimmed.
  if ((await findTrimmed(db)) > 0 && after <= (await findOldest(db))) return null
  const rows = await db.query<{ id: string | null; read: number }>(sql`
    with recent as materialized (select job_id, type from events where seq > ${after} order by seq limit ${maxRead + 1})
    select null as id, count(*) as read from recent
    union all select job_id, 0 from recent where ${isAmong(db.engine, sql`type`, types)}`)
  if (rows.some(({ read }) => read > maxRead)) return null
  return rows.flatMap(({ id }) => (id === null ? [] : [id]))
}

/** More events than any job has. The limit makes both engines evaluate the subquery separately. */
const MAX_EVENTS_OF_JOB = 1_000_000

/**
 * The events of a job, read from the unique index of causes. This works in every collation, because digits sort before
 * letters.
 */
function isAboutJob(jobId: Sql): Sql {
  const id = sql`cast(${jobId} as text)`
  return sql`job_id = ${id} and cause > ${id} and cause < ${id} || 'zzzz'`
}

interface Head {
  /** The log is complete up to here: no new event can appear below this number. */
  seq: number
  /** The last number given out. There is no event above it yet. */
  newest: number
}

/**
 * Finds how far the log can be read without a gap. On PostgreSQL, transactions commit in another order than they draw their
 * numbers, so the writers' locks show which numbers may still appear. Read the events in a later statement: its snapshot
 * contains every writer that held no lock here.
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

/** The position before the first stored event; the newest one if none is stored. A restore does not change it. */
export async function findOldest(db: Queryable): Promise<number> {
  const [row] = await db.query<{ before: number | null }>(sql`select min(seq) - 1 as before from events`)
  return row?.before ?? (await findHead(db)).newest
}

/**
 * Deletes old events among the first of the log, a bounded number at a time. True when there may be more to delete.
 * Numbers follow time, so no index by age is needed. An event from a clock that was ahead is deleted later.
 */
export function trimEvents(db: Database, { beforeMs, limit }: { beforeMs: number; limit: number }): Promise<boolean> {
  return db.transaction(async (tx) => {
    const old = await tx.query<{ seq: number }>(sql`
      delete from events where seq in (
        select seq from (select seq, created_at from events order by seq limit ${limit}) as first
        where created_at < ${beforeMs}) returning seq`)
    if (old.length === 0) return false
    const last = old.reduce((max, { seq }) => Math.max(max, seq), 0)
    await tx.query(sql`update event_log set trimmed_seq = ${last} where id = 1 and trimmed_seq < ${last}`)
    return true
  })
}

/** Deletes a bounded number of events of this user's streams, and returns their positions. */
export async function deleteEventsFor(tx: Transaction, subject: string, limit: number): Promise<{ seq: number }[]> {
  return tx.query<{ seq: number }>(sql`
    delete from events where seq in (select seq from events where subject = ${subject} limit ${limit}) returning seq`)
}

export type DeletedEvent = Pick<EventRow, 'seq' | 'job_id' | 'data' | 'created_at'>

/**
 * Deletes a bounded number of events of these jobs. The log has gaps anyway, so a stream that replays only skips them.
 */
export async function deleteEventsOf(
  tx: Transaction,
  jobIds: readonly string[],
  limit: number,
): Promise<{ hasMore: boolean; events: DeletedEvent[] }> {
  const jobs = rowsOf(
    tx.engine,
    jobIds.map((id) => ({ id })),
    { id: 'text' },
  )
  const events = await tx.query<DeletedEvent>(sql`
    delete from events where seq in (
      select seq from ${jobs} as r join events on ${isAboutJob(sql`r.id`)} limit ${limit})
    returning seq, job_id, data, created_at`)
  return { hasMore: events.length === limit, events }
}

/** More than a log grows between a backup and the loss of what came after it. */
const SKIPPED_POSITIONS = 1_000_000_000

/**
 * For a log that was restored from a backup or replicated. Clients may have cursors of events that are lost. Without this,
 * new events would get the same numbers, and such a client would miss them. Every cursor from before is now one of trimmed
 * history, so that its stream begins with `reset`. Returns the last position of the log before this, and the new one.
 */
export async function skipPositions(tx: Transaction): Promise<{ from: number; to: number }> {
  const { newest } = await findHead(tx)
  // Logical replication of PostgreSQL copies the events, but not the sequence of their numbers.
  const [row] = await tx.query<{ last: number }>(sql`select coalesce(max(seq), 0) as last from events`)
  // Numbers above this one had no event that could be read.
  const from = Math.max(row?.last ?? 0, await findTrimmed(tx))
  const next = Math.max(newest, from) + SKIPPED_POSITIONS
  if (tx.engine === 'postgres') await tx.query(sql`select setval('events_seq_seq', cast(${next} as bigint)) as seq`)
  else {
    await tx.query(sql`delete from sqlite_sequence where name = 'events'`)
    await tx.query(sql`insert into sqlite_sequence (name, seq) values ('events', ${next})`)
  }
  await tx.query(sql`update event_log set trimmed_seq = ${next} where id = 1`)
  return { from, to: next }
}
