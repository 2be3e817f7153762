import type { Queryable } from '../../db/database.ts'
import { rowsOf } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'

/** What a round of the sweep has to do. */
export interface PendingWork {
  /** The `run_at` of a delayed job has come. */
  hasDelayed: boolean
  /** Turns wait for the end of the turn before them. */
  hasTurns: boolean
  /** A check is due; another worker may hold it. */
  hasDue: boolean
  /** Owners are to be reminded of questions, or questions have expired. */
  hasQuestions: boolean
  /** The limited types of which jobs wait for a place. */
  queuedTypes: ReadonlySet<string>
}

/**
 * One statement for each round of the sweep, however many jobs there are: each part reads the first entry of an index. With
 * `exists` instead of `min`, PostgreSQL may read the whole table, because it expects to find a row early.
 */
export async function findPendingWork(
  db: Queryable,
  { nowMs, calendarMs, limitedTypes }: { nowMs: number; calendarMs: number; limitedTypes: readonly string[] },
): Promise<PendingWork> {
  const types = rowsOf(
    db.engine,
    limitedTypes.map((name) => ({ name })),
    { name: 'text' },
  )
  const rows = await db.query<{ work: string; name: string }>(sql`
    select 'delayed' as work, '' as name
      where (select min(not_before) from job_checks where not_before is not null) <= ${calendarMs}
    union all select 'turns', ''
      where (select min(waits_on) from job_checks where waits_on is not null and not_before is null) is not null
    union all select 'due', '' where (select min(due_at) from job_checks) <= ${nowMs}
    union all select 'questions', ''
      where (select min(question_at) from job_checks where question_at is not null) <= ${nowMs}
    union all select 'queued', name from ${types} as r
      where (select min(owner) from job_checks where limited_type = name and queued_at is not null) is not null`)
  const has = (wanted: string) => rows.some(({ work }) => work === wanted)
  return {
    hasDelayed: has('delayed'),
    hasTurns: has('turns'),
    hasDue: has('due'),
    hasQuestions: has('questions'),
    queuedTypes: new Set(rows.filter(({ work }) => work === 'queued').map(({ name }) => name)),
  }
}
