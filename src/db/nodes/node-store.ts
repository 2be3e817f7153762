import type { Database, Queryable } from '../database.ts'
import { type Sql, sql } from '../sql.ts'

/** Renews the node's row for this long by the database's clock, and returns the database's time. */
export async function beat(db: Database, { id, lifeMs }: { id: string; lifeMs: number }): Promise<number> {
  const [row] = await db.query<{ expires_at: number }>(sql`
    insert into nodes (id, started_at, expires_at) values (${id}, ${db.now}, ${db.now} + ${lifeMs})
    on conflict (id) do update set expires_at = excluded.expires_at returning expires_at`)
  return (row?.expires_at ?? 0) - lifeMs
}

/** A condition: the node named in this column has stopped, or has lost its connection to the database. */
export function isStopped(node: Sql, nowMs: number): Sql {
  return sql`not exists (select 1 from nodes where nodes.id = ${node} and nodes.expires_at > ${nowMs})`
}

export async function removeNode(db: Queryable, id: string): Promise<void> {
  await db.query(sql`delete from nodes where id = ${id}`)
}

/** Frees all leases at once. Only for a process that is known to be the only one, as on SQLite. */
export async function removeAllNodes(db: Queryable): Promise<void> {
  await db.query(sql`delete from nodes`)
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
  const [row] = await db.query<{ running: number }>(
    sql`select count(*) as running from nodes where expires_at > ${db.now}`,
  )
  return row?.running ?? 0
}
