import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import type { RuntimeRun } from '../../runtime/runtime-types.ts'
import type { RunObservation } from '../job.ts'
import { isLaterTurn } from '../job-row.ts'
import type { JobType } from '../job-types.ts'
import type { LeasedJob } from '../leases/lease-store.ts'
import { judgeRun, judgeStatus, needsState } from '../settlement/verdict.ts'

/** A run as its callback shows it. */
export type ReportedRun = Pick<RuntimeRun, 'runId' | 'status' | 'traces'>

interface Inspection {
  job: LeasedJob
  runId: string
  type: JobType
  /** Given when a callback asks for this check. */
  reported?: ReportedRun | undefined
  /** Called with what the first answer proves: a later call of this check may fail. */
  onFound: (observed: RunObservation) => void
  /** Given for a thread with branches: the runs before it, newest first. */
  runsBefore?: readonly string[] | undefined
  signal: AbortSignal
}

/**
 * Asks the runtime about a run: fetches the run; if it ended, fetches its state and reads the output from the state's
 * values. If a cancellation was requested and the run is still active, asks the runtime to cancel it again.
 *
 * A run that ended according to its callback is not fetched: only its state is missing.
 */
export async function inspectRun(runtime: RuntimeClient, inspection: Inspection): Promise<RunObservation> {
  const { job, runId, type, reported, onFound, runsBefore, signal } = inspection
  const hasEnded = reported?.runId === runId && needsState(reported.status)
  let run: ReportedRun | null = hasEnded ? reported : await runtime.fetchRun(job.thread_id, runId, signal)
  if (run && !hasEnded) onFound({ runId, verdict: judgeStatus(run.status), traces: run.traces })
  if (run && job.cancel_requested_at !== null && !needsState(run.status)) {
    await runtime.cancelRun(job.thread_id, runId, signal)
    // A run that was found a moment ago is not missing: a replica lags.
    run = (await runtime.fetchRun(job.thread_id, runId, signal)) ?? run
  }
  if (run === null) return { runId, verdict: lost(job), traces: null }
  const state = needsState(run.status)
    ? await runtime.fetchState(job.thread_id, runId, type.wantedValues, { signal, runsBefore })
    : null
  // The runtime may have deleted the run and its thread. Then its callback is accepted, as soon as that is confirmed.
  const isGone = hasEnded && state === null && (await runtime.fetchRun(job.thread_id, runId, signal)) === null
  if (isGone) return { runId, verdict: lost(job), traces: null }
  const traces = {
    traceId: run.traces.traceId ?? state?.traces.traceId ?? null,
    tracerTraceId: run.traces.tracerTraceId ?? state?.traces.tracerTraceId ?? null,
  }
  const judged = {
    type,
    isLaterTurn: isLaterTurn(job),
    cancelRequested: job.cancel_requested_at !== null,
    answered: JSON.parse(job.resume_questions ?? '[]') as string[],
  }
  return { runId, verdict: judgeRun(run, state, judged), traces }
}

/** The runtime deletes a run that is cancelled with rollback. In all other cases the result of the run is lost. */
function lost(job: LeasedJob): RunObservation['verdict'] {
  if (job.cancel_requested_at !== null) return { kind: 'cancelled', confirm: 'run_missing' }
  return { kind: 'failed', code: 'run_lost', message: 'The runtime no longer knows the run', confirm: 'run_missing' }
}
