import type { Json } from '../../core/json.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import { type Run, type RuntimeRefusal, RuntimeUnavailable } from '../../runtime/runtime-types.ts'
import type { JobRow, RunObservation } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobType } from '../job-types.ts'
import { deadlineExceeded } from '../settlement/verdict.ts'
import { countStartAttempt } from './lease-store.ts'

/** Given up on its way, with no answer: it may still get through, and till then a run that is not found may yet come. */
export class AbortedStart extends RuntimeUnavailable {}

interface RunStart {
  job: JobRow
  type: JobType
  fresh: boolean
  signal: AbortSignal
}

/**
 * Starts a job's run, once: the attempt is durable before the runtime hears of it, and every later attempt first looks
 * whether an earlier one got through. The job has a thread to itself, where a second live run would be refused.
 */
export async function startJobRun(
  context: JobContext,
  runtime: RuntimeClient,
  start: RunStart,
): Promise<RunObservation> {
  const { job, signal } = start
  // A new job is written with its first attempt counted; only the process that wrote it knows that none was made yet.
  if (!start.fresh) {
    const found = await findOwnRun(runtime, job, signal)
    if (found) return started(found)
  }
  if (job.cancel_requested_at !== null) return { runId: null, verdict: { kind: 'cancelled' }, traces: null }
  if (context.clock.now() >= job.deadline_at) return { runId: null, verdict: deadlineExceeded(), traces: null }
  if (!start.fresh && !(await countStartAttempt(context.db, { id: job.id, token: job.lease_token ?? '' }))) {
    throw new RuntimeUnavailable('another worker holds this job, or it was cancelled')
  }
  const refused = await runtime.ensureThread(job.thread_id, { job_id: job.id }, signal)
  if (refused) return rejected(refused)
  return startOn(context, runtime, start)
}

async function startOn(
  context: JobContext,
  runtime: RuntimeClient,
  { job, type, signal }: RunStart,
): Promise<RunObservation> {
  const request = {
    threadId: job.thread_id,
    assistantId: type.assistantId,
    payload: payloadOf(job),
    metadata: { job_id: job.id, run_seq: job.run_seq },
  }
  const webhook = context.callbackUrl(job)
  const start = async (url: string | null) => {
    // A process that stood still meanwhile may find that another took over, started the run and saw it end.
    if (context.clock.now() + runtime.timeoutMs > (job.lease_until ?? 0)) {
      throw new RuntimeUnavailable('the lease would not outlast the start')
    }
    try {
      return await runtime.startRun({ ...request, webhook: url }, signal)
    } catch (error) {
      throw signal.aborted ? new AbortedStart('the start was given up on its way', { cause: error }) : error
    }
  }
  let outcome = await start(webhook)
  if ('refused' in outcome && outcome.refused.status === 422 && webhook !== null) {
    // A runtime that will not call us back can still do the work: we ask instead.
    context.log.warn({ jobId: job.id, reason: outcome.refused.message }, 'job.callback_url_refused')
    outcome = await start(null)
  }
  if ('started' in outcome) return started(outcome.started)
  if ('refused' in outcome) return rejected(outcome.refused)
  const found = await findOwnRun(runtime, job, signal)
  if (found) return started(found)
  throw new RuntimeUnavailable('the thread is busy with another run')
}

async function findOwnRun(runtime: RuntimeClient, job: JobRow, signal: AbortSignal): Promise<Run | undefined> {
  const runs = await runtime.listRuns(job.thread_id, signal)
  return runs.find((run) => run.metadata.job_id === job.id && run.metadata.run_seq === job.run_seq)
}

function started(run: Run): RunObservation {
  return { runId: run.runId, verdict: { kind: 'pending' }, traces: run.traces }
}

function rejected({ status, message }: RuntimeRefusal): RunObservation {
  const text = `The runtime refused to start the run (${status}): ${message}`
  return { runId: null, verdict: { kind: 'failed', code: 'start_rejected', message: text }, traces: null }
}

function payloadOf(job: JobRow): { input: Json } | { resume: Json } {
  if (job.run_seq > 1) return { resume: JSON.parse(job.resume_input ?? 'null') as Json }
  return { input: JSON.parse(job.input ?? 'null') as Json }
}
