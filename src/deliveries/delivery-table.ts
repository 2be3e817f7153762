import type { ColumnType, Database, Queryable, Row, Transaction } from '../db/database.ts'
import { isStopped } from '../db/nodes/node-store.ts'
import { rowsOf } from '../db/rows.ts'
import { type Sql, sql } from '../db/sql.ts'

export interface DeliveryLease {
  token: string
  node: string
  nowMs: number
  untilMs: number
}

/**
 * A table of deliveries. Every one has the columns `state`, `attempts`, `next_attempt_at` (null: no attempt is left),
 * `lease_token`, `lease_node`, `lease_until`, `last_error` and `updated_at`.
 */
export interface DeliveryTable<Key extends Row> {
  name: Sql
  key: { readonly [Name in keyof Key]: ColumnType }
  /** The columns of its key, qualified with the table. */
  keyList: Sql
  /** The row is the one that `r` names. */
  isSame: Sql
  keyOf(row: Key): string
}

/** A condition: no worker sends the delivery. */
export function isUnleased(nowMs: number): Sql {
  return sql`(lease_until is null or lease_until <= ${nowMs} or ${isStopped(sql`lease_node`, nowMs)})`
}

/** Leases the deliveries whose keys `due` selects and locks. */
export function leaseRows<Key extends Row>(
  db: Database,
  { name, keyList, isSame }: DeliveryTable<Key>,
  { due, lease }: { due: Sql; lease: DeliveryLease },
): Promise<Key[]> {
  // Materialized: PostgreSQL might otherwise run the select more than once, and lease more than its limit.
  return db.query<Key>(sql`
    with due as materialized (${due})
    update ${name} set lease_token = ${lease.token}, lease_node = ${lease.node}, lease_until = ${lease.untilMs},
      attempts = attempts + 1
    from due as r where ${isSame} returning ${keyList}`)
}

/** The result of one attempt. */
export type RowMark = {
  lease_token: string
  attempts: number
  state: string
  /** Null: no further attempt. */
  next_attempt_at: number | null
  last_error: string | null
}

const MARK = {
  lease_token: 'text',
  attempts: 'bigint',
  state: 'text',
  next_attempt_at: 'bigint',
  last_error: 'text',
} as const

/**
 * Writes the marks whose lease is still valid, and returns them. The others change nothing: the new lease holder writes its
 * own marks. `atMs` is the time of this write: the statistics count deliveries by it soon after, and never look back.
 */
export async function markRows<Key extends Row, Mark extends Key & RowMark>(
  tx: Transaction,
  { name, key, keyList, isSame, keyOf }: DeliveryTable<Key>,
  wanted: {
    marks: readonly Mark[]
    atMs: number
    /** Further columns of the marks, and the assignments that use them. */
    columns: Readonly<Record<string, ColumnType>>
    set: Sql
  },
): Promise<Mark[]> {
  const { marks, atMs, columns, set } = wanted
  const held = await tx.query<Key>(sql`
    update ${name} set
      state = r.state, attempts = r.attempts, next_attempt_at = r.next_attempt_at, last_error = r.last_error,
      updated_at = ${atMs}, lease_token = null, lease_until = null, lease_node = null, ${set}
    from ${rowsOf<string>(tx.engine, marks, { ...key, ...MARK, ...columns })} as r
    where ${isSame} and ${name}.lease_token = r.lease_token
    returning ${keyList}`)
  const counted = new Set(held.map(keyOf))
  return marks.filter((mark) => counted.has(keyOf(mark)))
}

/** When the next delivery becomes due after now; null if there is none. */
export async function nextDueAt(
  db: Queryable,
  { name }: Pick<DeliveryTable<Row>, 'name'>,
  nowMs: number,
): Promise<number | null> {
  const [row] = await db.query<{ due: number | null }>(
    sql`select min(next_attempt_at) as due from ${name} where next_attempt_at > ${nowMs}`,
  )
  return row?.due ?? null
}

const MAX_COUNTED = 10_000

/** How many rows there are; `max + 1` stands for any number above `max`. */
export function countSome(from: Sql, max = MAX_COUNTED): Sql {
  return sql`(select count(*) from (select 1 ${from} limit ${max + 1}) as counted)`
}
