import { NO_VALUES } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import type { RuntimeRun } from '../../runtime/runtime-types.ts'
import { isStillOpen, questionsOf } from '../answers.ts'
import type { RunObservation, Verdict } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { findInterrupts, findJobRuns } from '../job-store.ts'
import type { LeasedJob } from '../leases/lease-store.ts'
import { THREAD_GONE } from '../settlement/verdict.ts'
import { findEarlierRuns, findThread } from '../thread-store.ts'
import { isStartedHere } from './extra-runs.ts'
import { fetchQuestions } from './fetch-questions.ts'

interface PausedJob {
  job: LeasedJob
  signal: AbortSignal
}

interface QuestionCheck extends PausedJob {
  /** Called with what the first answer proves: a later call of this check may fail. */
  onFound: (observed: RunObservation) => void
}

/**
 * Asks the runtime whether the questions of a paused job are still open. If another client answered them, the job goes on
 * with that client's run. If they were closed without a run, the job shows the questions that are open now.
 *
 * A lagging replica shows the time before the pause, without the questions. So a closed question must be confirmed, unless
 * the state was written by a run that is newer than the job's own.
 */
export async function inspectQuestion(
  context: JobContext,
  runtime: RuntimeClient,
  { job, onFound, signal }: QuestionCheck,
): Promise<RunObservation> {
  const observe = (verdict: Verdict): RunObservation => ({ runId: job.run_id, verdict, traces: null })
  const questions = await questionsOf(await findInterrupts(context.db, job.id))
  const state = await runtime.fetchNewestState(job.thread_id, NO_VALUES, signal)
  if (state === null) return observe(THREAD_GONE)
  const stillPaused = observe({ kind: 'awaiting_input', interrupts: state.interrupts })
  const isOpen = isStillOpen(questions, state)
  onFound(isOpen ? stillPaused : observe({ kind: 'unclear', reason: 'the thread exists' }))
  const answered = questions ?? []
  if (isOpen && answered.length > 0) return stillPaused
  const { run, isPinned } = await findContinuation(context, runtime, { job, signal })
  if (run && state.runId === run.runId) {
    return observe({ kind: 'continued_elsewhere', runId: run.runId, answered })
  }
  // Two breakpoints look the same: only a state that another run has written is another pause. On a pinned thread, the
  // newest state may be that of a run on another branch, which does not concern the job.
  if (isOpen || isPinned) return stillPaused
  const confirm = 'question_closed'
  if (run) return observe({ kind: 'continued_elsewhere', runId: run.runId, answered, confirm })
  return observe({ kind: 'answered_elsewhere', interrupts: state.interrupts, confirm })
}

/**
 * The run of another client that goes on with a paused job, if there is one. On a pinned thread, a run on another branch is
 * none.
 */
export async function findContinuation(
  context: JobContext,
  runtime: RuntimeClient,
  { job, signal }: PausedJob,
): Promise<{ run: RuntimeRun | undefined; isPinned: boolean }> {
  const run = await findForeignRun(context, runtime, { job, signal })
  const isPinned = (await findThread(context.db, job.thread_id))?.is_pinned === 1
  const isOther = run && isPinned && (await isOnOtherBranch(context, runtime, { job, run, signal }))
  return { run: isOther ? undefined : run, isPinned }
}

/**
 * Whether the run began at another checkpoint than that of the questions. On a pinned thread, a run that names none begins
 * at the last one that was named: the one before the job's run. Such a run does not know the question, nor the job's input.
 */
async function isOnOtherBranch(
  { db }: JobContext,
  runtime: RuntimeClient,
  { job, run, signal }: PausedJob & { run: RuntimeRun },
): Promise<boolean> {
  if (run.checkpointId === null) return false
  const earlier = (await findEarlierRuns(db, job)).map(({ run_id }) => run_id)
  const runs = job.run_id === null ? [] : [job.run_id, ...earlier]
  const asked = await fetchQuestions(db, runtime, { threadId: job.thread_id, runs }, signal)
  return asked?.checkpointId !== run.checkpointId
}

/** The newest run of the thread that this service did not start, if it is newer than the job's own and has no job. */
async function findForeignRun(
  { db }: JobContext,
  runtime: RuntimeClient,
  { job, signal }: PausedJob,
): Promise<RuntimeRun | undefined> {
  const runs = await runtime.listRuns(job.thread_id, signal)
  // If a lagging replica does not list the job's own run, none of the others is known to be newer.
  const newer = runs.slice(
    0,
    Math.max(
      0,
      runs.findIndex(({ runId }) => runId === job.run_id),
    ),
  )
  const foreign = newer.filter((run) => !isStartedHere(run))
  const known =
    foreign.length === 0
      ? []
      : await findJobRuns(
          db,
          foreign.map(({ runId }) => runId),
        )
  return foreign.find(({ runId }) => !known.some((one) => one.run_id === runId))
}
