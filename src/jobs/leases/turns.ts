import { LockTimeout, type Queryable, type Transaction } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import { isTerminal } from '../job.ts'
import type { CancelReason, JobContext } from '../job-context.ts'
import type { SlimJob } from '../job-row.ts'
import { changeJobs } from '../job-store.ts'
import { deadlineFrom, limitedTypeOf } from '../job-types.ts'
import { settleJobs } from '../settlement/settle.ts'
import type { Settlement, SettlingJob } from '../settlement/settlement.ts'
import { appendTimeline, type TimelineKind } from '../settlement/timeline-store.ts'
import { lockThread } from '../thread-store.ts'
import { findUnfinishedOn, IS_UNFINISHED } from '../uncommon-jobs.ts'
import type { PendingWork } from './pending-work.ts'
import { findSpentLimit } from './usage-limit.ts'

/** One round looks at this many threads on which turns wait. The next round continues with the next ones. */
const THREADS_PER_ROUND = 200

/**
 * Begins the turns that wait for the end of the turn before them. A delayed job is such a turn once its `run_at` has come.
 * `after` is the last thread of the round before; `areWanted`: turns still wait.
 */
export async function beginTurns(
  context: JobContext,
  after: string | null,
  { hasDelayed, hasTurns }: Pick<PendingWork, 'hasDelayed' | 'hasTurns'>,
): Promise<{ areWanted: boolean; last: string | null; haveBegun: boolean }> {
  const { db } = context
  const due = hasDelayed ? await endDelays(context) : []
  const waiting = hasTurns ? await findWaitingTurns(db, after) : []
  const turns = [...due, ...waiting]
  if (turns.length === 0) return { areWanted: hasTurns, last: null, haveBegun: false }
  const ids = [...new Set(turns.map(({ thread_id }) => thread_id))]
  const unfinished = await db.query<{ thread_id: string; first: string; is_busy: number }>(sql`
    select thread_id, min(jobs.id) as first, max(case when waits_on is null then 1 else 0 end) as is_busy
    from jobs cross join uncommon_jobs left join job_checks on job_id = jobs.id
    where ${isAmong(db.engine, sql`thread_id`, ids)} and uncommon_jobs.id = jobs.id and ${IS_UNFINISHED}
    group by thread_id`)
  const next = new Set(unfinished.filter(({ is_busy }) => is_busy === 0).map(({ first }) => first))
  const begun = new Set(turns.map(({ job_id }) => job_id).filter((id) => next.has(id)))
  for (const jobId of begun) await beginUnlessLocked(context, jobId)
  const last = waiting.length < THREADS_PER_ROUND ? null : (waiting.at(-1)?.thread_id ?? null)
  return { areWanted: true, last, haveBegun: begun.size > 0 }
}

/** The jobs whose `run_at` has come wait for their turn from now on. */
function endDelays({ db, clock }: JobContext): Promise<WaitingTurn[]> {
  return db.query<WaitingTurn>(sql`
    update job_checks set not_before = null where job_id in (
      select job_id from job_checks where not_before <= ${clock.calendar()} order by not_before limit ${THREADS_PER_ROUND}
      ${forUpdateSkipLocked(db.engine)})
    returning waits_on as thread_id, job_id`)
}

/** The first turn that waits on each of the next threads. */
function findWaitingTurns(db: Queryable, after: string | null): Promise<WaitingTurn[]> {
  return db.query<WaitingTurn>(sql`
    select waits_on as thread_id, min(job_id) as job_id from job_checks
    where waits_on is not null and not_before is null and waits_on > ${after ?? ''}
    group by waits_on order by waits_on limit ${THREADS_PER_ROUND}`)
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
 * Its deadline begins now. If its type limits the active runs, it now waits for a place. The job is cancelled if its owner
 * has used up a limit, and a delayed one also if the service refuses its owner now.
 */
async function beginTurn(context: JobContext, jobId: string): Promise<void> {
  const { types } = context
  const work = async (tx: Transaction, settlement: Settlement) => {
    const [job] = await settlement.lock([jobId], { skipLocked: true })
    const thread = job && (await lockThread(tx, job.thread_id))
    if (!thread || job.waits_on === null) return
    const [first] = await findUnfinishedOn(tx, thread.id)
    if (first?.id !== jobId) return
    const { atMs } = settlement
    const reason = await findReasonToCancel(context, tx, job)
    if (reason !== null) return cancelWaiting(context, tx, { settlement, job, reason })
    const type = types.get(job.type)
    const deadlineMs = type ? deadlineFrom(atMs, type) : atMs
    const limitedType = limitedTypeOf(type)
    const isLimited = limitedType !== null
    await changeJobs(tx, [{ id: jobId, deadline_at: deadlineMs, updated_at: atMs }])
    await tx.query(sql`
      update job_checks set waits_on = null, not_before = null, limited_type = ${limitedType},
        queued_at = ${isLimited ? atMs : null}, due_at = ${isLimited ? deadlineMs : atMs}
      where job_id = ${jobId}`)
    await note(context, tx, { jobId, atMs, kind: 'turn_began' })
  }
  // The other turns wait behind this one.
  await settleJobs(context, work, { waitsBriefly: true })
}

/**
 * Called before the first start of a job. The turn of a delayed job may have begun long ago, for example while it waited for
 * a place: if the service refuses its owner now, the job is cancelled. False: the job may start.
 */
export async function cancelIfRefused(context: JobContext, delayed: SlimJob): Promise<boolean> {
  const { id, run_at, run_seq, created_by } = delayed
  if (run_at === null || run_seq > 1 || created_by === null) return false
  if ((await context.findRefusal(context.db, created_by)) === null) return false
  return settleJobs(context, async (tx, settlement) => {
    const [job] = await settlement.lock([id])
    const reason = job && (await context.findRefusal(tx, created_by))
    if (!reason || isTerminal(job.status) || job.run_id !== null || job.start_attempts > 0) return false
    await cancelWaiting(context, tx, { settlement, job, reason })
    return true
  })
}

/**
 * Why the turn does not begin now; null: it begins. A block ends only delayed jobs. The jobs of its owner that still wait do
 * not count for the limits.
 */
async function findReasonToCancel(
  { findRefusal, usageLimitRuns, clock }: JobContext,
  tx: Transaction,
  { run_at, created_by }: SettlingJob,
): Promise<CancelReason | null> {
  if (created_by === null) return null
  const refusal = run_at === null ? null : await findRefusal(tx, created_by)
  if (refusal !== null) return refusal
  const check = { nowMs: clock.now(), defaultRuns: usageLimitRuns, counted: 'begun' } as const
  return (await findSpentLimit(tx, created_by, check)) === null ? null : 'usage_limit_exceeded'
}

async function cancelWaiting(
  context: JobContext,
  tx: Transaction,
  { settlement, job, reason }: { settlement: Settlement; job: SettlingJob; reason: CancelReason },
): Promise<void> {
  // The erasure itself cancels the job.
  if (reason === 'user_erased') return
  const { atMs } = settlement
  job.cancel_requested_at = atMs
  await note(context, tx, { jobId: job.id, atMs, kind: 'cancel_requested', detail: { reason } })
  settlement.apply({ jobId: job.id, runId: null, verdict: { kind: 'cancelled' }, via: null, traces: null })
  await settlement.write()
}

function note(
  { ids }: JobContext,
  tx: Transaction,
  { jobId, atMs, kind, detail = {} }: { jobId: string; atMs: number; kind: TimelineKind; detail?: object },
): Promise<void> {
  return appendTimeline(tx, [
    { id: ids.next('tml'), job_id: jobId, at: atMs, kind, via: null, detail: JSON.stringify(detail) },
  ])
}
