import type { FastifyRequest } from 'fastify'
import { auditOriginOf } from '../../audit/audit-origin.ts'
import type { AuditOrigin } from '../../audit/record-audit.ts'
import { principalId } from '../../auth/principal.ts'
import { ADMIN_SCOPE, hasAnyScope, OPERATIONS_SCOPE } from '../../auth/scopes.ts'
import { ApiError } from '../../core/errors.ts'
import { callerOf, insufficientScope } from '../../http/gate/access.ts'

export const NO_SUCH_JOB = 'No such job'

type OwnedJob = { created_by: string | null }

/** Whether the caller may change the jobs of every owner. */
export function isAdmin(request: FastifyRequest): boolean {
  return callerOf(request).scopes.includes(ADMIN_SCOPE)
}

/** Whether the caller sees the jobs of every owner. */
export function seesAllJobs(request: FastifyRequest): boolean {
  return hasAnyScope(callerOf(request).scopes, [OPERATIONS_SCOPE])
}

function isOwner(request: FastifyRequest, job: OwnedJob): boolean {
  return job.created_by === principalId(callerOf(request))
}

function maySee(request: FastifyRequest, job: OwnedJob): boolean {
  return isOwner(request, job) || seesAllJobs(request)
}

/** A job is visible to its owner, to admins and to callers with `read:operations`; for other callers it does not exist. */
export function checkMaySee<Job extends OwnedJob>(request: FastifyRequest, job: Job | undefined): Job {
  if (job && maySee(request, job)) return job
  throw new ApiError('not_found', NO_SUCH_JOB)
}

/** A caller that sees a job but neither owns it nor is an admin cannot change it. */
export function checkMayChange(request: FastifyRequest, job: OwnedJob): void {
  if (!isOwner(request, job) && !isAdmin(request)) throw insufficientScope([ADMIN_SCOPE])
}

/** The origin of a change that the audit trail records: one by a caller that does not own the job. */
export function auditedOriginOf(request: FastifyRequest, job: OwnedJob): AuditOrigin | undefined {
  return isOwner(request, job) ? undefined : auditOriginOf(request)
}
