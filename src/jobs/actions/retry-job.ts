import { type AuditOrigin, recordAudit } from '../../audit/record-audit.ts'
import { ApiError } from '../../core/errors.ts'
import { JsonText } from '../../core/json/json-text.ts'
import type { Transaction } from '../../db/database.ts'
import { isTerminal } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import { type EndedJob, findTurn, lockJobToRetry } from '../job-store.ts'
import type { Jobs } from './jobs.ts'

interface Retry {
  id: string
  /** Absent: the owner's own change, which the audit trail does not record. */
  by: AuditOrigin | undefined
  /** False: the sweep starts the run. */
  startsHere?: boolean
}

/**
 * Repeats an ended job: a new job with the same exact input, type, project, owner and conversation. Runs inside the
 * caller's transaction. After its commit, the caller calls `Jobs.begin` to start the run.
 */
export async function repeatJob(
  tx: Transaction,
  { jobContext, jobs }: { jobContext: JobContext; jobs: Jobs },
  { id, by, startsHere = true }: Retry,
): Promise<JobRow> {
  const ended = await lockJobToRetry(tx, id)
  if (!ended) throw new ApiError('not_found', 'No such job')
  const { input, created_by: createdBy, continues } = checkRepeatable(ended)
  const type = jobContext.types.get(ended.type)
  if (!type) throw new ApiError('conflict', `The job type ${ended.type} is not configured any more`)
  const fault = type.inputSchema?.faultOf(new JsonText(input), 'input')
  if (fault) throw new ApiError('conflict', `The job type has changed: ${fault}`)
  if (continues !== null && !(await findTurn(tx, continues))) {
    throw new ApiError('conflict', 'The job that this one continues was deleted')
  }
  const work = { input: new JsonText(input), continues }
  const job = await jobs.create(tx, {
    type,
    createdBy,
    projectId: ended.project_id,
    work,
    retryOf: ended.id,
    startsHere,
  })
  if (by) {
    const retried = { by, action: 'job.retried', object: { kind: 'job', id: ended.id } } as const
    await recordAudit(tx, jobContext, { ...retried, after: { job_id: job.id } })
  }
  return job
}

function checkRepeatable(job: EndedJob): { input: string; created_by: string; continues: string | null } {
  const { status, input, created_by, continues } = job
  if (!isTerminal(status)) {
    throw new ApiError('conflict', `The job is ${status}: only a job that has ended can be repeated`)
  }
  if (input === null || created_by === null) {
    throw new ApiError('conflict', 'The input of the job is not stored, so it cannot be repeated')
  }
  return { input, created_by, continues }
}
