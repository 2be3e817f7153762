import { firstIdAt } from '../../core/ids.ts'
import type { Database, Queryable } from '../../db/database.ts'
import { isAmong, rowsOf } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import { type TrimmedPage, type TrimRange, trimPage } from '../../db/trim-page.ts'

/** Deletes one page of old callbacks. A callback stays if its job is unfinished or ended too recently. */
export function trimCallbacks(db: Database, range: TrimRange): Promise<TrimmedPage | null> {
  const { after, beforeMs, limit } = range
  return trimPage(db, range, {
    lock: 'history:callbacks',
    find: async (tx) => {
      const rows = await tx.query<{ id: string; ended: number }>(sql`
        select h.id, case when h.job_id is null or j.finished_at < ${beforeMs} then 1 else 0 end as ended
        from callbacks h left join jobs j on j.id = h.job_id
        where h.id > ${after} and h.id < ${firstIdAt('cbk', beforeMs)} order by h.id limit ${limit}`)
      return rows.map(({ id, ended }) => ({ id, deletable: ended === 1 }))
    },
    remove: async (tx, ids) => {
      const wanted = rowsOf(tx.engine, ids, { id: 'text' })
      return (await tx.query(sql`delete from callbacks where id in (select id from ${wanted} as r) returning id`))
        .length
    },
  })
}

/**
 * Deletes one page of old timeline entries, in the order of their jobs: the table has no other index. An entry stays if its
 * job is unfinished or ended too recently.
 */
export function trimTimeline(db: Database, range: TrimRange): Promise<TrimmedPage | null> {
  const { beforeMs, limit } = range
  const { job_id: lastJob, id: lastEntry } = readPlace(range.after)
  return trimPage(db, range, {
    lock: 'history:timeline',
    find: async (tx) => {
      const rows = await tx.query<{ job_id: string; id: string; old: number }>(sql`
        select h.job_id, h.id, case when h.at < ${beforeMs} and j.finished_at < ${beforeMs} then 1 else 0 end as old
        from job_timeline h join jobs j on j.id = h.job_id
        where (h.job_id, h.id) > (${lastJob}, ${lastEntry}) and h.job_id < ${firstIdAt('job', beforeMs)}
        order by h.job_id, h.id limit ${limit}`)
      return rows.map(({ job_id, id, old }) => ({ id: `${job_id} ${id}`, deletable: old === 1 }))
    },
    remove: async (tx, places) => {
      const entries = places.map(({ id }) => readPlace(id))
      const wanted = rowsOf(tx.engine, entries, { job_id: 'text', id: 'text' })
      const deleted = await tx.query(sql`
        delete from job_timeline where (job_id, id) in (select job_id, id from ${wanted} as r) returning id`)
      return deleted.length
    },
  })
}

/** A job's id and an entry's, as one text. */
function readPlace(place: string): { job_id: string; id: string } {
  const [job_id = '', id = ''] = place.split(' ')
  return { job_id, id }
}

/** Which of these jobs ended before this time. An ended job never reopens, so the answer stays true. */
export async function endedBefore(db: Queryable, jobIds: readonly string[], beforeMs: number): Promise<Set<string>> {
  const rows = await db.query<{ id: string }>(sql`
    select id from jobs where ${isAmong(db.engine, sql`id`, jobIds)} and finished_at < ${beforeMs}`)
  return new Set(rows.map(({ id }) => id))
}
