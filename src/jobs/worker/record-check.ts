import { type Backoff, backoffMs } from '../../core/async/backoff.ts'
import type { RunObservation, Via } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import { settleJobs } from '../settlement/settle.ts'
import { SECOND_SIGHT_MS } from '../settlement/settlement.ts'
import { appendOrCount } from '../settlement/timeline-store.ts'
import { releaseLease } from './lease-store.ts'

const CHECK_BACKOFF: Backoff = { baseMs: 5_000, maxMs: 5 * 60_000 }

/**
 * The result of a check: an observation of its run, or the reason why there is none. `holdMs`: how long the job
 * stays unavailable to other workers after the check.
 */
export type CheckOutcome = RunObservation | { trouble: string; holdMs?: number }

/** Settles the job with what a check found, schedules the next check and releases the lease, in one transaction. */
export async function recordCheck(
  context: JobContext,
  { job, via, outcome }: { job: JobRow; via: Via | null; outcome: CheckOutcome },
): Promise<void> {
  const { random, ids } = context
  const observed = 'verdict' in outcome ? outcome : null
  const { trouble, holdMs = 0 } = 'trouble' in outcome ? outcome : { trouble: null }
  await settleJobs(context, async (tx, settlement) => {
    const { atMs } = settlement
    // A run that has just started gets its first check soon, even if starting it took many attempts.
    const justStarted = job.run_id === null && observed !== null && observed.runId !== null
    const backedOffMs = atMs + backoffMs(CHECK_BACKOFF, justStarted ? 0 : job.check_attempts, random)
    const dueMs = atMs < job.deadline_at ? Math.min(backedOffMs, job.deadline_at) : backedOffMs
    // A client that polls must not move the next check of the sweep further away.
    const isPlanned = via === 'read' && job.run_id !== null && job.next_check_at !== null && job.next_check_at > atMs
    const nextMs = isPlanned ? Math.min(job.next_check_at ?? dueMs, dueMs) : dueMs
    await appendOrCount(tx, {
      id: ids.next('tml'),
      job_id: job.id,
      at: atMs,
      kind: job.run_id === null ? 'start' : 'check',
      via,
      detail: JSON.stringify(observed === null ? { error: trouble } : { found: observed.verdict.kind }),
    })
    const [settled] =
      observed === null ? [] : await settlement.settle([{ jobId: job.id, runSeq: job.run_seq, via, ...observed }])
    const doubtAtMs = settled?.job.doubt_at ?? null
    await releaseLease(tx, {
      id: job.id,
      token: job.lease_token ?? '',
      atMs,
      nextMs: doubtAtMs === null ? nextMs : doubtAtMs + SECOND_SIGHT_MS,
      error: trouble,
      leased: job,
      heldUntilMs: holdMs > 0 ? atMs + holdMs : null,
    })
  })
}
