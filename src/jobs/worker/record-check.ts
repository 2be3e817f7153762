import { type Backoff, backoffMs } from '../../core/async/backoff.ts'
import { silentMeter } from '../../core/metrics/meter.ts'
import type { Random } from '../../core/random.ts'
import { noTracer, type Tracer } from '../../core/tracing.ts'
import { LockTimeout, type Transaction } from '../../db/database.ts'
import { Locked, WriteBatcher } from '../../db/write-batcher.ts'
import { questionDueAt } from '../check-store.ts'
import type { Via } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { findThreadsOf } from '../job-store.ts'
import { type LeasedJob, releaseLeases } from '../leases/lease-store.ts'
import type { CheckOutcome } from '../runs/check-outcome.ts'
import { settleJobs } from '../settlement/settle.ts'
import { CONFIRM_AFTER_MS, nextCheckOfPaused, type Settlement, type SettlingJob } from '../settlement/settlement.ts'
import { appendOrCount } from '../settlement/timeline-store.ts'
import { lockUsageOf } from '../settlement/usage-of.ts'

const CHECK_BACKOFF: Backoff = { baseMs: 5_000, maxMs: 5 * 60_000 }

interface ConcludedCheck {
  job: LeasedJob
  via: Via | null
  outcome: CheckOutcome
  /** When the check began to ask the runtime. */
  askedAtMs: number
  /** The span of the check. */
  traceContext?: string | null
}

/** `repeated`: another node has taken the lease and repeated the start, so that the answer to this one comes too late. */
type Recorded = 'recorded' | 'repeated'

const MB = 1024 * 1024

/** Records the results of checks. Results that arrive during a write share the next transaction. */
export class CheckRecorder {
  readonly #commits: WriteBatcher<ConcludedCheck, Recorded>
  readonly #tracer: Tracer

  constructor(context: JobContext) {
    this.#tracer = context.tracer ?? noTracer
    const { db, meter = silentMeter } = context
    this.#commits = new WriteBatcher({
      commit: (checks, { waits }) => (waits ? recordChecks(context, checks, 'wait') : recordGroup(context, checks)),
      sizeOf: ({ outcome }) =>
        'verdict' in outcome && outcome.verdict.kind === 'completed' ? outcome.verdict.output.text.length : 0,
      maxBatch: 100,
      maxBatchBytes: 16 * MB,
      maxWaiting: 5_000,
      maxWaitingBytes: 256 * MB,
      commitsAtOnce: db.engine === 'postgres' ? 2 : 1,
      onBatch: (size) => meter.observe('group_commit_batch_size', size, { queue: 'checks' }),
    })
  }

  record(check: ConcludedCheck): Promise<Recorded> {
    return this.#commits.submit({ ...check, traceContext: this.#tracer.current })
  }
}

/**
 * `wait`, `wait_briefly`: for all locks of other transactions. `skip_locked`: not for those of jobs, nor for those of the
 * usage of owners.
 */
type LockMode = 'wait' | 'wait_briefly' | 'skip_locked'

/** While a group waits for the usage of one owner, it has locked the jobs of others. So it is tried again without that owner. */
async function recordGroup(context: JobContext, checks: readonly ConcludedCheck[]): Promise<(Recorded | Locked)[]> {
  try {
    return await recordChecks(context, checks, 'wait_briefly')
  } catch (error) {
    if (error instanceof LockTimeout) return await recordChecks(context, checks, 'skip_locked')
    throw error
  }
}

/** Settles jobs with the results of checks, schedules the next checks and releases the leases, in one transaction. */
async function recordChecks(
  context: JobContext,
  concluded: readonly ConcludedCheck[],
  locks: LockMode,
): Promise<(Recorded | Locked)[]> {
  const { random, ids } = context
  const work = async (tx: Transaction, settlement: Settlement): Promise<(Recorded | Locked)[]> => {
    const { atMs } = settlement
    const jobIds = concluded.map(({ job }) => job.id)
    const skips = locks === 'skip_locked'
    const found = await settlement.lock(jobIds, { skipLocked: skips })
    const inUse = skips ? await lockUsageOf(tx, found, atMs) : new Set<string>()
    const locked = found.filter(({ created_by }) => created_by === null || !inUse.has(created_by))
    const stored = new Map(locked.map((job) => [job.id, job]))
    const left = skips
      ? await findThreadsOf(
          tx,
          jobIds.filter((id) => !stored.has(id)),
        )
      : []
    const lockOf = new Map(left.map(({ id, thread_id, created_by }) => [id, created_by ?? thread_id]))
    // A job may have been deleted meanwhile.
    const checks = concluded.filter(({ job }) => stored.has(job.id))
    if (checks.length === 0) return resultsOf(concluded, { lockOf })
    await appendOrCount(
      tx,
      checks.map(({ job, via, outcome }) => ({
        id: ids.next('tml'),
        job_id: job.id,
        at: atMs,
        kind: job.run_id === null ? ('start' as const) : ('check' as const),
        via,
        detail: JSON.stringify('verdict' in outcome ? { found: outcome.verdict.kind } : { error: outcome.error }),
      })),
    )
    const repeated = new Set(checks.filter(({ job }) => wasRepeated(job, stored.get(job.id))))
    const updates = checks.flatMap((check) => {
      const { job, via, outcome, askedAtMs, traceContext = null } = check
      const seen = 'verdict' in outcome ? outcome : outcome.seen
      if (repeated.has(check)) return []
      return seen ? [{ jobId: job.id, runSeq: job.run_seq, via, isCheck: true, askedAtMs, traceContext, ...seen }] : []
    })
    const settled = updates.map((update) => settlement.apply(update))
    for (const job of locked) settlement.applyQuestionTimes(job)
    await settlement.write()
    const unconfirmedSince = new Map(settled.map(({ job }) => [job.id, job.awaiting_confirmation_since]))
    await releaseLeases(
      tx,
      checks.map(({ job, outcome, askedAtMs }) => {
        const sinceMs = unconfirmedSince.get(job.id) ?? null
        const confirmAtMs = sinceMs === null ? null : sinceMs + CONFIRM_AFTER_MS
        const question_at = questionDueAt(stored.get(job.id) ?? job)
        const planned = Math.min(
          nextCheckAt({ job, outcome }, { atMs, random }),
          question_at ?? Number.POSITIVE_INFINITY,
        )
        return {
          job_id: job.id,
          token: job.lease_token ?? '',
          at: atMs,
          // A check that asked late enough to confirm the evidence, and failed, is repeated after the backoff.
          next_at: confirmAtMs !== null && confirmAtMs > askedAtMs ? confirmAtMs : planned,
          question_at,
          error: 'error' in outcome ? outcome.error : null,
          unseen_at: 'error' in outcome ? (outcome.unseenAtMs ?? null) : null,
          unsent: outcome.isUnsent ? 1 : 0,
          leased_due_at: job.next_check_at ?? 0,
          leased_cancel_at: job.cancel_requested_at ?? 0,
        }
      }),
    )
    return resultsOf(concluded, { lockOf, repeated })
  }
  return settleJobs(context, work, { waitsBriefly: locks !== 'wait' })
}

function resultsOf(
  concluded: readonly ConcludedCheck[],
  { lockOf, repeated }: { lockOf: ReadonlyMap<string, string>; repeated?: ReadonlySet<ConcludedCheck> },
): (Recorded | Locked)[] {
  return concluded.map((check) => {
    const lockedBy = lockOf.get(check.job.id)
    if (lockedBy !== undefined) return new Locked(lockedBy)
    return repeated?.has(check) ? 'repeated' : 'recorded'
  })
}

/** Whether the start that this check made was repeated before its answer came. */
function wasRepeated(job: LeasedJob, now: SettlingJob | undefined): boolean {
  if (now === undefined || job.run_id !== null || now.run_seq !== job.run_seq) return false
  return now.thread_id !== job.thread_id || now.start_attempts > job.start_attempts
}

function nextCheckAt(
  { job, outcome }: Pick<ConcludedCheck, 'job' | 'outcome'>,
  { atMs, random }: { atMs: number; random: Random },
): number {
  if ('error' in outcome && outcome.nextAtMs !== undefined) return outcome.nextAtMs
  // A run that has just started gets its first check soon, even if starting it took long.
  const justStarted = job.run_id === null && 'verdict' in outcome && outcome.runId !== null
  const attempt = justStarted ? 0 : attemptsSince(startOf(job), atMs)
  const backedOffMs = atMs + backoffMs(CHECK_BACKOFF, attempt, random)
  const isPaused = job.status === 'awaiting_input'
  const deadlineMs = !isPaused && atMs < job.deadline_at ? job.deadline_at : Number.POSITIVE_INFINITY
  const dueMs = isPaused && 'verdict' in outcome ? nextCheckOfPaused(atMs, random) : Math.min(backedOffMs, deadlineMs)
  // A check before its time, for a client that polls or watches, does not delay the next check of the sweep.
  const isPlanned = job.run_id !== null && job.next_check_at !== null && job.next_check_at > atMs
  return isPlanned ? Math.min(job.next_check_at ?? dueMs, dueMs) : dueMs
}

/** When the run started. A job without a run has waited since its last change: its creation or its resume. */
function startOf({ run_id, last_start_at, started_at, created_at, updated_at }: LeasedJob): number {
  return run_id === null ? updated_at : (last_start_at ?? started_at ?? created_at)
}

/**
 * How many checks the sweep alone makes in this time, with pauses that double. The real number may be much higher: clients
 * that polled or watched the job would then make the next pauses longer.
 */
function attemptsSince(sinceMs: number, atMs: number): number {
  const ageMs = Math.max(0, atMs - sinceMs)
  return Math.floor(Math.log2((2 * ageMs) / CHECK_BACKOFF.baseMs + 1))
}
