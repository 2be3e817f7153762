import { bytesOf, MAX_PAGE_BYTES } from '../../db/bounded-page.ts'
import type { Queryable, Transaction } from '../../db/database.ts'
import { isAmong, rowsOf } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'

/** A list reads no more pauses than this: a job may ask any number of times. */
const MAX_PAUSES = 500

const DOCUMENTS = [sql`questions`, sql`answers`]

/** For a `select` from `jobs`: the size of the additional columns that `findPauses` reads. */
export const PAUSE_BYTES = sql`coalesce((select sum(${bytesOf(DOCUMENTS)}) from job_runs where job_id = jobs.id), 0)`

export type AskedQuestions = { run_id: string; questions: string }
export type UnusedAnswer = { job_id: string; run_seq: number }

/** The questions with which these runs paused. Each job is locked. */
export async function recordQuestions(tx: Transaction, asked: readonly AskedQuestions[]): Promise<void> {
  if (asked.length === 0) return
  await tx.query(sql`
    update job_runs set questions = r.questions
    from ${rowsOf(tx.engine, asked, { run_id: 'text', questions: 'text' })} as r where job_runs.run_id = r.run_id`)
}

/** The answer to the questions of a run. */
export async function recordAnswer(
  tx: Transaction,
  { runId, answers, atMs }: { runId: string | null; answers: string; atMs: number },
): Promise<void> {
  await tx.query(sql`update job_runs set answers = ${answers}, answered_at = ${atMs} where run_id = ${runId}`)
}

/** Another client of the runtime answered first, so these answers were not used. */
export async function dropAnswers(tx: Transaction, unused: readonly UnusedAnswer[]): Promise<void> {
  for (const { job_id, run_seq } of unused) {
    await tx.query(sql`
      update job_runs set answers = null, answered_at = null where job_id = ${job_id} and run_seq = ${run_seq}`)
  }
}

/** A pause of a job that is over. Null documents: the pauses after it fill the page. */
export type PauseRow = {
  job_id: string
  run_seq: number
  questions: string | null
  answers: string | null
  answered_at: number | null
}

/** The pauses of these jobs that are over, oldest first. If their documents exceed 2 MB, only the newest have them. */
export async function findPauses(db: Queryable, jobIds: readonly string[]): Promise<Map<string, PauseRow[]>> {
  if (jobIds.length === 0) return new Map()
  const rows = await db.query<PauseRow>(sql`
    select job_id, run_seq, answered_at,
      case when bytes_so_far <= ${MAX_PAGE_BYTES} then questions end as questions,
      case when bytes_so_far <= ${MAX_PAGE_BYTES} then answers end as answers
    from (
      select job_id, job_runs.run_seq, answered_at, questions, answers,
        sum(${bytesOf(DOCUMENTS)}) over (order by job_id desc, job_runs.run_seq desc) as bytes_so_far
      from job_runs join jobs on jobs.id = job_id
      where ${isAmong(db.engine, sql`job_id`, jobIds)} and questions is not null
        and not (status = 'awaiting_input' and jobs.run_id = job_runs.run_id)
      order by job_id desc, job_runs.run_seq desc limit ${MAX_PAUSES}) as newest
    order by job_id, run_seq`)
  return Map.groupBy(rows, ({ job_id }) => job_id)
}
