import { isDeepStrictEqual } from 'node:util'
import { isJsonObject, type JsonObject } from '../../../src/core/json.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import { scopesOf } from '../outside/identity.ts'
import { isOwn, type SimRun } from '../outside/runtime.ts'
import type { Evidence } from './evidence.ts'
import { isGiven } from './runs.ts'

/** Operators repeat the jobs of users. */
const RETRIES_BY = 'admin'

/**
 * Each run that the service started carries the owner of its job, and the principal that asked for this very run. Each
 * request for a run configures it with its own id, so that the run shows which request it belongs to.
 */
export function checkCallers({ runtime, jobs, observed, violate }: Evidence): void {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  for (const run of [...runtime.runs.values()].filter(isOwn)) {
    const job = byId.get(String(run.metadata.job_id))
    if (!job) continue
    const { caller, user_id, asked } = run.configurable
    const request = observed.asked.get(String(asked))
    const isRetry = job.retry_of !== null && run.metadata.run_seq === 1
    const isOfRun =
      request?.answers === undefined ? request?.marker === inputOf(run).marker : isGiven(request.answers, run, runtime)
    if (!isRetry && !isOfRun) violate('caller', `the run ${run.runId} of ${job.id} has the configuration of ${asked}`)
    const { replaced_by } = inputOf(run)
    const by = isRetry ? RETRIES_BY : typeof replaced_by === 'string' ? replaced_by : (request?.by ?? 'unknown')
    const expected = callerOf(job, by)
    if (!isDeepStrictEqual(caller, expected))
      violate(
        'caller',
        `the run ${run.runId} has the caller ${JSON.stringify(caller)}, not ${JSON.stringify(expected)}`,
      )
    if (user_id !== job.created_by || run.metadata.owner !== job.created_by)
      violate('caller', `the run ${run.runId} of ${job.created_by} names ${user_id} and ${run.metadata.owner}`)
  }
}

function callerOf({ id, type, project_id, created_by }: JobRow, by: string): JsonObject {
  const asked = by === created_by ? { scopes: scopesOf(by), actor: null } : { scopes: [], actor: by }
  return { user_id: created_by, kind: 'user', ...asked, job_id: id, type, project_id }
}

function inputOf({ work }: SimRun): JsonObject {
  return 'input' in work && isJsonObject(work.input) ? work.input : {}
}
