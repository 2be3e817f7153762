import { LockTimeout } from '../../db/database.ts'
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
 * Begins the turns that wait for the end of the turn before them, and those whose `run_at` has come. `after` is the last
 * thread of the round before; `areWanted`: turns still wait.
 */
export async function beginTurns(
  context: JobContext,
  after: string | null,
): Promise<{ areWanted: boolean; last: string | null }> {
  const { db, clock } = context
  const isNext = sql`waits_on is not null and waits_on > ${after ?? ''}`
  // Two parts, each with its index: delayed jobs whose time has not come are not read.
  const waiting = await db.query<{ thread_id: string; job_id: string }>(sql`
    select waits_on as thread_id, min(job_id) as job_id from (
      select waits_on, job_id from job_checks where ${isNext} and not_before is null
      union all
      select waits_on, job_id from job_checks where ${isNext} and not_before <= ${clock.calendar()}) as waiting
    group by waits_on order by waits_on limit ${THREADS_PER_ROUND}`)
  if (waiting.length === 0) return { areWanted: after !== null, last: null }
  const ids = waiting.map(({ thread_id }) => thread_id)
  const busy = await db.query<{ thread_id: string }>(sql`
    select distinct thread_id from jobs cross join uncommon_jobs left join job_checks on job_id = jobs.id
    where ${isAmong(db.engine, sql`thread_id`, ids)} and uncommon_jobs.id = jobs.id and ${IS_UNFINISHED}
      and waits_on is null`)
  const isBusy = new Set(busy.map(({ thread_id }) => thread_id))
  for (const { thread_id, job_id } of waiting) if (!isBusy.has(thread_id)) await beginUnlessLocked(context, job_id)
  return { areWanted: true, last: waiting.length < THREADS_PER_ROUND ? null : (ids.at(-1) ?? null) }
}

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
