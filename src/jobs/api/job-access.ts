import type { FastifyRequest } from 'fastify'
import { ADMIN_SCOPE } from '../../auth/scopes.ts'
import { callerOf } from '../../http/gate/access.ts'

/** Whether the caller sees the jobs of every owner. */
export function isAdmin(request: FastifyRequest): boolean {
  return callerOf(request).scopes.includes(ADMIN_SCOPE)
}
