import { sql } from '../../../src/db/sql.ts'
import type { Evidence } from './evidence.ts'

/** I8: every reader of a stream saw every event once and in order, through all breaks. */
export async function checkStreams({ store, streams, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ seq: number; subject: string | null; job_id: string | null }>(
    sql`select seq, subject, job_id from events order by seq`,
  )
  const deleted = await store.query<{ seq: number }>(sql`select seq from sim_deleted_events`)
  const gone = new Set(deleted.map(({ seq }) => seq))
  for (const { reader, subject, jobId } of streams) {
    const wanted = rows.filter(
      (row) => (subject === null || row.subject === subject) && (jobId === null || row.job_id === jobId),
    )
    const due = wanted
      .map(({ seq }) => seq)
      .filter((seq) => seq > reader.after)
      .join()
    const seen = reader.ids.filter((seq) => !gone.has(seq)).join()
    if (seen !== due) violate('I8', `${reader.path} after ${reader.after} saw [${seen}] of [${due}]`)
    if (reader.resets > 0) violate('I8', `${reader.path} was reset though nothing was trimmed`)
  }
}
