import type { Database, Queryable, Transaction } from '../database.ts'
import { type Sql, sql } from '../sql.ts'
import { type ClockStep, serviceTimeAt } from './service-clock.ts'

interface Beat {
  databaseMs: number
  step: ClockStep
  /** The latest heartbeat of another node, which may have crashed since; null if there is none. */
  othersBeatAtMs: number | null
  /** The latest heartbeat of a running node that joined before this one; null if there is none. */
  elderBeatAtMs: number | null
  /** When a node last stopped, in the service's time. */
  ranUntilMs: number
}

/** The leases of a crashed node are free after this time. */
export const NODE_LIFE_MS = 10_000

type BeatRow = ClockStep & {
  database_ms: number
  others_expire_at: number | null
  elder_expires_at: number | null
  ran_until: number
}

const STEP_COLUMNS = sql`version, offset_ms, calendar_offset_ms, stepped_at`

/** Renews the node's row, or creates it (null: without a lease yet), and reads the database's clock and its last step. */
export async function beat(db: Database, { id, nowMs }: { id: string; nowMs: number | null }): Promise<Beat> {
  const expiresAtMs = nowMs === null ? 0 : nowMs + NODE_LIFE_MS
  const [row] = await db.query<BeatRow>(sql`
    insert into nodes (id, started_at, expires_at, joined)
    values (${id}, ${db.now}, ${expiresAtMs}, (select coalesce(max(joined), 0) + 1 from nodes))
    on conflict (id) do update set expires_at = excluded.expires_at
    returning ${db.now} as database_ms,
      (select version from service_clock) as version,
      (select offset_ms from service_clock) as offset_ms,
      (select calendar_offset_ms from service_clock) as calendar_offset_ms,
      (select stepped_at from service_clock) as stepped_at,
      (select ran_until from service_clock) as ran_until,
      (select max(other.expires_at) from nodes as other where other.id <> ${id} and other.expires_at > 0) as others_expire_at,
      (select max(elder.expires_at) from nodes as elder
        where elder.joined < nodes.joined and elder.expires_at > ${nowMs ?? 0}) as elder_expires_at`)
  if (!row) throw new Error('A heartbeat has no answer')
  const { database_ms: databaseMs, others_expire_at, elder_expires_at, ran_until: ranUntilMs, ...step } = row
  const beatOf = (expiry: number | null) => (expiry === null ? null : expiry - NODE_LIFE_MS)
  return {
    databaseMs,
    step,
    ranUntilMs,
    othersBeatAtMs: beatOf(others_expire_at),
    elderBeatAtMs: beatOf(elder_expires_at),
  }
}

/** False if another node was first to note a step. */
export async function noteStep(db: Queryable, step: ClockStep): Promise<boolean> {
  const noted = await db.query(sql`
    update service_clock set version = ${step.version}, offset_ms = ${step.offset_ms},
      calendar_offset_ms = ${step.calendar_offset_ms}, stepped_at = ${step.stepped_at}
    where version = ${step.version - 1} returning id`)
  return noted.length > 0
}

/** A condition: the node named in this column has stopped, or has lost its connection to the database. */
export function isStopped(node: Sql, nowMs: number): Sql {
  return sql`not exists (select 1 from nodes where nodes.id = ${node} and nodes.expires_at > ${nowMs})`
}

export async function removeNode(db: Database, { id, nowMs }: { id: string; nowMs: number }): Promise<void> {
  await db.transaction(async (tx) => {
    await tx.query(sql`delete from nodes where id = ${id}`)
    await noteRun(tx, nowMs)
  })
}

/** Frees all leases at once. Only for a process that is known to be the only one, as on SQLite. */
export async function removeAllNodes(db: Database): Promise<void> {
  await db.transaction(async (tx) => {
    const nodes = await tx.query<{ expires_at: number }>(sql`delete from nodes returning expires_at`)
    await noteRun(tx, Math.max(0, ...nodes.map(({ expires_at }) => expires_at - NODE_LIFE_MS)))
  })
}

async function noteRun(tx: Transaction, untilMs: number): Promise<void> {
  await tx.query(sql`update service_clock set ran_until = ${untilMs} where ran_until < ${untilMs}`)
}

/** Deletes a bounded number of rows of nodes that stopped before this time; true if there may be more. */
export async function trimNodes(
  db: Queryable,
  { beforeMs, limit }: { beforeMs: number; limit: number },
): Promise<boolean> {
  const deleted = await db.query(sql`
    delete from nodes where id in (select id from nodes where expires_at < ${beforeMs} limit ${limit}) returning id`)
  return deleted.length === limit
}

export async function countRunningNodes(db: Database): Promise<number> {
  const [row] = await db.query<ClockStep & { database_ms: number }>(
    sql`select ${db.now} as database_ms, ${STEP_COLUMNS} from service_clock`,
  )
  const nowMs = row ? Math.floor(serviceTimeAt(row.database_ms, row)) : 0
  const [counted] = await db.query<{ running: number }>(
    sql`select count(*) as running from nodes where expires_at > ${nowMs}`,
  )
  return counted?.running ?? 0
}
