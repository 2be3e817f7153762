import { firstIdAt, type IdPrefix } from '../../core/ids.ts'
import type { Database, Queryable, Transaction } from '../../db/database.ts'
import { isAmong, rowsOf } from '../../db/rows.ts'
import { type Sql, sql } from '../../db/sql.ts'
import { type TrimmedPage, type TrimRange, trimPage } from '../../db/trim-page.ts'

export type JobHistory = 'callbacks' | 'timeline'

const TABLES: Record<JobHistory, { name: Sql; prefix: IdPrefix }> = {
  callbacks: { name: sql`callbacks`, prefix: 'cbk' },
  timeline: { name: sql`job_timeline`, prefix: 'tml' },
}

/** Deletes one page of old entries. An entry stays while its job has not ended long enough ago. */
export function trimJobHistory(db: Database, kind: JobHistory, range: TrimRange): Promise<TrimmedPage | null> {
  const { name, prefix } = TABLES[kind]
  return trimPage(db, range, {
    lock: `history:${kind}`,
    find: async (tx) => {
      const rows = await tx.query<{ id: string; ended: number }>(sql`
        select h.id, case when h.job_id is null or j.finished_at < ${range.beforeMs} then 1 else 0 end as ended
        from ${name} h left join jobs j on j.id = h.job_id
        where h.id > ${range.after} and h.id < ${firstIdAt(prefix, range.beforeMs)} order by h.id limit ${range.limit}`)
      return rows.map(({ id, ended }) => ({ id, deletable: ended === 1 }))
    },
    remove: (tx, ids) => deleteEntries(tx, name, ids),
  })
}

/** Which of these jobs ended before this time. An ended job never reopens, so the answer stays true. */
export async function endedBefore(db: Queryable, jobIds: readonly string[], beforeMs: number): Promise<Set<string>> {
  const rows = await db.query<{ id: string }>(sql`
    select id from jobs where ${isAmong(db.engine, sql`id`, jobIds)} and finished_at < ${beforeMs}`)
  return new Set(rows.map(({ id }) => id))
}

async function deleteEntries(tx: Transaction, table: Sql, ids: readonly { id: string }[]): Promise<number> {
  const wanted = rowsOf(tx.engine, ids, { id: 'text' })
  const deleted = await tx.query(sql`delete from ${table} where id in (select id from ${wanted} as r) returning id`)
  return deleted.length
}
