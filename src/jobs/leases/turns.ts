import { LockTimeout } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import type { JobContext } from '../job-context.ts'
import { changeJobs } from '../job-store.ts'
import { deadlineFrom, limitedTypeOf } from '../job-types.ts'
import { settleJobs } from '../settlement/settle.ts'
import { appendTimeline, type TimelineKind } from '../settlement/timeline-store.ts'
import { lockThread } from '../thread-store.ts'
import { findUnfinishedOn, IS_UNFINISHED } from '../uncommon-jobs.ts'

/** One round looks at this many threads on which turns wait. The next round continues with the next ones. */
const THREADS_PER_ROUND = 200

/**
 * Begins the turns that wait for the end of the turn before them. A delayed job is such a turn once its `run_at` has come.
 * `after` is the last thread of the round before; `areWanted`: turns still wait.
 */
export async function beginTurns(
  context: JobContext,
  after: string | null,
): Promise<{ areWanted: boolean; last: string | null }> {
  const { db, clock } = context
  const due = await db.query<WaitingTurn>(sql`
    update job_checks set not_before = null where job_id in (
      select job_id from job_checks where not_before <= ${clock.calendar()} order by not_before limit ${THREADS_PER_ROUND}
      ${forUpdateSkipLocked(db.engine)})
    returning waits_on as thread_id, job_id`)
  const waiting = await db.query<WaitingTurn>(sql`
    select waits_on as thread_id, min(job_id) as job_id from job_checks
    where waits_on is not null and not_before is null and waits_on > ${after ?? ''}
    group by waits_on order by waits_on limit ${THREADS_PER_ROUND}`)
  const turns = [...due, ...waiting]
  if (turns.length === 0) return { areWanted: after !== null, last: null }
  const ids = [...new Set(turns.map(({ thread_id }) => thread_id))]
  const unfinished = await db.query<{ thread_id: string; first: string; is_busy: number }>(sql`
    select thread_id, min(jobs.id) as first, max(case when waits_on is null then 1 else 0 end) as is_busy
    from jobs cross join uncommon_jobs left join job_checks on job_id = jobs.id
    where ${isAmong(db.engine, sql`thread_id`, ids)} and uncommon_jobs.id = jobs.id and ${IS_UNFINISHED}
    group by thread_id`)
  const next = new Set(unfinished.filter(({ is_busy }) => is_busy === 0).map(({ first }) => first))
  for (const jobId of new Set(turns.map(({ job_id }) => job_id))) {
    if (next.has(jobId)) await beginUnlessLocked(context, jobId)
  }
  return { areWanted: true, last: waiting.length < THREADS_PER_ROUND ? null : (waiting.at(-1)?.thread_id ?? null) }
}

type WaitingTurn = { thread_id: string; job_id: string }

/** A turn whose job or thread another transaction locks is left for a later round, so that it delays no other. */
async function beginUnlessLocked(context: JobContext, jobId: string): Promise<void> {
  try {
    await beginTurn(context, jobId)
  } catch (error) {
    if (!(error instanceof LockTimeout)) throw error
  }
}

/**
 * Its deadline begins now. If its type limits the active runs, it now waits for a place. The delayed job of a user that was
 * blocked meanwhile is cancelled.
 */
async function beginTurn(context: JobContext, jobId: string): Promise<void> {
  const { ids, types, findRefusal } = context
  await settleJobs(context, async (tx, settlement) => {
    const [job] = await settlement.lock([jobId], { skipLocked: true })
    const thread = job && (await lockThread(tx, job.thread_id))
    if (!thread || job.waits_on === null) return
    const [first] = await findUnfinishedOn(tx, thread.id)
    if (first?.id !== jobId) return
    const { atMs } = settlement
    const note = (kind: TimelineKind, detail: object) =>
      appendTimeline(tx, [
        { id: ids.next('tml'), job_id: jobId, at: atMs, kind, via: null, detail: JSON.stringify(detail) },
      ])
    const reason = job.run_at === null || job.created_by === null ? null : await findRefusal(tx, job.created_by)
    // The erasure itself cancels the job.
    if (reason === 'user_erased') return
    if (reason !== null) {
      job.cancel_requested_at = atMs
      await note('cancel_requested', { reason })
      settlement.apply({ jobId, runId: null, verdict: { kind: 'cancelled' }, via: null, traces: null })
      return settlement.write()
    }
    const type = types.get(job.type)
    const deadlineMs = type ? deadlineFrom(atMs, type) : atMs
    const limitedType = limitedTypeOf(type)
    const isLimited = limitedType !== null
    await changeJobs(tx, [{ id: jobId, deadline_at: deadlineMs, updated_at: atMs }])
    await tx.query(sql`
      update job_checks set waits_on = null, not_before = null, limited_type = ${limitedType},
        queued_at = ${isLimited ? atMs : null}, due_at = ${isLimited ? deadlineMs : atMs}
      where job_id = ${jobId}`)
    await note('turn_began', {})
  })
}
