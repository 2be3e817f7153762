import { firstIdAt } from '../../core/ids.ts'
import { bytesOf, takeBatch } from '../../db/bounded-page.ts'
import type { Database, Queryable, Transaction } from '../../db/database.ts'
import { isAmong, rowsOf } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import { type OldRow, type TrimmedPage, type TrimRange, trimPage } from '../../db/trim-page.ts'
import { CALLBACKS } from '../callback-store.ts'
import { JOBS } from '../job-row.ts'

/** Deletes one page of old callbacks. A callback stays if its job is unfinished or ended too recently. */
export function trimCallbacks(db: Database, range: TrimRange): Promise<TrimmedPage | null> {
  return trimPage(db, range, {
    lock: 'history:callbacks',
    find: findOldCallbacks,
    remove: async (tx, ids) => {
      const wanted = rowsOf(tx.engine, ids, { id: 'text' })
      return (await tx.query(sql`delete from callbacks where id in (select id from ${wanted} as r) returning id`))
        .length
    },
  })
}

async function findOldCallbacks(tx: Transaction, { after, beforeMs, limit }: TrimRange): Promise<OldRow[]> {
  const found = await tx.query<{ id: string; job_id: string | null; bytes: number }>(sql`
    select id, job_id, ${bytesOf(CALLBACKS.large)} as bytes from callbacks
    where id > ${after} and id < ${firstIdAt('cbk', beforeMs)} order by id limit ${limit}`)
  const { rows } = takeBatch(found, limit)
  const ended = await endedBefore(tx, jobsOf(rows), beforeMs)
  return rows.map(({ id, job_id }) => ({ id, deletable: job_id === null || ended.has(job_id) }))
}

/**
 * Deletes one page of old timeline entries, in the order of their jobs: the table has no other index. An entry stays if its
 * job is unfinished or ended too recently.
 */
export function trimTimeline(db: Database, range: TrimRange): Promise<TrimmedPage | null> {
  return trimPage(db, range, {
    lock: 'history:timeline',
    find: findOldEntries,
    remove: async (tx, places) => {
      const entries = places.map(({ id }) => readPlace(id))
      const wanted = rowsOf(tx.engine, entries, { job_id: 'text', id: 'text' })
      const deleted = await tx.query(sql`
        delete from job_timeline where (job_id, id) in (select job_id, id from ${wanted} as r) returning id`)
      return deleted.length
    },
  })
}

async function findOldEntries(tx: Transaction, { after, beforeMs, limit }: TrimRange): Promise<OldRow[]> {
  const { job_id: lastJob, id: lastEntry } = readPlace(after)
  const rows = await tx.query<{ job_id: string; id: string; old: number }>(sql`
    select job_id, id, case when at < ${beforeMs} then 1 else 0 end as old from job_timeline
    where (job_id, id) > (${lastJob}, ${lastEntry}) and job_id < ${firstIdAt('job', beforeMs)}
    order by job_id, id limit ${limit}`)
  const ended = await endedBefore(tx, jobsOf(rows), beforeMs)
  return rows.map(({ job_id, id, old }) => ({ id: `${job_id} ${id}`, deletable: old === 1 && ended.has(job_id) }))
}

function jobsOf(rows: readonly { job_id: string | null }[]): string[] {
  return [...new Set(rows.flatMap(({ job_id }) => (job_id === null ? [] : [job_id])))]
}

/** A job's id and an entry's, as one text. */
function readPlace(place: string): { job_id: string; id: string } {
  const [job_id = '', id = ''] = place.split(' ')
  return { job_id, id }
}

/** Which of these jobs ended before this time. An ended job never reopens, so the answer stays true. */
export async function endedBefore(db: Queryable, jobIds: readonly string[], beforeMs: number): Promise<Set<string>> {
  const isWanted = isAmong(db.engine, sql`id`, jobIds)
  let left: readonly { id: string; bytes: number }[] = await db.query<{ id: string; bytes: number }>(
    sql`select id, ${bytesOf(JOBS.large)} as bytes from jobs where ${isWanted} and finished_at is not null`,
  )
  const ended = new Set<string>()
  while (left.length > 0) {
    const { rows, hasMore } = takeBatch(left, left.length)
    const ids = rows.map(({ id }) => id)
    const found = await db.query<{ id: string }>(sql`
      select id from jobs where ${isAmong(db.engine, sql`id`, ids)} and finished_at < ${beforeMs}`)
    for (const { id } of found) ended.add(id)
    left = left.slice(rows.length)
    // The documents come before `finished_at` in the row, and SQLite reads through them to find its value.
    if (hasMore) await new Promise(setImmediate)
  }
  return ended
}
