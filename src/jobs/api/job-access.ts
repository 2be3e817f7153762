import type { FastifyRequest } from 'fastify'
import { principalId } from '../../auth/principal.ts'
import { ADMIN_SCOPE } from '../../auth/scopes.ts'
import { callerOf } from '../../http/gate/access.ts'

/** Whether the caller sees the jobs of every owner. */
export function isAdmin(request: FastifyRequest): boolean {
  return callerOf(request).scopes.includes(ADMIN_SCOPE)
}

/** A job is visible to its owner and to admins. */
export function maySee(request: FastifyRequest, job: { created_by: string | null }): boolean {
  return job.created_by === principalId(callerOf(request)) || isAdmin(request)
}
