import { ApiError, UnavailableError } from '../../core/errors.ts'
import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { UnacceptableAnswer } from '../../runtime/read-answers.ts'
import type { JobContext } from '../job-context.ts'
import { findJobRuns } from '../job-store.ts'
import type { JobType } from '../job-types.ts'
import { isStartedHere } from '../runs/extra-runs.ts'

/** A run to follow may be missing on a lagging replica: the runtime is asked again after these pauses. */
const FOLLOW_PAUSES_MS = [300, 700, 2_000]

/**
 * Whether the caller may follow this run: an admin may, and a caller that the run or its thread names. The run must be of
 * the type's graph. The runtime is asked, so that the ids alone give no access.
 */
export async function checkMayFollow(
  { db, runtime, log, clock }: JobContext,
  run: { threadId: string; runId: string },
  { type, caller, isAdmin }: { type: JobType; caller: string; isAdmin: boolean },
): Promise<void> {
  if (runtime === null) throw noRuntime()
  const describe = () =>
    runtime.describeRun(run.threadId, run.runId).catch((error: unknown) => {
      if (!(error instanceof RuntimeUnavailable) && !(error instanceof UnacceptableAnswer)) throw error
      log.warn({ runId: run.runId, err: error }, 'job.follow_failed')
      throw new UnavailableError('The agent runtime cannot be asked about this run now', { retryAfterSeconds: 5 })
    })
  let found = await describe()
  for (const pauseMs of FOLLOW_PAUSES_MS) {
    if (found !== null) break
    await clock.sleep(pauseMs)
    found = await describe()
  }
  if (found === null) throw new ApiError('not_found', 'No such run')
  const isNamed = found.owners.includes(caller)
  // The service names the owner in the runs that it starts. A run of a repeated start that no job has is not followed.
  const isExtra = isNamed && isStartedHere(found) && (await findJobRuns(db, [run.runId])).length === 0
  if (!isAdmin && (!isNamed || isExtra)) throw new ApiError('not_found', 'No such run')
  if (!found.graphs.includes(type.assistantId)) {
    throw new ApiError('conflict', `The run is not of the type ${type.name}`)
  }
}

export function noRuntime(): UnavailableError {
  return new UnavailableError('No agent runtime is configured', { retryAfterSeconds: 60 })
}
