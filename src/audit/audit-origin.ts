import type { FastifyRequest } from 'fastify'
import { principalId } from '../auth/principal.ts'
import { callerOf } from '../http/gate/access.ts'
import type { AuditOrigin } from './record-audit.ts'

/** The caller of a request as the audit trail names it. */
export function auditOriginOf(request: FastifyRequest): AuditOrigin {
  const caller = callerOf(request)
  const kind = caller.kind === 'user' ? 'user' : 'service_account'
  return { actor: { kind, id: principalId(caller) }, address: request.ip, requestId: request.id }
}
