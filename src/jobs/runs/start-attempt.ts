import { uuidFrom } from '../../core/random.ts'
import { TransactionConflict } from '../../db/database.ts'
import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import type { JobContext } from '../job-context.ts'
import { lockJobsOn } from '../job-store.ts'
import { countStartAttempt, findStartDocuments, type LeasedJob } from '../leases/lease-store.ts'
import { findEarlierRuns, findThread, lockThread, pinThread, replaceThread } from '../thread-store.ts'
import { findUnfinishedOn } from '../uncommon-jobs.ts'
import type { AbandonedAttempt } from './extra-runs.ts'

/** What an attempt to start a run sends. */
export interface StartAttempt {
  input: string | null
  resume_input: string | null
  configurable: string | null
  /** The run must name the checkpoint that it begins at. */
  isPinned: boolean
}

/** Counts the attempt, then loads what it sends. */
export async function countAttempt({ db, clock }: JobContext, job: LeasedJob): Promise<StartAttempt> {
  const attempt = { id: job.id, token: job.lease_token ?? '', nowMs: clock.now() }
  const isCounted = await countStartAttempt(db, attempt)
  const documents = isCounted ? await findStartDocuments(db, job.id) : undefined
  if (documents === undefined) throw new RuntimeUnavailable('job_held')
  job.start_attempts += 1
  const thread = await findThread(db, job.thread_id)
  return { ...documents, isPinned: thread?.is_pinned === 1 }
}

/**
 * Called before the last attempt is repeated or given up: the runtime may still handle it. Its run must not become part of
 * the conversation. A conversation without history moves to a new thread. Otherwise the thread is pinned: from now on
 * every run on it begins at the checkpoint that the run before it left.
 */
export async function abandonAttempt(
  context: JobContext,
  job: LeasedJob,
  onAbandoned: (attempt: AbandonedAttempt) => void,
): Promise<void> {
  onAbandoned({ job, threadId: job.thread_id, attempt: job.start_attempts })
  const hasHistory = (await findEarlierRuns(context.db, job)).length > 0
  if (hasHistory) await pinThread(context.db, job.thread_id)
  else await moveToNewThread(context, job)
}

/** The conversation goes on with this job on a new thread, which has no history. */
export async function moveToNewThread({ db, random }: JobContext, job: LeasedJob): Promise<void> {
  const from = job.thread_id
  const to = uuidFrom(random)
  const isMoved = await db.transaction(async (tx) => {
    const jobs = await lockJobsOn(tx, from)
    const thread = await lockThread(tx, from)
    // A turn was added before the thread was locked.
    const added = (await findUnfinishedOn(tx, from)).some(({ id }) => jobs.every((locked) => locked.id !== id))
    if (added) throw new TransactionConflict()
    // Another worker took the lease and was faster.
    if (!thread || thread.replaced_by !== null || !jobs.some(({ id, run_id }) => id === job.id && run_id === null)) {
      return false
    }
    await replaceThread(tx, { from: thread, to })
    return true
  })
  if (!isMoved) throw new RuntimeUnavailable('job_held')
  job.thread_id = to
}
