import { type AuditOrigin, recordAudit } from '../../audit/record-audit.ts'
import { ApiError } from '../../core/errors.ts'
import { JsonText } from '../../core/json/json-text.ts'
import type { Transaction } from '../../db/database.ts'
import { isTerminal } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { ANY_BYTES } from '../job-row.ts'
import { changeJobs, type EndedJob, lockJobToRetry } from '../job-store.ts'
import { faultOfConfigurable } from '../job-types.ts'
import type { Asker } from '../runs/caller.ts'
import type { CreatedJob, Jobs } from './jobs.ts'

interface Retry {
  id: string
  asker: Asker
  /** Absent: the owner's own change, which the audit trail does not record. */
  by: AuditOrigin | undefined
  byAdmin?: boolean
  /** The newest retry that the caller knows; null: none. Absent: the job is repeated however often it was retried. */
  knownRetry?: string | null
  /** False: the sweep starts the run. */
  startsHere?: boolean
  /** Throws `LargeDocuments` if the repeated documents have more bytes. Absent: any size. */
  maxBytes?: number
}

/** The job has a newer retry than the caller knows. Without this conflict, two callers would repeat it twice. */
export class RetriedAlready extends ApiError {
  readonly retriedAs: string

  constructor(retriedAs: string) {
    super('conflict', `The job was retried already, as ${retriedAs}: to repeat it once more, set "again" to true`)
    this.retriedAs = retriedAs
  }
}

/**
 * Repeats an ended job: a new job with the same exact input, configuration, type, project, owner and conversation. Runs inside the
 * caller's transaction. After its commit, the caller calls `begin`.
 */
export async function repeatJob(
  tx: Transaction,
  { jobContext, jobs }: { jobContext: JobContext; jobs: Jobs },
  { id, asker, by, byAdmin = false, knownRetry, startsHere = true, maxBytes = ANY_BYTES }: Retry,
): Promise<CreatedJob> {
  const ended = await lockJobToRetry(tx, id, maxBytes)
  if (!ended) throw new ApiError('not_found', 'No such job')
  const { input, created_by: createdBy } = checkRepeatable(ended)
  const { continues, thread_id: onThread, retried_as: retriedAs } = ended
  if (knownRetry !== undefined && retriedAs !== null && retriedAs !== knownRetry) throw new RetriedAlready(retriedAs)
  const type = jobContext.types.get(ended.type)
  if (!type) throw new ApiError('conflict', `The job type ${ended.type} is not configured any more`)
  const configurable = ended.configurable === null ? undefined : new JsonText(ended.configurable)
  const fault =
    type.inputSchema?.faultOf(new JsonText(input), 'input') ?? faultOfConfigurable(type, configurable, 'configurable')
  if (fault) throw new ApiError('conflict', `The job type has changed: ${fault}`)
  const turn = { continues, ...(continues !== null && { onThread }) }
  const work = { input: new JsonText(input), ...turn, ...(configurable && { configurable }) }
  const created = await jobs.create(tx, {
    type,
    createdBy,
    asker,
    projectId: ended.project_id,
    byAdmin,
    work,
    retryOf: ended.id,
    startsHere,
  })
  await changeJobs(tx, [{ id: ended.id, retried_as: created.job.id }])
  if (by) {
    const retried = { by, action: 'job.retried', object: { kind: 'job', id: ended.id } } as const
    await recordAudit(tx, jobContext, { ...retried, after: { job_id: created.job.id } })
  }
  return created
}

function checkRepeatable(job: EndedJob): { input: string; created_by: string } {
  const { status, input, created_by } = job
  if (!isTerminal(status)) {
    throw new ApiError('conflict', `The job is ${status}: only a job that has ended can be repeated`)
  }
  if (input === null || created_by === null) {
    throw new ApiError('conflict', 'The input of the job is not stored, so it cannot be repeated')
  }
  return { input, created_by }
}
